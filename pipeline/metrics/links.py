"""What links show, as Prometheus families.

*Source*: protocols.md H. Each sample has the labels `source`, `target`, `topic` and `partition`.

| name | type | unit | meaning |
| --- | --- | --- | --- |
| stilltide_link_copied_records_total | counter | records | copied, also by transactions that did \
not commit |
| stilltide_link_copied_bytes_total | counter | bytes | of their keys and values |
| stilltide_link_lost_records_total | counter | offsets | left the source's log before they were \
copied |
| stilltide_link_lag_records | gauge | offsets | below the source's last stable offset and not \
passed, at the last look |
| stilltide_link_lag_seconds | gauge | seconds | age of the last copied record while others wait \
behind it, else 0 |

*Invariants*: nothing is done for a record; everything is read from the link when it is asked for.
"""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stilltide.connectors.clock import Clock
from stilltide.pipeline.drivers.links.progress import LinkProgress, PartitionProgress

_LABELS = ("source", "target", "topic", "partition")

_COUNTERS: tuple[tuple[str, str, Callable[[PartitionProgress], float]], ...] = (
    ("copied_records", "Records copied.", lambda it: it.records),
    ("copied_bytes", "Bytes of their keys and values.", lambda it: it.size_bytes),
    ("lost_records", "Offsets that left the log before they were copied.", lambda it: it.lost),
)


class LinkMetrics(Collector):
    """Of the links into one cluster that this process runs.

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
        found = [
            ((source, self._target, data.topic, str(data.partition)), one)
            for source, link in sorted(self._progress().items())
            for data, one in sorted(link.partitions.items())
        ]
        for name, text, value in _COUNTERS:
            counter = CounterMetricFamily(f"stilltide_link_{name}", text, labels=_LABELS)
            for labels, one in found:
                counter.add_metric(labels, value(one))
            yield counter
        lag = GaugeMetricFamily(
            "stilltide_link_lag_records", "Offsets that were not passed yet.", labels=_LABELS
        )
        lag_s = GaugeMetricFamily(
            "stilltide_link_lag_seconds", "Age of the last copied record, in s.", labels=_LABELS
        )
        for labels, one in found:
            lag.add_metric(labels, one.lag)
            lag_s.add_metric(labels, one.lag_s(now_ms))
        yield from (lag, lag_s)
