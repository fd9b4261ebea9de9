"""Reads system topics: their records decoded, to the present end or on and on.

*Source*: docs/protocols B10 (records that do not decode), E10 (the last record of each key), B9
(outages); docs/internals/kafka-clients.md (clients that stand still).
*Invariants*, the same for every feed:
- *decoding*: a foreign record, and a damaged one that a later record of its key replaces, are
  passed over and counted; any other damaged record is a `DecodeError` that names its place.
- *history*: of what existed when a read began, the last record of each key is decoded, and no
  earlier one, in the order of offsets.
- *gaps*: nothing is skipped. A log that has lost records at a position, or whose topic was created
  again, is an `OffsetOutOfRangeError`, and the next read begins at the log start.
- *outages*: reads are repeated as the guard says; without a guard, `RetriableError` is raised.
- *standing still*: a read that brings nothing for `STUCK_S` although the log goes on gets another
  reader at the same position; a read up to the present end fails with `RetriableError`.
- after any error, and after a read that was left early, the next read begins where the last one
  was complete: an item may come again, and none is lost.

Not read by feeds: data partitions (`log_scan`, in batches), and the tails of markers and snapshots
behind a subscription (`read_committed`), whose cost for each record counts.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Generic, ParamSpec, TypeVar

from stilltide.connectors.errors import OffsetOutOfRangeError, RetriableError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import EndReached, Fetching, LogReader, Record
from stilltide.pipeline.drivers.shared.log_scan import scan
from stilltide.pipeline.drivers.shared.named_partitions import require_topics
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.passed_over import foreign_records, pass_over
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.errors import DecodeError, placed_each
from stilltide.schemas.topics import SETTINGS, TXN_MARKERS
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

log = get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

STUCK_S = 120.0
"""Longest wait for records that exist: such a reader may have lost its brokers. A link's open
transaction, at which readers of committed records wait, ends before that."""

READ_UNCOMMITTED = frozenset({TXN_MARKERS, SETTINGS})
"""Topics in which an open native transaction of a stranger shall delay nobody (B10)."""

SLICE_RECORDS = 500
"""Records of the history that are handed out in one turn of the event loop."""


class TopicFeed(Generic[T]):
    """The items of some partitions of one system topic, or of several; `close` last.

    Args:
        connector: the cluster.
        admin: admin client of the same cluster; the caller closes it.
        name: name of the reader at the brokers.
        logs: the partitions; all of them are read committed, or none (`READ_UNCOMMITTED`).
        decode: the item of a record; None: the record does not concern the reader. Raises
            `DecodeError` for bytes that are not of the topic.
        outages: repeats calls while the cluster is away; None: `RetriableError` is raised.
        every: whether every record of the history is an item, and not the last of its key alone.
        replaceable: whether nothing depends on a damaged record, so that it is passed over.
        timestamps: whether `decode` gets `TimedRecord`.

    Attributes:
        positions: end offset of the items so far, by partition. The caller may set the position at
            which a partition begins; without one it begins at its log start.
        caught_up: whether everything was read once that existed when reading began.
        outages: as above.
    """

    def __init__(
        self,
        connector: Connector,
        admin: LogAdmin,
        name: str,
        logs: Sequence[TopicPartition],
        decode: Callable[[Record], T | None],
        *,
        outages: OutageGuard | None = None,
        every: bool = False,
        replaceable: bool = False,
        timestamps: bool = False,
    ) -> None:
        self.positions: dict[TopicPartition, Offset] = {}
        self.caught_up = False
        self._connector = connector
        self._admin = admin
        self._name = name
        self._logs = list(logs)
        self._decode = decode
        self.outages = outages
        self._every = every
        self._replaceable = replaceable
        self._timestamps = timestamps
        self._committed = not READ_UNCOMMITTED.issuperset(data.topic for data in logs)
        self._topic_ids: dict[str, bytes] = {}
        self._reader: LogReader | None = None
        self._fetching = Fetching.SCANNING

    async def to_now(self, *, open_too: bool = False) -> AsyncGenerator[list[T], None]:
        """The items from the positions to the present end; the last list comes at that end.

        Args:
            open_too: whether to wait for the records of native transactions that are open now; if
                not, the read ends at the last stable offset.

        Raises:
            DecodeError: a record is damaged or of a later version; names its place.
            OffsetOutOfRangeError: what was read is not what the log holds, and is to be forgotten.
            FatalError: a topic does not exist.
            RetriableError: the broker is away, or the end was not met for `STUCK_S`.
            UnavailableError: the broker was away for longer than the guard allows.
        """
        await self._use(Fetching.SCANNING)
        async with aclosing(self._history(open_too=open_too)) as lists:
            async for items in lists:
                yield items

    async def follow(self) -> AsyncGenerator[list[T], None]:
        """The items from the positions on, without end; raises as `to_now`.

        A list comes at least each time that the end of a partition is met, perhaps an empty one.
        """
        await self._use(Fetching.TAILING)
        async with aclosing(self._history(open_too=True)) as lists:
            async for items in lists:
                yield items
        try:
            await self._opened().assign(self.positions)
            while True:
                taken = await self._next()
                items = await self._items([it for it in taken if isinstance(it, Record)])
                for item in taken:
                    after = item.end_offset if isinstance(item, EndReached) else item.offset + 1
                    self.positions[item.data] = Offset(after)
                yield items
                await asyncio.sleep(0)  # other tasks run during a long replay
        except OffsetOutOfRangeError:
            self._forget()
            raise

    async def read_on(self) -> bool:
        """Reads to now what `decode` takes in itself; whether anything was there; as `to_now`."""
        before = dict(self.positions)
        async for _ in self.to_now():
            pass
        return before != self.positions

    async def once(self, *, open_too: bool = False) -> list[T]:
        """All items that `to_now` gives; closes the feed."""
        try:
            return [item async for items in self.to_now(open_too=open_too) for item in items]
        finally:
            await self.close()

    async def close(self) -> None:
        """Releases the reader; a later read opens another one."""
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

    async def _history(self, *, open_too: bool) -> AsyncGenerator[list[T], None]:
        try:
            ranges = await self._unread(open_too=open_too)
            if any(read.start < read.end for read in ranges):
                last: dict[tuple[TopicPartition, bytes | None], Record] = {}
                async with aclosing(scan(self._opened(), ranges, self._next_records)) as batches:
                    async for records in batches:
                        if self._every:
                            yield await self._items(records)
                        else:
                            _keep_last(last, records)
                        await asyncio.sleep(0)  # other tasks run during a long replay
                kept = list(last.values())
                for first in range(0, len(kept), SLICE_RECORDS):
                    yield await self._items(kept[first : first + SLICE_RECORDS])
                    await asyncio.sleep(0)
        except OffsetOutOfRangeError:
            self._forget()
            raise
        self.positions |= {read.data: Offset(read.end) for read in ranges}
        self.caught_up = True
        yield []

    async def _use(self, fetching: Fetching) -> None:
        """Readers that wait at the end of a log tail; others scan."""
        if self._fetching is not fetching:
            await self.close()
            self._fetching = fetching

    def _opened(self) -> LogReader:
        if self._reader is None:
            self._reader = self._connector.reader(
                self._name,
                committed=self._committed,
                timestamps=self._timestamps,
                fetching=self._fetching,
            )
        return self._reader

    def _forget(self) -> None:
        self.positions.clear()
        self._topic_ids.clear()
        self.caught_up = False

    async def _call(
        self, attempt: Callable[P, Awaitable[V]], *args: P.args, **named: P.kwargs
    ) -> V:
        if self.outages is None:
            return await attempt(*args, **named)
        return await self.outages.call(attempt, *args, **named)

    async def _ends(self, *, committed: bool) -> Mapping[TopicPartition, EndOffset]:
        return await self._call(self._admin.end_offsets, self._logs, committed=committed)

    async def _unread(self, *, open_too: bool) -> list[OffsetRange]:
        """The ranges that were not read yet, up to the present ends; empty ones included."""
        if not self._logs:
            return []
        ends = await self._ends(committed=self._committed and not open_too)
        begun = [data for data in self._logs if data not in self.positions]
        starts: Mapping[TopicPartition, Offset] = {}
        if begun:
            starts = await self._call(self._admin.start_offsets, begun)
        await self._check_topics()  # the offsets are of these topics
        ranges: list[OffsetRange] = []
        for data in self._logs:
            start, end = self.positions.get(data, starts.get(data)), ends.get(data)
            if start is None or end is None:
                topic, partition = data
                raise RetriableError(
                    "the partition has no offsets yet", topic=topic, partition=partition
                )
            if end < start and data in self.positions:
                raise _lost(data, f"the log ends at {end}, and was read up to {start}")
            ranges.append(OffsetRange(data, start, EndOffset(max(start, end))))
        return ranges

    async def _check_topics(self) -> None:
        """Compares the topics' ids with those at the beginning."""
        names = sorted({data.topic for data in self._logs})
        described = await self._call(self._admin.describe_topics, names)
        require_topics(names, described)
        for name in names:
            topic_id = described[name].topic_id
            if self._topic_ids.setdefault(name, topic_id) != topic_id:
                data = next(data for data in self._logs if data.topic == name)
                raise _lost(data, "the topic was deleted, and another one created under its name")

    async def _next_records(self) -> Sequence[Record | EndReached]:
        """The next records of a read up to the present end."""
        taken = await self._read()
        if taken is not None:
            return taken
        await self.close()
        places = ", ".join(map(str, self._logs))
        log.warning("feed_stands_still", reader=self._name, logs=places, waited_s=STUCK_S)
        raise RetriableError(
            f"a read did not come to the end of {places} within {STUCK_S:g} s",
            hint="it is read again; look for an open native transaction in this topic",
        )

    async def _next(self) -> Sequence[Record | EndReached]:
        """The next records of a read without end, by another reader if this one stands still."""
        while (taken := await self._read()) is None:
            ends = await self._ends(committed=self._committed)
            behind = [data for data, end in ends.items() if end > self.positions[data]]
            if behind:
                log.warning("feed_stands_still", reader=self._name, logs=str(behind[0]))
                await self.close()
                await self._opened().assign(self.positions)
        return taken

    async def _read(self) -> Sequence[Record | EndReached] | None:
        """What the reader returns next; None: nothing for `STUCK_S`."""
        reader = self._opened()

        async def read() -> Sequence[Record | EndReached] | None:
            limit = asyncio.timeout(STUCK_S)
            try:
                async with limit:  # a cancelled read loses nothing
                    return await reader.read()
            except TimeoutError:
                if not limit.expired():
                    raise
                return None

        return await (read() if self.outages is None else self.outages.read(read))

    async def _items(self, records: Sequence[Record]) -> list[T]:
        """The items of these records, without those that are passed over (B10)."""
        items: list[T] = []
        with placed_each(records) as each:
            for record in each:
                try:
                    item = self._decode(record)
                except DecodeError as error:
                    await self._pass_over(record, error)
                    continue
                if item is not None:
                    items.append(item)
        return items

    async def _pass_over(self, record: Record, error: DecodeError) -> None:
        if self._replaceable:
            passed_over = foreign_records(self._connector)
            passed_over.add(record.data, record.offset, record.value, error.primary)
        else:
            await pass_over(self._connector, record, error)


