"""What a worker shows of replicated subscriptions, as Prometheus families.

*Source*: protocols.md I. Each sample has the label `cluster`: the worker's own. Topic and partition
are of the data.

| name | type | unit | labels | meaning |
| --- | --- | --- | --- | --- |
| stilltide_replication_snapshots_pending | gauge | snapshots | partition, topic | asked for and \
not complete: 0 or 1 |
| stilltide_replication_snapshots_completed_total | counter | snapshots | partition, topic | \
durable, since the worker has the partition |
| stilltide_replication_snapshots_timed_out_total | counter | snapshots | partition, topic | given \
up: another cluster, or a link, did not answer in time |
| stilltide_replication_snapshot_seconds | histogram | seconds | | from its first request until a \
snapshot is durable |
| stilltide_replicated_subscriptions | gauge | subscriptions | standing | groups on data \
partitions, by why they are where they are |
| stilltide_subscription_update_lag_records | gauge | offsets | group, partition, topic | passed \
by the group here and told to no other cluster yet |
| stilltide_subscription_update_lag_seconds | gauge | seconds | group, partition, topic | for how \
long there have been such offsets, 0 without |
| stilltide_subscription_read_again_records | gauge | records | group, partition, topic | come \
again if the group's consumers begin here now, at most; a `Subscription` skips them |

`standing` is one of `core.replication.group.Standing`, in lower case. The last family is what
`stilltide group describe` calls `read_again_others`, as far as this cluster has heard; of a
group that is more than 10 000 records behind it is a bound. Only groups that are replicated are
shown by name, at most 1000 of a data partition, the first by name; the counts by standing have all.

*Invariants*: nothing is done for a record; everything is read from the controllers when it is asked
for, so a partition that moved away leaves no sample behind.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stilltide.connectors.clock import Clock
from stilltide.pipeline.core.groups.group import Standing
from stilltide.pipeline.drivers.groups.controller import ControlledPartition
from stilltide.pipeline.drivers.groups.owner import shown_groups
from stilltide.schemas.values import TopicPartition

SNAPSHOT_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

_OF_DATA = ("cluster", "topic", "partition")
_OF_GROUP = (*_OF_DATA, "group")


class SubscriptionMetrics(Collector):
    """Of all replication controllers of a worker.

    Args:
        cluster: value of the label on each sample.
        served: data partitions whose groups it looks after.
        clock: wall clock.
    """

    def __init__(
        self,
        cluster: str,
        served: Callable[[], Mapping[TopicPartition, ControlledPartition]],
        clock: Clock,
    ) -> None:
        self._cluster = cluster
        self._served = served
        self._clock = clock
        self._snapshot_s = Histogram(
            "stilltide_replication_snapshot_seconds",
            "From its first request until a snapshot is durable, in seconds.",
            ("cluster",),
            buckets=SNAPSHOT_BUCKETS_S,
            registry=None,
        )
        self.snapshot_taken = self._snapshot_s.labels(cluster).observe

    def collect(self) -> Iterable[Metric]:
        """The families as they are now."""
        served = self._served()
        yield from self._of_snapshots(served)
        yield from self._snapshot_s.collect()
        yield from self._of_groups(served)

    def _labels(self, data: TopicPartition) -> tuple[str, str, str]:
        return (self._cluster, data.topic, str(data.partition))

    def _of_snapshots(
        self, served: Mapping[TopicPartition, ControlledPartition]
    ) -> Iterable[Metric]:
        pending = GaugeMetricFamily(
            "stilltide_replication_snapshots_pending",
            "Snapshots asked for and not complete.",
            labels=_OF_DATA,
        )
        completed = CounterMetricFamily(
            "stilltide_replication_snapshots_completed", "Snapshots taken.", labels=_OF_DATA
        )
        timed_out = CounterMetricFamily(
            "stilltide_replication_snapshots_timed_out", "Snapshots given up.", labels=_OF_DATA
        )
        for data, one in served.items():
            builder, labels = one.builder, self._labels(data)
            pending.add_metric(labels, builder.pending_since_ms is not None)
            completed.add_metric(labels, builder.counts.completed)
            timed_out.add_metric(labels, builder.counts.timed_out)
        return pending, completed, timed_out

    def _of_groups(self, served: Mapping[TopicPartition, ControlledPartition]) -> Iterable[Metric]:
        by_standing = GaugeMetricFamily(
            "stilltide_replicated_subscriptions",
            "Groups on data partitions, by why they are where they are.",
            labels=("cluster", "standing"),
        )
        lag, lag_s, again = (
            GaugeMetricFamily(f"stilltide_subscription_{name}", text, labels=_OF_GROUP)
            for name, text in (
                ("update_lag_records", "Offsets passed here and told to no other cluster yet."),
                ("update_lag_seconds", "For how long there have been such offsets, in seconds."),
                ("read_again_records", "Records that come again to who begins here now, at most."),
            )
        )
        counts, now_ms = Counter[Standing](), self._clock.now_ms()
        for data, one in served.items():
            counts.update(one.machine.standing(group) for group in one.groups)
            for group in shown_groups(one):
                labels, found = (*self._labels(data), group), one.machine.lag(group, now_ms)
                if found is not None:
                    lag.add_metric(labels, found.untold)
                    lag_s.add_metric(labels, found.untold_ms / 1000)
                if group in one.read_again:
                    again.add_metric(labels, one.read_again[group])
        for standing in Standing:
            by_standing.add_metric((self._cluster, standing.name.lower()), counts[standing])
        return by_standing, lag, lag_s, again
