"""Prometheus families of `stilltide table follow`.

*Source*: docs/tables.md.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stilltide.pipeline.metrics.families import Family, Kind, Section, collected
from stilltide.schemas.values import TopicPartition


class TableFigures(NamedTuple):
    """The figures of a table.

    Attributes:
        batch: number of the table's last batch.
        positions: by partition, the next offset that the table does not hold.
        left: offsets up to the stable ends that the table does not hold.
        waiting: partitions that wait for the outcome of a transaction.
        batches: batches that this process has stored.
        records: records that this process has stored.
        batch_s: time that the last batch took, seconds; 0 without any.
        stored_s: when the last run ended, seconds since 1970.
    """

    batch: int
    positions: Mapping[TopicPartition, int]
    left: int
    waiting: int
    batches: int
    records: int
    batch_s: float
    stored_s: float


PARTITIONS: tuple[Family[int], ...] = (
    Family(
        "stilltide_table_stored_until",
        Kind.GAUGE,
        "offsets",
        ("topic", "partition"),
        "End offset of what the table holds.",
        read=float,
    ),
)

TABLE: tuple[Family[TableFigures], ...] = (
    Family(
        "stilltide_table_batch",
        Kind.GAUGE,
        "batches",
        (),
        "Number of the table's last batch.",
        read=lambda one: float(one.batch),
    ),
    Family(
        "stilltide_table_behind",
        Kind.GAUGE,
        "offsets",
        (),
        "Offsets up to the last stable offsets that the table does not hold.",
        "Control records are offsets too.",
        read=lambda one: float(one.left),
    ),
    Family(
        "stilltide_table_waiting_partitions",
        Kind.GAUGE,
        "partitions",
        (),
        "Partitions whose next record waits for the outcome of its transaction.",
        read=lambda one: float(one.waiting),
    ),
    Family(
        "stilltide_table_batches_total",
        Kind.COUNTER,
        "batches",
        (),
        "Batches that this process has stored.",
        read=lambda one: float(one.batches),
    ),
    Family(
        "stilltide_table_records_total",
        Kind.COUNTER,
        "records",
        (),
        "Records that this process has stored.",
        read=lambda one: float(one.records),
    ),
    Family(
        "stilltide_table_last_batch_duration_seconds",
        Kind.GAUGE,
        "seconds",
        (),
        "Time that the last batch took.",
        read=lambda one: one.batch_s,
    ),
    Family(
        "stilltide_table_last_run_seconds",
        Kind.GAUGE,
        "seconds",
        (),
        "When the last run ended, in seconds since 1970.",
        read=lambda one: one.stored_s,
    ),
)

SECTION = Section(
    "Tables",
    """\
`stilltide table follow` shows these families with `--web-port`, from the end of its first run
on.""",
    (*TABLE, *PARTITIONS),
)


class TableMetrics(Collector):
    """The families of the table; none before the first run has ended.

    Args:
        figures: as of now.
    """

    def __init__(self, figures: Callable[[], TableFigures | None]) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        """The families as they are now."""
        found = self._figures()
        if found is None:
            return
        yield from collected(TABLE, [((), found)])
        yield from collected(
            PARTITIONS,
            (((it.topic, str(it.partition)), end) for it, end in found.positions.items()),
        )
