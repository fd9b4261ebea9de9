"""Finds the transactions that hold readers of committed data back, and the record they wait at.

*Source*: docs/protocols D2: a reader stops at the first record whose outcome is unknown. A
transaction holds nobody back until it has written; so the log is read for the first record of one.
KIP-664 for native transactions.

*Invariants*: what is read is bounded: the partitions of the oldest transactions, and of each the
first `RECORDS_MAX` offsets from where the transaction was registered.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import aclosing

from stilltide.connectors.ports.admin import LogAdmin, NativeTransactions
from stilltide.connectors.ports.connector import Connector, closing
from stilltide.connectors.ports.readers import Fetching, Record
from stilltide.pipeline.core.native.hanging import OpenNativeTransaction
from stilltide.pipeline.core.status.values import ReaderHold
from stilltide.pipeline.drivers.native.open_transactions import open_transactions
from stilltide.pipeline.drivers.shared.log_scan import scan
from stilltide.pipeline.drivers.shared.txn_headers import txns_of
from stilltide.pipeline.drivers.status.transactions import Unended
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

HELD_MS = 1000
"""Age below which a transaction is nobody's concern, coordinated or native."""

PARTITIONS_MAX = 50
"""Partitions that are looked at: those of the oldest transactions."""

NATIVE_PARTITIONS_MAX = 5000
"""Partitions whose last stable offset is compared with their end."""

RECORDS_MAX = 20_000
"""Offsets of a partition that are read for the first record of a transaction."""


class CoordinatedHolds:
    """Which coordinated transactions hold readers back.

    Args:
        connector: the cluster.
        admin: admin client of the same cluster; the caller closes it.
    """

    def __init__(self, connector: Connector, admin: LogAdmin) -> None:
        self._connector = connector
        self._admin = admin
        self._undecided: Sequence[Unended] = ()
        self._old_count = 0
        self._wanted: Mapping[TopicPartition, Offset] = {}
        self._ends: Mapping[TopicPartition, EndOffset] = {}
        self._holds: tuple[ReaderHold, ...] = ()

    async def read(self, undecided: Sequence[Unended], now_ms: int) -> tuple[ReaderHold, ...]:
        """Which of these transactions hold readers back, and where; the longest hold first.

        Records are read only if there are other transactions than before, or more records.

        Args:
            undecided: by when they were opened; the same object if nothing has changed.
            now_ms: wall clock.

        Raises:
            ConnectorError: the cluster is away, or forbids to read a topic.
        """
        old_count = bisect_right(
            undecided, now_ms - HELD_MS, key=lambda it: it.description.opened_at_ms
        )
        is_same = undecided is self._undecided and old_count == self._old_count
        old = undecided[:old_count]
        wanted = _candidates(old) if not is_same else self._wanted
        ends = await self._admin.end_offsets(list(wanted)) if wanted else {}
        if not is_same or ends != self._ends:
            self._holds = await self._found(old, await self._ranges(wanted, ends))
            self._undecided, self._old_count = undecided, old_count
            self._wanted, self._ends = wanted, ends
        return self._holds

    async def _ranges(
        self, from_: Mapping[TopicPartition, Offset], ends: Mapping[TopicPartition, EndOffset]
    ) -> list[OffsetRange]:
        """What there is to read of partitions that exist."""
        starts = await self._admin.start_offsets(list(from_)) if from_ else {}
        return [
            OffsetRange(data, begin, ends[data])
            for data, low in from_.items()
            if data in starts
            and data in ends
            and (begin := Offset(max(low, starts[data]))) < ends[data]
        ]

    async def _found(
        self, old: Sequence[Unended], ranges: Sequence[OffsetRange]
    ) -> tuple[ReaderHold, ...]:
        """Reads each range up to the first record of one of these transactions."""
        if not ranges:
            return ()
        by_id = {it.txn.to_bytes(): it for it in old}
        ends = {one.data: one.end for one in ranges}
        holds: dict[TopicPartition, ReaderHold] = {}
        async with closing(
            self._connector.reader("status-holds", committed=False, fetching=Fetching.SCANNING)
        ) as reader:
            bounded = [_bounded(one) for one in ranges]
            async with aclosing(scan(reader, bounded)) as batches:
                async for records in batches:
                    for record, transaction in _first_records(records, by_id):
                        holds.setdefault(record.data, _hold(record, transaction, ends[record.data]))
                    if holds.keys() == ends.keys():
                        break
        return tuple(sorted(holds.values(), key=lambda it: it.since_ms or 0))


