"""Writes a link's copies, buckets and signals in one transaction on the target.

*Source*: docs/protocols H1, H2, H3, H4.

*Invariants*: every copy has its `origin` header; buckets and signals are the last records of a
transaction. A writer that is refused after the time-out of its open transaction has not been
replaced, as far as known: the broker refuses the writer of a transaction that it has aborted in the
same way (B9).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from stilltide.connectors.errors import FencedError, RetriableError
from stilltide.connectors.ports.copying import COPY_TIMEOUT_S, Copies, Span
from stilltide.connectors.ports.readers import NewRecord
from stilltide.pipeline.core.links.copying import BucketChange, SourceRecord, Topics
from stilltide.pipeline.core.links.link import Commit, Copy, Finish, Link
from stilltide.pipeline.core.links.progress import CopiedCount
from stilltide.pipeline.core.links.signal_queue import CopiedSignal
from stilltide.pipeline.core.native.hanging import OpenNativeTransaction
from stilltide.pipeline.drivers.links.sides import AwakeTime, Side
from stilltide.pipeline.drivers.links.source import Payload
from stilltide.pipeline.drivers.native.open_transactions import open_transactions
from stilltide.pipeline.logging import get_logger
from stilltide.pipeline.tracing import tracing_of
from stilltide.schemas.headers import Headers
from stilltide.schemas.replication import signals
from stilltide.schemas.replication.origins import Incarnation, OriginStamp
from stilltide.schemas.replication.positions import (
    Beat,
    BeatKey,
    BucketKey,
    encode_beat,
    encode_beat_key,
    encode_bucket,
    encode_key,
)
from stilltide.schemas.topics import REPLICATION_MARKERS, REPLICATION_POSITIONS
from stilltide.schemas.values import ClusterName, Range, TopicPartition

_NOTHING = CopiedCount(0, 0, 0)


class LinkWriter:
    """Writes to the target of one link driver.

    Args:
        source: name of the source, which is part of the transactional id.
        target: the target cluster.
        partition: number of the positions partition, which is part of the transactional id.
        origin: name of the cluster that the `origin` headers of copies name.

    Attributes:
        transactional_id: the link's id on the target.
        cleared: data partitions in which nothing of an earlier writer's transactions is open.
        copied: what the transaction that began last has copied, by data partition.
    """

    def __init__(
        self, source: ClusterName, target: Side, partition: int, origin: ClusterName
    ) -> None:
        self._source = source
        self._origin = origin
        self._target = target
        self._partition = partition
        self.transactional_id = f"{link_ids(source, target)}{partition}"
        self.cleared: set[TopicPartition] = set()
        self.copied: dict[TopicPartition, CopiedCount] = {}
        self._writer = target.connector.copy_writer(self.transactional_id)
        self._open_for = AwakeTime()  # of the open transaction
        self._spans: dict[tuple[TopicPartition, int], Span] = {}
        self._stamps: dict[Incarnation, OriginStamp] = {}
        self._tracing = tracing_of(self.transactional_id)
        self._began_ns = 0
        self._first_headers: list[Headers | None] = []  # of the first records, for traces

    @property
    def has_copies(self) -> bool:
        """Whether the transaction that began last has copies."""
        return bool(self._spans)

    async def fence(self) -> None:
        """Takes the link's transactional id, which fences an earlier writer."""
        await self._writer.fence()

    async def begin(self) -> None:
        """Begins a transaction."""
        self._spans.clear()
        self.copied = {}
        if self._tracing is not None:
            self._began_ns, self._first_headers = self._tracing.left(), []
        self._open_for.begin()
        with self._own_time_out():
            await self._writer.begin()

    async def copy(self, effect: Copy[Payload], source_topic: bytes) -> int:
        """Queues copies of records of this source incarnation; returns their size in bytes."""
        incarnation = Incarnation(self._origin, source_topic)
        stamp = self._stamps.setdefault(incarnation, OriginStamp(incarnation))
        copies = _copies(effect.records, stamp)
        size_bytes = _size_bytes(copies.keys) + _size_bytes(copies.values)
        span = self._spans.setdefault((effect.data, effect.chunk), Span())
        with self._own_time_out():
            await self._writer.copy(effect.data, copies, span)
        before = self.copied.get(effect.data, _NOTHING)
        if self._tracing is not None:
            room = self._tracing.LINKS_MAX - len(self._first_headers)
            self._first_headers += copies.headers[:room]
        newest_ms = copies.timestamps_ms[-1]
        count = before.records + len(effect.records)
        self.copied[effect.data] = CopiedCount(count, before.size_bytes + size_bytes, newest_ms)
        return size_bytes

    async def finish(self, effect: Finish) -> dict[TopicPartition, list[Range | None]]:
        """Waits for every copy; returns the range of offsets of each chunk's copies."""
        with self._own_time_out():
            await self._writer.flush()
        return {
            data: [_interval(self._spans.get((data, chunk))) for chunk in range(chunk_count)]
            for data, chunk_count in effect.partitions.items()
        }

    async def commit(self, effect: Commit, beat: Beat | None) -> None:
        """Writes buckets, signals and the beat, if there is one, and commits.

        Before that, the driver looks at the topics' ids. A link with nothing to commit looks at
        them now and then (`LinkRun`), since it would not learn otherwise that a topic was
        created again (H6).
        """
        records = [*self._buckets(effect.buckets), *self._signals(effect.signals)]
        if beat is not None:
            records.append(self._beat(beat))
        with self._own_time_out():
            await self._writer.commit(records)
        self._open_for.end()
        if self._tracing is not None and self.has_copies:
            count = sum(copied.records for copied in self.copied.values())
            target = self._target.name
            self._tracing.copied(self._source, target, self._began_ns, count, self._first_headers)

    async def close(self) -> None:
        """Aborts the open transaction and releases the connection."""
        self._open_for.end()
        await self._writer.close()

    @contextmanager
    def _own_time_out(self) -> Iterator[None]:
        """Raises `RetriableError` instead of `FencedError` after the transaction's time-out.

        A link that was frozen meanwhile gets the `FencedError`: another one may have taken over.
        """
        try:
            yield
        except FencedError as error:
            if self._open_for.seconds <= COPY_TIMEOUT_S:
                raise
            raise RetriableError(
                "the transaction of a link was refused after its time-out", detail=str(error)
            ) from error

    def _buckets(self, buckets: Mapping[TopicPartition, Sequence[BucketChange]]) -> list[NewRecord]:
        return [
            NewRecord(
                self._target.system(REPLICATION_POSITIONS, data),
                encode_key(BucketKey(self._source, self._target.name, data, number)),
                None if bucket is None else encode_bucket(bucket),
            )
            for data, changes in buckets.items()
            for number, bucket in changes
        ]

    def _beat(self, beat: Beat) -> NewRecord:
        return NewRecord(
            TopicPartition(REPLICATION_POSITIONS, self._partition),
            encode_beat_key(BeatKey(self._source, self._target.name, self._partition)),
            encode_beat(beat),
        )

    def _signals(self, copied: Sequence[CopiedSignal]) -> list[NewRecord]:
        return [
            NewRecord(
                self._target.system(REPLICATION_MARKERS, key.data),
                signals.encode_key(key),
                signals.encode_value(value),
            )
            for key, value in copied
        ]


