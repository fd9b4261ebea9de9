"""What indexers of native transactions count; `metrics.worker` says what each family means.

*Source*: protocols.md F3.
"""

from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter


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
    """What is counted of indexers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._fenced, self._failed = (
            Counter(
                f"stilltide_aborted_index_{name}", text, ("cluster", "partition"), registry=registry
            )
            for name, text in (
                ("fenced", "Times that another indexer took over."),
                ("failed", "Times that the indexer began again after an error."),
            )
        )

    def of(self, cluster: str, partition: int) -> IndexMetrics:
        """Of one indexer."""
        labels = (cluster, str(partition))
        return IndexMetrics(self._fenced.labels(*labels), self._failed.labels(*labels))