def _candidates(undecided: Sequence[Unended]) -> dict[TopicPartition, Offset]:
    """Partitions of the oldest transactions, each with the lowest offset that may be of one."""
    candidates: dict[TopicPartition, Offset] = {}
    for transaction in undecided:
        for part in transaction.description.partitions:
            if part.data in candidates or len(candidates) < PARTITIONS_MAX:
                known = candidates.get(part.data, part.start_offset)
                candidates[part.data] = Offset(min(known, part.start_offset))
    return candidates


def _bounded(range_: OffsetRange) -> OffsetRange:
    return range_._replace(end=EndOffset(min(range_.end, range_.start + RECORDS_MAX)))


def _first_records(
    records: Sequence[Record], by_id: Mapping[bytes, Unended]
) -> list[tuple[Record, Unended]]:
    """The records of transactions that have not ended."""
    return [
        (record, by_id[txn])
        for record, txn in zip(records, txns_of(records), strict=True)
        if txn is not None and txn in by_id
    ]


def _hold(record: Record, transaction: Unended, end: EndOffset) -> ReaderHold:
    return ReaderHold(
        record.data,
        record.offset,
        end - record.offset,
        native=False,
        holder=str(transaction.txn),
        client=transaction.client,
        since_ms=transaction.description.opened_at_ms,
        hanging=False,
        prepared=transaction.description.state == "PREPARED",
    )


async def native_holds(
    native: NativeTransactions, admin: LogAdmin, now_ms: int
) -> list[ReaderHold]:
    """Kafka's own transactions that have been open for a while; the longest hold first.

    Raises:
        ConnectorError: the cluster is away, or forbids the question.
    """
    ends = await held_partitions(admin)
    opened = await open_transactions(native, list(ends)[:PARTITIONS_MAX]) if ends else []
    first: dict[TopicPartition, OpenNativeTransaction] = {}
    for transaction in opened:
        first.setdefault(transaction.data, transaction)
    holds = [_native_hold(one, ends[one.data]) for one in first.values()]
    old = [it for it in holds if it.since_ms is None or it.since_ms <= now_ms - HELD_MS]
    return sorted(old, key=lambda it: it.since_ms or 0)


async def held_partitions(admin: LogAdmin) -> dict[TopicPartition, EndOffset]:
    """The ends of partitions whose last stable offset is below, by topic and number.

    Looks at the first `NATIVE_PARTITIONS_MAX` partitions of the cluster.
    """
    topics = await admin.describe_topics(await admin.list_topics())
    partitions = [
        TopicPartition(name, number)
        for name, topic in sorted(topics.items())
        for number in range(topic.partition_count)
    ][:NATIVE_PARTITIONS_MAX]
    if not partitions:
        return {}
    stable = await admin.end_offsets(partitions, committed=True)
    ends = await admin.end_offsets(partitions)
    return {it: ends[it] for it in partitions if it in stable and stable[it] < ends.get(it, 0)}


def _native_hold(opened: OpenNativeTransaction, end: EndOffset) -> ReaderHold:
    started_ms = opened.transaction.started_at_ms if opened.transaction else None
    written_ms = opened.producer.last_timestamp_ms
    return ReaderHold(
        opened.data,
        opened.open_from,
        end - opened.open_from,
        native=True,
        holder=opened.transactional_id or f"producer {opened.producer.producer_id}",
        client="",
        since_ms=started_ms or (written_ms if written_ms >= 0 else None),
        hanging=opened.hanging,
    )
