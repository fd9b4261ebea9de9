"""Reads committed records in bounded batches, each record exactly once.

*Source*: docs/protocols K1, K3. Works for coordinated transactions, native ones, and both in one
topic. Blocks; may be called from a notebook.

*Invariants*: a batch has the same records whenever it is evaluated; the evidence is read on from
batch to batch, not from the beginning.

Refuses: what `Increments` and `gather_evidence` refuse.

The evidence of both kinds of transaction, read on before each batch. Blocks.

*Source*: docs/protocols K1, D2, D4, F4.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Self

from pyspark.sql import DataFrame, SparkSession

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.kafka.config import Cluster, config_of
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.names import check_topic_names
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import Fetching, LogReader
from stilltide.connectors.spark.errors import check_session, spark_errors
from stilltide.connectors.spark.read_committed import (
    DecidingFrames,
    classify,
    committed,
    with_txn,
)
from stilltide.connectors.spark.source import read_ranges
from stilltide.pipeline.core.tables.increments import (
    Increments,
    PartitionBounds,
    ScanTails,
    StoreBatch,
    TopicBounds,
    WaitsFor,
)
from stilltide.pipeline.drivers.native.evidence import FollowedIndex, NativeEvidence
from stilltide.pipeline.drivers.read_committed.browse import find_first_undecided
from stilltide.pipeline.drivers.snapshots.outcomes import FollowedOutcomes, TopicOutcomes
from stilltide.pipeline.jobs.audits.undecided import first_undecided
from stilltide.pipeline.jobs.blocking import BlockingLoop
from stilltide.pipeline.jobs.native_committed import native_committed
from stilltide.pipeline.jobs.outcomes import decisions_of
from stilltide.schemas.tables.progress import NOTHING, TableProgress
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition, TxnId


class EvidenceNow(NamedTuple):
    """What is known as of one moment.

    Attributes:
        outcomes: of coordinated transactions.
        native: aborted ranges of native transactions; None if Kafka's client filters them.
    """

    outcomes: TopicOutcomes
    native: NativeEvidence | None

    def bounds(self) -> TopicBounds:
        """The bounds of the next batch.

        Raises:
            AbortedIndexError: the index does not cover the beginning of a partition with records.
        """
        if self.native is not None:
            for data, problem in self.native.problems.items():
                if data not in self.native.covered_to:
                    raise problem
        bounds: dict[TopicPartition, PartitionBounds] = {}
        for read in self.outcomes.data:
            snapshot, end = self.outcomes.snapshots.get(read.data), read.end
            if self.native is not None:
                end = min(end, self.native.covered_to.get(read.data, EndOffset(read.start)))
            decided = snapshot.max_read_position if snapshot else EndOffset(0)
            bounds[read.data] = PartitionBounds(read.start, end, decided)
        return TopicBounds(self.outcomes.topic_ids, bounds)

    def is_decided(self, data: TopicPartition, first: WaitsFor) -> bool:
        """Whether the transaction of a record that was undecided has an outcome now."""
        snapshot = self.outcomes.snapshots.get(data)
        if snapshot is not None and snapshot.visible(first.offset, *first.txn) is not None:
            return True
        return any(it.txn == first.txn and it.data == data for it in self.outcomes.markers)


class TopicEvidence:
    """The evidence for some topics.

    Args:
        connector: the cluster.
        topics: at least one.
        by_index: whether aborted native records are found by aborted-index.
    """

    def __init__(self, connector: Connector, topics: list[str], *, by_index: bool) -> None:
        self._connector = connector
        self._topics = topics
        self._by_index = by_index
        self._loop = BlockingLoop()
        self._outcomes: FollowedOutcomes | None = None
        self._index: FollowedIndex | None = None
        self._reader: LogReader | None = None

    def __enter__(self) -> Self:
        self._loop.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            self._loop.run(self._close())
        finally:
            self._loop.__exit__(*raised)

    def read_on(self) -> EvidenceNow:
        """What is known now.

        Raises:
            FatalError: a topic does not exist.
            SnapshotError, DecodeError, RetriableError: as `gather_evidence` and `gather_native`.
        """
        return self._loop.run(self._read_on())

    def first_undecided(
        self, reads: Sequence[OffsetRange], known: EvidenceNow
    ) -> dict[TopicPartition, WaitsFor]:
        """Looks through ranges by a Kafka client, as `find_first_undecided`."""
        waits = self._loop.run(self._first_undecided(reads, known))
        return {data: WaitsFor(*first) for data, first in waits.items()}

    async def _first_undecided(
        self, reads: Sequence[OffsetRange], known: EvidenceNow
    ) -> dict[TopicPartition, tuple[Offset, TxnId]]:
        if self._reader is None:
            self._reader = self._connector.reader("tails", fetching=Fetching.IN_BULK)
        return await find_first_undecided(self._reader, reads, known.outcomes)

    async def _read_on(self) -> EvidenceNow:
        if self._outcomes is None:
            self._outcomes = FollowedOutcomes(self._connector, self._topics)
            if self._by_index:
                self._index = FollowedIndex(self._connector, self._topics)
        outcomes = await self._outcomes.read_on()
        native = None if self._index is None else await self._index.read_on()
        if native is not None and native.topic_ids != outcomes.topic_ids:
            raise RetriableError("a topic was created again while it was read", hint="try again")
        return EvidenceNow(outcomes, native)

    async def _close(self) -> None:
        for resource in (self._outcomes, self._index, self._reader):
            if resource is not None:
                await resource.close()


RECORDS_MAX = 1_000_000
"""Offsets of a batch by default: some seconds of Spark's work."""