def link_ids(source: ClusterName, target: Side) -> str:
    """The beginning of a link's transactional ids; a positions partition's number follows."""
    return target.connector.own_id(f"link-{source}-{target.name}-")


def _copies(records: Sequence[SourceRecord[Payload]], stamp: OriginStamp) -> Copies:
    """The copies in the form that the writer takes."""
    offsets, _, payloads = zip(*records, strict=True)
    headers, keys, values, timestamps_ms = zip(*payloads, strict=True)
    return Copies(keys, values, timestamps_ms, stamp.stamped(headers, offsets))


def _size_bytes(column: Sequence[bytes | None]) -> int:
    return sum(map(len, filter(None, column)))


def _interval(span: Span | None) -> Range | None:
    if span is None or span.first is None or span.end is None:
        return None
    return Range(span.first, span.end)


_log = get_logger(__name__)


async def end_hanging_positions(source: ClusterName, target: Side) -> None:
    """Aborts what hangs of the link's own in positions and signals, before they are read.

    A reader of committed data would wait in front of such a part for ever.

    Raises:
        RetriableError: the target is away.
        FatalError: the link may not ask for producers, or may not write markers.
    """
    partitions = [
        partition
        for topic in (REPLICATION_POSITIONS, REPLICATION_MARKERS)
        for partition in target.partitions(topic)
    ]
    own = link_ids(source, target)

    def was_committed(transaction: OpenNativeTransaction) -> bool | None:
        beginning, number = (transaction.transactional_id or "").rpartition("-")[::2]
        return False if f"{beginning}-" == own and number.isdigit() else None

    await _end_hanging(target, partitions, was_committed)


async def end_hanging_copies(
    target: Side, writer: LinkWriter, machine: Link[Any], topics: Mapping[TopicPartition, Topics]
) -> None:
    """Ends what hangs of the link's own transactions in data partitions, before it copies to them.

    Args:
        target: the cluster to which the link copies.
        writer: writer of the link, which has fenced its transactional id.
        machine: the link, which has read its buckets.
        topics: the data partitions and their topics as of now.

    Raises:
        RetriableError: the target is away.
        FatalError: a topic is gone, or the link may not ask for producers or write markers.
    """

    def was_committed(transaction: OpenNativeTransaction) -> bool | None:
        if transaction.transactional_id != writer.transactional_id:
            return None
        partition = machine.partitions.get(transaction.data)
        if partition is None:
            return False
        return transaction.open_from < partition.index.copied_end(topics[transaction.data].target)

    await _end_hanging(target, list(topics), was_committed)
    writer.cleared.update(topics)


async def _end_hanging(
    target: Side,
    partitions: Sequence[TopicPartition],
    outcome: Callable[[OpenNativeTransaction], bool | None],
) -> None:
    """Ends hanging transactions as `outcome` says; None: the transaction is left as it is."""
    native = target.connector.native_transactions(f"link-to-{target.name}")
    if native is None:
        return
    try:
        for transaction in await open_transactions(native, partitions):
            committed = outcome(transaction) if transaction.hanging else None
            if committed is None:
                continue
            _log.warning(
                "ending a hanging transaction",
                cluster=target.name,
                partition=str(transaction.data),
                first=transaction.open_from,
                transactional_id=transaction.transactional_id,
                committed=committed,
            )
            await native.write_marker(transaction.data, transaction.producer, committed=committed)
    finally:
        await native.close()
