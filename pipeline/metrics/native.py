"""Prometheus families of the indexers of native transactions.

*Source*: docs/protocols/f-native-transactions.md, F3.
"""

from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter

from stilltide.pipeline.metrics.families import Family, Kind, Section, counters

_LABELS = ("cluster", "partition")


class IndexStats(NamedTuple):
    """Figures of one partition of aborted-index, over the data partitions that belong there.

    Attributes:
        data_partitions: how many are indexed.
        resting: how many cannot be, for now.
        range_count: of aborted batches, written or not.
        lag: offsets from what is indexed to the last stable offset, the largest.
    """

    data_partitions: int = 0
    resting: int = 0
    range_count: int = 0
    lag: int = 0


TABLE: tuple[Family[IndexStats], ...] = (
    Family(
        "stilltide_aborted_index_data_partitions",
        Kind.GAUGE,
        "partitions",
        (*_LABELS, "state"),
        "Data partitions of the indexer.",
        "`state` is `indexed`, or `resting` while the partition cannot be indexed.",
        read=lambda one: {"indexed": one.data_partitions, "resting": one.resting},
    ),
    Family(
        "stilltide_aborted_index_ranges",
        Kind.GAUGE,
        "ranges",
        _LABELS,
        "Ranges of aborted batches.",
        read=lambda one: one.range_count,
    ),
    Family(
        "stilltide_aborted_index_lag",
        Kind.GAUGE,
        "offsets",
        _LABELS,
        "Offsets from what is indexed to the last stable offset; the largest.",
        read=lambda one: one.lag,
    ),
    Family(
        "stilltide_aborted_index_fenced_total",
        Kind.COUNTER,
        "times",
        _LABELS,
        "Times that another indexer took over.",
    ),
    Family(
        "stilltide_aborted_index_failed_total",
        Kind.COUNTER,
        "times",
        _LABELS,
        "Times that the indexer began again after an error.",
    ),
)

SECTION = Section(
    "Indexers of native transactions",
    """\
Workers with the setting `index_topics` show these families, and so does `stilltide index run` with
`--web-port`. `partition` is the partition of `stilltide.aborted-index`.""",
    TABLE,
)


@dataclass(frozen=True, slots=True)
class IndexMetrics:
    """What the indexer of one partition of aborted-index counts.

    Attributes:
        fenced: how often another indexer took over.
        failed: how often it began again after an error.
    """

    fenced: Counter
    failed: Counter


class IndexFamilies:
    """The counters of all indexers of a worker."""

    def __init__(self, registry: CollectorRegistry) -> None:
        made = counters(TABLE, registry)
        self._fenced = made["stilltide_aborted_index_fenced_total"]
        self._failed = made["stilltide_aborted_index_failed_total"]

    def of(self, cluster: str, partition: int) -> IndexMetrics:
        """Those of one indexer."""
        labels = (cluster, str(partition))
        return IndexMetrics(self._fenced.labels(*labels), self._failed.labels(*labels))