class CommittedBatch(NamedTuple):
    """Records, and the progress after them.

    Attributes:
        frame: the records: Kafka's columns, and `txn`, which is null for records without a
            coordinated transaction; `headers` only if asked for.
        bounds: the ranges of offsets that the records are from.
        progress: where the next batch begins; to be stored in one step with the frame's output.
    """

    frame: DataFrame
    bounds: Sequence[OffsetRange]
    progress: TableProgress


def committed_batches(
    spark: SparkSession,
    cluster: Cluster,
    topics: Sequence[str],
    start: TableProgress = NOTHING,
    *,
    records_max: int = RECORDS_MAX,
    by_index: bool = False,
    headers: bool = False,
) -> Iterator[CommittedBatch]:
    """Batches from `start` up to what is decided and stable when the first batch is made.

    A batch counts as stored when the next one is asked for. A partition ends at its first record
    whose transaction has no outcome yet; call the function again later to go on.

    Args:
        spark: a session with the Kafka source's jars (`connectors.spark.session`).
        cluster: addresses of brokers, or a `KafkaConfig` for a cluster with TLS or SASL.
        topics: names of topics, at least one.
        start: the progress of the last batch whose output is stored.
        records_max: approximate limit of offsets in a batch, over all partitions; >= 1.
        by_index: whether records of aborted native transactions are left out by aborted-index,
            instead of by the Kafka client; batches then end where the index ends.
        headers: whether to keep the headers of applications.

    Raises:
        TableError: `start` is of other topics, of a topic that was created again, below a log
            start, or past a log's end.
        FatalError: a topic does not exist, or Spark fails.
        SnapshotError: outcomes have a gap; see `gather_evidence`.
        AbortedIndexError: with `by_index`: the index does not begin where a partition does.
        DecodeError, RetriableError: as `gather_evidence` raises.
    """
    with reading_batches(
        spark,
        cluster,
        topics,
        start,
        records_max=records_max,
        by_index=by_index,
        headers=headers,
    ) as reader:
        reader.read_on()
        while (batch := reader.next_batch()) is not None:
            yield batch
            reader.stored(batch)


class IncrementReader:
    """Makes batches, one after the other; made by `reading_batches`.

    Args:
        spark: the session.
        cluster: the cluster.
        evidence: of the topics; open.
        increments: plans the batches.
        headers: as of `committed_batches`.
    """

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        evidence: TopicEvidence,
        increments: Increments,
        *,
        headers: bool,
    ) -> None:
        self._headers = headers
        self._spark = spark
        self._cluster = cluster
        self._evidence = evidence
        self._increments = increments
        self._known: EvidenceNow | None = None
        self._decisions: DecidingFrames | None = None

    @property
    def progress(self) -> TableProgress:
        """The progress after the last batch that was stored."""
        return self._increments.stored

    @property
    def left(self) -> int:
        """Offsets up to the stable ends, as of `read_on`, that are not stored."""
        return self._increments.left

    @property
    def blocked(self) -> Mapping[TopicPartition, WaitsFor]:
        """The first undecided record of the partitions that wait for an outcome."""
        return self._increments.blocked

    def read_on(self) -> None:
        """Learns what is decided and stable now; raises as `committed_batches`."""
        known = self._evidence.read_on()
        waiting = self._increments.blocked.items()
        decided = [data for data, first in waiting if known.is_decided(data, first)]
        self._increments.bounds_read(known.bounds(), decided)
        self._known, self._decisions = known, None

    def next_batch(self) -> CommittedBatch | None:
        """The next batch as of the last `read_on`; None: everything decided is stored."""
        assert self._known is not None, "`read_on` comes first"
        effects = self._increments.plan()
        while effects:
            (effect,) = effects
            with spark_errors(self._cluster, sorted(self._known.outcomes.topic_ids)):
                if isinstance(effect, StoreBatch):
                    return self._batch(effect)
                effects = self._increments.scanned(self._scan(effect))
        return None

    def stored(self, batch: CommittedBatch) -> None:
        """Takes that the output of the batch and its progress are stored."""
        self._increments.batch_stored(batch.progress)

    def _batch(self, effect: StoreBatch) -> CommittedBatch:
        frame = committed(self._read(effect.reads), self._decided(), headers=self._headers)
        return CommittedBatch(frame, effect.reads, effect.progress)

    def _scan(self, effect: ScanTails) -> dict[TopicPartition, WaitsFor]:
        shown = classify(with_txn(self._read(effect.reads)), self._decided())
        return {data: WaitsFor(*first) for data, first in first_undecided(shown).items()}

    def _decided(self) -> DecidingFrames:
        """The frames that decide all batches until the next `read_on`."""
        assert self._known is not None, "`read_on` comes first"
        if self._decisions is None:
            reads = self._increments.readable()
            outcomes = self._known.outcomes
            self._decisions = decisions_of(self._spark, outcomes, reads, audited=False)
        return self._decisions

    def _read(self, reads: Sequence[OffsetRange]) -> DataFrame:
        assert self._known is not None, "`read_on` comes first"
        native = self._known.native
        if native is None:
            return read_ranges(self._spark, self._cluster, reads)
        return native_committed(self._spark, self._cluster, native, reads)


@contextmanager
def reading_batches(
    spark: SparkSession,
    cluster: Cluster,
    topics: Sequence[str],
    start: TableProgress,
    *,
    records_max: int = RECORDS_MAX,
    by_index: bool = False,
    headers: bool = False,
) -> Generator[IncrementReader]:
    """A reader that goes on from `start`; arguments and errors as of `committed_batches`."""
    check_topic_names(topics)
    check_session(spark)
    increments = Increments(topics, start, records_max)
    connector = KafkaConnector(config_of(cluster))
    names = sorted(set(topics))
    with TopicEvidence(connector, names, by_index=by_index) as evidence:
        yield IncrementReader(spark, cluster, evidence, increments, headers=headers)
