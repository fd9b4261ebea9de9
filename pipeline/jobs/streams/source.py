"""A streaming source of bounds: rows say which offsets the next batch holds, records are not read.

*Source*: docs/protocols K1, K6.

*Invariants*: an offset that Spark has stored is followed by the offset that was planned from it.
PySpark before 4.2 does not say where a query stands when it asks for the latest offset, so the
source is told at its start, from the checkpoint.

Spark runs the source in a process of its own, without a session: ranges past the last snapshot are
looked through by a Kafka client there.

The offsets of a streaming query, as its checkpoint keeps them.

*Source*: docs/protocols K4, K6.
*Invariants*: an offset names the ranges of the batch that ends there, so that a batch that is
repeated after a crash has the same ranges.
"""

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.core.tables.increments import Increments, ScanTails, StoreBatch
from stilltide.pipeline.errors import TableError
from stilltide.pipeline.jobs.tables.batches import EvidenceNow, TopicEvidence
from stilltide.pipeline.jobs.tables.files import TableFiles
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.tables.progress import (
    NOTHING,
    TableProgress,
)
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

_OFFSETS = "offsets"


class StreamOffset(NamedTuple):
    """Where a batch of a query ends.

    Attributes:
        progress: positions and topic ids after the batch.
        reads: the ranges of the batch.
    """

    progress: TableProgress
    reads: Sequence[OffsetRange] = ()

    def to_dict(self) -> dict[str, str]:
        """What Spark stores; values are text, as Spark's interface allows no lists."""
        reads = [[*read.data, read.start, read.end] for read in self.reads]
        return {"progress": self.progress.to_text(), "reads": json.dumps(reads)}


BEGIN = StreamOffset(NOTHING)
"""The offset of a new query."""


def offset_of(body: Mapping[str, str]) -> StreamOffset:
    """Reads what `to_dict` returned.

    Raises:
        TableError: it is the offset of something else, or of a later version.
    """
    try:
        reads = [
            OffsetRange(TopicPartition(topic, number), Offset(start), EndOffset(end))
            for topic, number, start, end in json.loads(body["reads"])
        ]
        return StreamOffset(TableProgress.from_text(body["progress"]), reads)
    except (DecodeError, ValueError, KeyError, TypeError) as error:
        raise TableError(
            "the checkpoint is of another source",
            detail=str(error),
            hint="use the checkpoint of this query, or a new one",
        ) from error


def last_offset(checkpoint: TableFiles) -> StreamOffset:
    """The offset of the last batch that a query has begun; `BEGIN` for a new checkpoint.

    Raises:
        TableError: the checkpoint is of a query with another source, or damaged.
    """
    numbers = [int(name) for name in checkpoint.names(_OFFSETS) if name.isdigit()]
    if not numbers:
        return BEGIN
    name = f"{_OFFSETS}/{max(numbers)}"
    try:
        return offset_of(json.loads(checkpoint.read(name).splitlines()[-1]))
    except (OSError, ValueError, IndexError) as error:
        raise TableError(
            f"the checkpoint {checkpoint.uri}/{name} cannot be read",
            detail=str(error),
            hint="restore it from a copy, or use a new checkpoint",
        ) from error


BOUNDS_DDL = "topic string, partition int, first bigint, until bigint"
"""One row for each range of offsets `[first, until)`."""

SOURCE = "stilltide_bounds"

_PRIVATE = "secret_options"
"""Name of the option with TLS and SASL: Spark shows no value of an option with this word."""


class SourceOptions(NamedTuple):
    """The options of the source.

    Attributes:
        config: the cluster.
        topics: names of topics.
        records_max: approximate limit of offsets in a batch.
        by_index: as of `committed_batches`.
        begun: offset of the last batch that the query has begun.
    """

    config: KafkaConfig
    topics: Sequence[str]
    records_max: int
    by_index: bool
    begun: StreamOffset

    def to_dict(self) -> dict[str, str]:
        """As options of Spark."""
        return {
            "bootstrap": self.config.bootstrap_servers,
            "prefix": self.config.own_prefix,
            _PRIVATE: json.dumps(dict(self.config.extra)),
            "topics": json.dumps(list(self.topics)),
            "records_max": str(self.records_max),
            "by_index": str(int(self.by_index)),
            "begun": json.dumps(self.begun.to_dict()),
        }

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Reads what `to_dict` returned."""
        config = KafkaConfig(
            options["bootstrap"],
            own_prefix=options["prefix"],
            extra=json.loads(options[_PRIVATE]),
        )
        return cls(
            config,
            json.loads(options["topics"]),
            int(options["records_max"]),
            options["by_index"] == "1",
            offset_of(json.loads(options["begun"])),
        )


class BoundsSource(DataSource):
    """The source, for `spark.dataSource.register`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return SOURCE

    def schema(self) -> str:
        """`BOUNDS_DDL`."""
        return BOUNDS_DDL

    def streamReader(self, schema: StructType) -> "BoundsReader":  # noqa: ARG002, N802 - Spark's name
        """The reader of a query."""
        return BoundsReader(dict(self.options))


