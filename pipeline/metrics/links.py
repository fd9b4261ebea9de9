"""Prometheus families of links, read from the progress of each link.

*Source*: docs/protocols/h-links.md.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stilltide.connectors.clock import Clock
from stilltide.pipeline.core.links.progress import (
    ConfigProgress,
    LinkProgress,
    PartitionProgress,
)
from stilltide.pipeline.metrics.families import Family, Kind, Section, collected

_LABELS = ("source", "target", "topic", "partition")


class _Figures(NamedTuple):
    """One data partition of a link, at the time of a scrape."""

    progress: PartitionProgress
    now_ms: int


TABLE: tuple[Family[_Figures], ...] = (
    Family(
        "stilltide_link_copied_records_total",
        Kind.COUNTER,
        "records",
        _LABELS,
        "Records copied.",
        "Records of transactions that did not commit do not count.",
        read=lambda one: one.progress.records,
    ),
    Family(
        "stilltide_link_copied_bytes_total",
        Kind.COUNTER,
        "bytes",
        _LABELS,
        "Bytes of their keys and values.",
        read=lambda one: one.progress.size_bytes,
    ),
    Family(
        "stilltide_link_lost_records_total",
        Kind.COUNTER,
        "offsets",
        _LABELS,
        "Offsets that left the log before they were copied.",
        "The log is the source's; retention or `DeleteRecords` removed them.",
        read=lambda one: one.progress.lost,
    ),
    Family(
        "stilltide_link_keyless_records_total",
        Kind.COUNTER,
        "records",
        _LABELS,
        "Records without key that were not copied, since the target's topic compacts.",
        "They are left out, or the partition waits at one of them; the log says which.",
        read=lambda one: one.progress.keyless,
    ),
    Family(
        "stilltide_link_withheld_records_total",
        Kind.COUNTER,
        "records",
        _LABELS,
        "Records that were not copied because no reader may see them.",
        "Their `txn` header is malformed, or they came after the end of their transaction; the log "
        "names the first one. Records of aborted transactions do not count.",
        read=lambda one: one.progress.withheld,
    ),
    Family(
        "stilltide_link_lag_records",
        Kind.GAUGE,
        "offsets",
        _LABELS,
        "Offsets that were not passed yet.",
        "They lie below the source's last stable offset, as the link saw that offset last.",
        read=lambda one: one.progress.lag,
    ),
    Family(
        "stilltide_link_lag_seconds",
        Kind.GAUGE,
        "seconds",
        _LABELS,
        "Age of the last copied record, in s.",
        "0 unless other records wait behind that record.",
        read=lambda one: one.progress.lag_s(one.now_ms),
    ),
)

CONFIGS: tuple[Family[ConfigProgress], ...] = (
    Family(
        "stilltide_link_configs_carried_total",
        Kind.COUNTER,
        "configs",
        _LABELS[:3],
        "Configs of the topic that the link has set or unset on the target.",
        read=lambda one: one.carried,
    ),
    Family(
        "stilltide_link_configs_differing",
        Kind.GAUGE,
        "configs",
        _LABELS[:3],
        "Configs of the topic that differ and are not altered.",
        "The log names them. Those of `replicate_configs_except` do not count.",
        read=lambda one: one.differing,
    ),
    Family(
        "stilltide_link_configs_refused",
        Kind.GAUGE,
        "1",
        _LABELS[:3],
        "1 while a cluster refuses to show or to alter the configs of the topic, else 0.",
        "`/readyz` and the log say why; the link goes on copying.",
        read=lambda one: bool(one.refused),
    ),
)

SECTION = Section(
    "Links",
    """\
`stilltide replicate` shows these families with `--web-port`, and so does the worker that runs the
links of `replicate_from`. `source` and `target` are the names of the clusters; `topic` and
`partition` are those of the data, the same on both. `stilltide publish` and workers with the
setting `publish` show them, too: `source` is then the name of the publish, such as
`publish:orders:orders.committed`, and `topic` the topic of the copies.""",
    (*TABLE, *CONFIGS),
)


class LinkMetrics(Collector):
    """The families of the links into one cluster that this process runs.

    Args:
        target: name of the cluster.
        progress: of each link, by the name of the cluster that it copies from.
        clock: wall clock.
    """

    def __init__(
        self, target: str, progress: Callable[[], Mapping[str, LinkProgress]], clock: Clock
    ) -> None:
        self._target = target
        self._progress = progress
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        """The families as they are now."""
        now_ms = self._clock.now_ms()
        links = sorted(self._progress().items())
        figures = [
            ((source, self._target, data.topic, str(data.partition)), _Figures(one, now_ms))
            for source, link in links
            for data, one in sorted(link.partitions.items())
        ]
        configs = [
            ((source, self._target, topic), one)
            for source, link in links
            for topic, one in sorted(link.configs.items())
        ]
        yield from collected(TABLE, figures)
        yield from collected(CONFIGS, configs)