class LastValues(Generic[K, V]):
    """The last value of each key of a feed.

    Args:
        feed: gives keys with their values; None: the key is deleted.

    Attributes:
        values: the last value of each key that was not deleted, as of the last read.
    """

    def __init__(self, feed: TopicFeed[tuple[K, V | None]]) -> None:
        self.values: dict[K, V] = {}
        self._feed = feed

    async def to_now(self) -> None:
        """Reads to the present end; raises as `TopicFeed.to_now`, and is empty after a lost log."""
        async for _ in self._taken(self._feed.to_now()):
            pass

    async def follow(self) -> AsyncGenerator[list[tuple[K, V | None]], None]:
        """The changes, without end, each after `values` has it; raises as `TopicFeed.follow`."""
        async for changes in self._taken(self._feed.follow()):
            if changes:
                yield changes

    async def close(self) -> None:
        """Closes the feed."""
        await self._feed.close()

    async def _taken(
        self, feed: AsyncGenerator[list[tuple[K, V | None]], None]
    ) -> AsyncGenerator[list[tuple[K, V | None]], None]:
        try:
            async for changes in feed:
                for key, value in changes:
                    if value is None:
                        self.values.pop(key, None)
                    else:
                        self.values[key] = value
                yield changes
        except OffsetOutOfRangeError:
            self.values.clear()
            raise


def _keep_last(
    last: dict[tuple[TopicPartition, bytes | None], Record], records: Sequence[Record]
) -> None:
    """Takes each record in place of the earlier one of its key; the last ones stay in order."""
    for record in records:
        key = record.data, record.key
        last.pop(key, None)
        last[key] = record


def _lost(data: TopicPartition, detail: str) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        "the log does not continue at the position read so far",
        detail=detail,
        hint="it is read again from its start",
        data=data,
    )
