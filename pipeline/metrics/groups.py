"""Prometheus families of replicated groups, read from the figures of their controllers.

*Source*: docs/protocols/i-replicated-groups.md.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stilltide.pipeline.core.groups.group import Standing
from stilltide.pipeline.core.groups.lag import GroupLag
from stilltide.pipeline.metrics.families import Family, Kind, Section, collected, histograms
from stilltide.schemas.values import TopicPartition

_OF_DATA = ("cluster", "topic", "partition")
_OF_GROUP = (*_OF_DATA, "group")

GROUPS_MAX = 1000
"""Groups of a data partition whose figures are shown."""


class ControllerStats(NamedTuple):
    """Figures of the controller of one data partition.

    Attributes:
        pending: position snapshots asked for and not complete, 0 or 1.
        completed: position snapshots taken.
        timed_out: position snapshots given up.
        connected: for each other cluster, whether its links run (I13).
        standings: number of groups by why they are where they are.
        lags: of groups by name, those that are shown and were looked at.
        read_again: records that a group would read again at most, of shown groups by name.
    """

    pending: int
    completed: int
    timed_out: int
    connected: Mapping[str, bool]
    standings: Counter[Standing]
    lags: Mapping[str, GroupLag]
    read_again: Mapping[str, int]


_SNAPSHOTS: tuple[Family[ControllerStats], ...] = (
    Family(
        "stilltide_replication_snapshots_pending",
        Kind.GAUGE,
        "snapshots",
        _OF_DATA,
        "Snapshots asked for and not complete.",
        "0 or 1.",
        read=lambda one: one.pending,
    ),
    Family(
        "stilltide_replication_snapshots_completed_total",
        Kind.COUNTER,
        "snapshots",
        _OF_DATA,
        "Snapshots taken.",
        "They are durable; counted since the worker has the partition.",
        read=lambda one: one.completed,
    ),
    Family(
        "stilltide_replication_snapshots_timed_out_total",
        Kind.COUNTER,
        "snapshots",
        _OF_DATA,
        "Snapshots given up.",
        "Another cluster, or a link, did not answer in time.",
        read=lambda one: one.timed_out,
    ),
)

_LINKS: tuple[Family[Mapping[str, bool]], ...] = (
    Family(
        "stilltide_replication_link_connected",
        Kind.GAUGE,
        "links",
        (*_OF_DATA, "remote"),
        "1 while the links from and to the other cluster run.",
        "They do while their beats are younger than 15 s, and once the link from the other cluster "
        "has met the data partition.",
        read=lambda connected: {remote: int(one) for remote, one in connected.items()},
    ),
)

_SNAPSHOT_TIMES: tuple[Family[None], ...] = (
    Family(
        "stilltide_replication_snapshot_seconds",
        Kind.HISTOGRAM,
        "seconds",
        ("cluster",),
        "From its first request until a snapshot is durable, in seconds.",
        buckets=(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    ),
)

_STANDINGS: tuple[Family[Counter[Standing]], ...] = (
    Family(
        "stilltide_replicated_subscriptions",
        Kind.GAUGE,
        "groups",
        ("cluster", "standing"),
        "Groups on data partitions, by why they are where they are.",
        read=lambda counts: {one.name.lower(): counts[one] for one in Standing},
    ),
)

_LAGS: tuple[Family[GroupLag], ...] = (
    Family(
        "stilltide_subscription_update_lag_records",
        Kind.GAUGE,
        "offsets",
        _OF_GROUP,
        "Offsets passed here and told to no other cluster yet.",
        read=lambda one: one.untold,
    ),
    Family(
        "stilltide_subscription_update_lag_seconds",
        Kind.GAUGE,
        "seconds",
        _OF_GROUP,
        "For how long there have been such offsets, in seconds.",
        "0 without such offsets.",
        read=lambda one: one.untold_ms / 1000,
    ),
)

_READ_AGAIN: tuple[Family[int], ...] = (
    Family(
        "stilltide_subscription_read_again_records",
        Kind.GAUGE,
        "records",
        _OF_GROUP,
        "Records that come again to who begins here now, at most.",
        "A `Subscription` skips them. The figure is what `stilltide group describe` shows as "
        "`read_again_others`, as far as this cluster knows; for a group that is more than 10 000 "
        "records behind, it is a bound.",
        read=lambda count: count,
    ),
)

TABLE = (*_SNAPSHOTS, *_LINKS, *_SNAPSHOT_TIMES, *_STANDINGS, *_LAGS, *_READ_AGAIN)


def _standings() -> str:
    return "\n".join(f"- `{one.name.lower()}`: {one.value}" for one in Standing)


SECTION = Section(
    "Replicated groups",
    f"""\
Workers with the setting `clusters` show these families. `topic` and `partition` are those of the
data. The snapshots are position snapshots. Of each data partition, the first {GROUPS_MAX}
groups in the order of their names are shown by name; `stilltide_replicated_subscriptions` counts
all groups. `standing` says why a group is where it is:

{_standings()}""",
    TABLE,
)


class GroupMetrics(Collector):
    """The families of all controllers of a worker.

    Args:
        cluster: value of the label on each sample.
        stats: figures of the controllers that serve, by data partition.

    Attributes:
        snapshot_taken: takes how long a position snapshot took, in seconds.
    """

    def __init__(
        self, cluster: str, stats: Callable[[], Mapping[TopicPartition, ControllerStats]]
    ) -> None:
        self._cluster = cluster
        self._stats = stats
        self._snapshot_s = histograms(_SNAPSHOT_TIMES, None)[
            "stilltide_replication_snapshot_seconds"
        ]
        self.snapshot_taken = self._snapshot_s.labels(cluster).observe

    def collect(self) -> Iterable[Metric]:
        """The families as they are now."""
        cluster = self._cluster
        found = [
            ((cluster, data.topic, str(data.partition)), one) for data, one in self._stats().items()
        ]
        standings = Counter[Standing]()
        for _, one in found:
            standings.update(one.standings)
        lags = [((*of, group), lag) for of, one in found for group, lag in one.lags.items()]
        again = [((*of, group), n) for of, one in found for group, n in one.read_again.items()]
        yield from collected(_SNAPSHOTS, found)
        yield from collected(_LINKS, [(of, one.connected) for of, one in found])
        yield from self._snapshot_s.collect()
        yield from collected(_STANDINGS, [((cluster,), standings)])
        yield from collected(_LAGS, lags)
        yield from collected(_READ_AGAIN, again)
