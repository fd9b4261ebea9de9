"""The evidence of both kinds of transaction, read on before each batch. Blocks.

*Source*: docs/protocols K1, D2, D4, F4.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import LogReader
from stilltide.connectors.ports.records import Fetching
from stilltide.pipeline.core.tables.increments import PartitionBounds, TopicBounds, WaitsFor
from stilltide.pipeline.drivers.native.evidence import FollowedIndex, NativeEvidence
from stilltide.pipeline.drivers.read_committed.first_undecided import find_first_undecided
from stilltide.pipeline.drivers.snapshots.outcomes import FollowedOutcomes, TopicOutcomes
from stilltide.pipeline.jobs.blocking import BlockingLoop
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
        found: dict[TopicPartition, PartitionBounds] = {}
        for read in self.outcomes.data:
            snapshot, end = self.outcomes.snapshots.get(read.data), read.end
            if self.native is not None:
                end = min(end, self.native.covered_to.get(read.data, EndOffset(read.start)))
            decided = snapshot.max_read_position if snapshot else EndOffset(0)
            found[read.data] = PartitionBounds(read.start, end, decided)
        return TopicBounds(self.outcomes.topic_ids, found)

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._loop.run(self._close())
        finally:
            self._loop.__exit__(kind, error, trace)

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
        found = self._loop.run(self._first_undecided(reads, known))
        return {data: WaitsFor(*first) for data, first in found.items()}

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
        for one in (self._outcomes, self._index, self._reader):
            if one is not None:
                await one.close()