def _available_now() -> type:
    """Spark's mixin of sources that read in several batches with `availableNow`, if it has one."""
    try:
        return importlib.import_module(
            "pyspark.sql.streaming.datasource"
        ).SupportsTriggerAvailableNow
    except (ImportError, AttributeError):
        return object


HAS_AVAILABLE_NOW = _available_now() is not object
"""Whether `availableNow` respects limits of batches: from PySpark 4.2 on."""


class BoundsReader(DataSourceStreamReader, _available_now()):  # type: ignore[misc]
    """The reader of a query; its state is that of `Increments` (K6).

    Args:
        options: as `SourceOptions.to_dict`.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._source = SourceOptions.of(options)
        self._increments: Increments | None = None
        self._evidence: TopicEvidence | None = None
        self._planned = self._source.begun
        self._frozen: EvidenceNow | None = None

    def __reduce__(self) -> tuple[type["BoundsReader"], tuple[dict[str, str]]]:
        """A task needs only the options."""
        return BoundsReader, (self._options,)

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        """Before the first batch, whose ranges begin at the log starts."""
        return self._source.begun.to_dict()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """What is decided now is all that the query reads."""
        self._frozen = self._opened().read_on()

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, str]:  # noqa: ARG002, N802 - Spark's name
        """The end of the next batch; the end of the last one if nothing more is decided."""
        at = self._planned if start is None else offset_of(start)
        increments = self._standing(at.progress)
        evidence = self._opened()
        known = self._frozen or evidence.read_on()
        waiting = increments.blocked.items()
        decided = [data for data, first in waiting if known.is_decided(data, first)]
        increments.bounds_read(known.bounds(), decided)
        effects = increments.plan()
        if effects and isinstance(effects[0], ScanTails):
            effects = increments.scanned(evidence.first_undecided(effects[0].reads, known))
        for effect in effects:
            assert isinstance(effect, StoreBatch)
            return StreamOffset(effect.progress, effect.reads).to_dict()
        return at.to_dict()

    def partitions(
        self, start: Mapping[str, str], end: Mapping[str, str]
    ) -> Sequence[InputPartition]:
        """The ranges of the batch, as one task: no record is read."""
        before, after = offset_of(start), offset_of(end)
        if before == after:
            return [InputPartition([])]
        _check_follows(before.progress, after)
        self._planned = after
        return [InputPartition([(*read.data, read.start, read.end) for read in after.reads])]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """The rows of a batch."""
        yield from partition.value

    def commit(self, end: Mapping[str, str]) -> None:
        """Nothing: the checkpoint is the query's."""

    def stop(self) -> None:
        """Closes the connections."""
        evidence, self._evidence = self._evidence, None
        if evidence is not None:
            evidence.__exit__(None, None, None)

    def _standing(self, progress: TableProgress) -> Increments:
        """The planner, behind the batch that Spark has stored."""
        if self._increments is not None:
            self._increments.batch_stored(progress)
        if self._increments is None or self._increments.stored != progress:
            self._increments = Increments(self._source.topics, progress, self._source.records_max)
        return self._increments

    def _opened(self) -> TopicEvidence:
        if self._evidence is None:
            source = self._source
            connector = KafkaConnector(source.config)
            topics = sorted(set(source.topics))
            self._evidence = TopicEvidence(connector, topics, by_index=source.by_index).__enter__()
        return self._evidence


def _check_follows(before: TableProgress, after: StreamOffset) -> None:
    """A batch begins where the one before it ends."""
    for read in after.reads:
        if before.positions.get(read.data, read.start) != read.start:
            raise TableError(
                "the batch does not follow the one before it",
                detail=f"it begins at {read.start}, the one before ends at"
                f" {before.positions[read.data]}",
                hint="was a file of the checkpoint restored or removed? use a new checkpoint",
                data=read.data,
            )
