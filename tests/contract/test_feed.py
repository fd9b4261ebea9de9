"""What every reader of a system topic promises, on every connector: the contract of `TopicFeed`."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, cast

import pytest

from stilltide.connectors.errors import FatalError, OffsetOutOfRangeError, RetriableError
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.copying import Copies, CopyWriter, LinkConnector, Span
from stilltide.connectors.ports.readers import EndReached, LogReader, Record
from stilltide.pipeline.drivers.shared import feed as feeds
from stilltide.pipeline.drivers.shared.feed import LastValues, TopicFeed
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.passed_over import foreign_records
from stilltide.pipeline.errors import UnavailableError
from stilltide.schemas.errors import DecodeError, ForeignKeyError
from stilltide.schemas.retry import Retry
from stilltide.schemas.values import EndOffset, Offset, TopicPartition
from tests.contract.rig import WAIT_S, Reports, Rig, create, trim

Pair = tuple[bytes, bytes | None]

FeedOf = Callable[..., TopicFeed[Pair]]


def pair_of(record: Record) -> Pair | None:
    """The codec of these tests: keys are letters, and values begin with a digit."""
    key, value = record.key, record.value
    if key is None or not key.isalpha():
        raise ForeignKeyError("a key of no letters")
    if key == b"other":
        return None
    if value is not None and not value[:1].isdigit():
        raise DecodeError("no number")
    return key, value


@pytest.fixture
async def admin(rig: Rig) -> AsyncIterator[Any]:
    """An admin client."""
    admin = rig.connector.admin()
    yield admin
    await admin.close()


@pytest.fixture
async def feed_of(rig: Rig, log: TopicPartition, admin: Any) -> AsyncIterator[FeedOf]:
    """Makes a feed of the log."""
    made: list[TopicFeed[Pair]] = []

    def make(connector: Connector | None = None, **options: Any) -> TopicFeed[Pair]:
        made.append(TopicFeed(connector or rig.connector, admin, "feed", [log], pair_of, **options))
        return made[-1]

    yield make
    for feed in made:
        await feed.close()


async def put(rig: Rig, log: TopicPartition, *pairs: Pair) -> None:
    """Appends pairs in order."""
    reports = Reports()
    for number, (key, value) in enumerate(pairs):
        rig.helper.append(log, value, reports.of(number), key=key)
    await reports.wait_for(len(pairs))


async def create_again(rig: Rig, log: TopicPartition) -> None:
    """Deletes the topic, which has records, and creates another one.

    Until a leader has the new log, it serves the former one, and before Kafka 4.1, whose requests
    name topics by ids, it would append to that, too.
    """
    await asyncio.to_thread(rig.delete_topic, log.topic)
    admin, created = rig.connector.admin(), False
    async with asyncio.timeout(WAIT_S):
        while not created:
            with suppress(RetriableError):
                await create(rig, log.topic)
                created = True
        ends = {log: EndOffset(1)}
        while any(ends.values()):
            with suppress(RetriableError):
                ends = await admin.end_offsets([log], committed=False)
    await admin.close()


async def read(feed: TopicFeed[Pair], **options: bool) -> list[Pair]:
    """The items up to the present end."""
    async with asyncio.timeout(WAIT_S):
        return [item async for items in feed.to_now(**options) for item in items]


class Followed:
    """Follows a feed, and keeps what comes."""

    def __init__(self, feed: TopicFeed[Pair]) -> None:
        self.pairs: list[Pair] = []
        self.lists: list[tuple[int, bool]] = []
        self._feed = feed
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def until(self, count: int) -> None:
        """Returns when so many items have come, and the history in any case."""
        async with asyncio.timeout(WAIT_S):
            while not (self.lists and len(self.pairs) >= count) and not self._task.done():
                self._changed.clear()
                await self._changed.wait()
        if self._task.done():
            self._task.result()

    async def failure(self) -> BaseException | None:
        """The error at which the feed ends."""
        await asyncio.wait([self._task], timeout=WAIT_S)
        return self._task.exception()

    async def close(self) -> None:
        """Stops."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        try:
            async for items in self._feed.follow():
                self.pairs += items
                self.lists.append((len(items), self._feed.caught_up))
                self._changed.set()
        finally:
            self._changed.set()


async def test_the_last_record_of_each_key_comes_once(
    rig: Rig, log: TopicPartition, feed_of: FeedOf
):
    """E10: in the order of offsets; a second read goes on where the first one ended."""
    await put(rig, log, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4"), (b"b", None))
    feed = feed_of()
    assert not feed.caught_up
    assert await read(feed) == [(b"a", b"3"), (b"c", b"4"), (b"b", None)]
    assert feed.caught_up
    assert feed.positions == {log: 5}
    assert await read(feed) == []
    await put(rig, log, (b"a", b"5"))
    assert await read(feed) == [(b"a", b"5")]


async def test_a_long_history_comes_in_slices(rig: Rig, log: TopicPartition, feed_of: FeedOf):
    """E10: the event loop does other work in between; the records are in the order of offsets."""
    count = feeds.SLICE_RECORDS + 1
    names = ["".join(chr(97 + int(it)) for it in str(number)).encode() for number in range(count)]
    await put(rig, log, *((name, b"1") for name in names), *((name, b"2") for name in names))
    feed = feed_of()
    lists = [items async for items in feed.to_now()]
    assert [len(items) for items in lists] == [count - 1, 1, 0]
    assert [item for items in lists for item in items] == [(name, b"2") for name in names]


async def test_every_record_comes_to_those_who_need_it(
    rig: Rig, log: TopicPartition, feed_of: FeedOf
):
    """From the position that the reader gives, and without records that do not concern it."""
    await put(rig, log, (b"a", b"1"), (b"a", b"2"), (b"other", b"x"), (b"a", b"3"))
    feed = feed_of(every=True)
    feed.positions[log] = Offset(1)
    assert await read(feed) == [(b"a", b"2"), (b"a", b"3")]


async def test_following_begins_with_the_history(rig: Rig, log: TopicPartition, feed_of: FeedOf):
    """The last of each key, then the word that all was read, then each record as it is written."""
    await put(rig, log, (b"a", b"1"), (b"a", b"2"), (b"b", b"3"))
    followed = Followed(feed_of())
    await followed.until(2)
    await put(rig, log, (b"a", b"4"), (b"a", b"5"))
    await followed.until(4)
    assert followed.pairs == [(b"a", b"2"), (b"b", b"3"), (b"a", b"4"), (b"a", b"5")]
    assert followed.lists[:2] == [(2, False), (0, True)]
    await followed.close()


async def test_an_empty_partition_is_caught_up_at_once(log: TopicPartition, feed_of: FeedOf):
    """Nobody waits for a first record."""
    feed = feed_of()
    followed = Followed(feed)
    await followed.until(0)
    assert feed.caught_up
    assert feed.positions == {log: 0}
    await followed.close()


async def test_foreign_and_replaced_records_are_passed_over(
    rig: Rig, log: TopicPartition, feed_of: FeedOf
):
    """B10: each is counted once, a damaged one also if its key is written again after the read."""
    counted: list[TopicPartition] = []

    class _Counter:
        def inc(self) -> None:
            counted.append(log)

    foreign_records(rig.connector).counter = lambda _: _Counter()
    await put(rig, log, (b"?", b"1"), (b"a", b"damaged"), (b"a", b"2"))
    followed = Followed(feed_of())
    await followed.until(1)
    await put(rig, log, (b"?", b"1"), (b"b", b"3"))
    await followed.until(2)
    assert followed.pairs == [(b"a", b"2"), (b"b", b"3")]
    await followed.close()
    assert len(counted) == 2  # the replaced one was never looked at


async def test_a_damaged_record_that_counts_is_an_error(
    rig: Rig, log: TopicPartition, feed_of: FeedOf
):
    """B10: it names its place and the next step, at the start and later; repaired, it all comes."""
    await put(rig, log, (b"b", b"1"), (b"a", b"damaged"))
    feed = feed_of()
    with pytest.raises(DecodeError, match="stilltide repair") as raised:
        await read(feed)
    assert (raised.value.topic, raised.value.partition, raised.value.offset) == (*log, 1)
    await put(rig, log, (b"a", b"2"))
    assert await read(feed) == [(b"b", b"1"), (b"a", b"2")]
    followed = Followed(feed)
    await put(rig, log, (b"b", b"damaged"))
    error = await followed.failure()
    assert isinstance(error, DecodeError)
    assert error.offset == 3


async def test_damage_on_which_nothing_depends_is_passed_over(
    rig: Rig, log: TopicPartition, feed_of: FeedOf
):
    """B10: as with dynamic settings, where the value before stays."""
    await put(rig, log, (b"a", b"damaged"), (b"b", b"1"))
    assert await read(feed_of(replaceable=True)) == [(b"b", b"1")]


async def test_a_trimmed_log_is_never_read_past_its_gap(
    rig: Rig, log: TopicPartition, feed_of: FeedOf
):
    """The reader is told to forget what it has read; the next read begins at the log start."""
    await put(rig, log, (b"a", b"1"), (b"b", b"2"))
    feed = feed_of()
    feed.positions[log] = Offset(0)
    await trim(rig, log, Offset(1))
    with pytest.raises(OffsetOutOfRangeError):
        await read(feed)
    assert not feed.caught_up
    assert await read(feed) == [(b"b", b"2")]


@pytest.mark.parametrize("more", [False, True])
async def test_a_topic_that_was_created_again_is_another_one(
    rig: Rig, log: TopicPartition, feed_of: FeedOf, *, more: bool
):
    """Whether its log is shorter than what was read, or longer."""
    await put(rig, log, (b"a", b"1"))
    feed = feed_of()
    await read(feed)
    await create_again(rig, log)
    pairs: list[Pair] = [(b"b", b"2"), (b"c", b"3")] if more else []
    await put(rig, log, *pairs)
    with pytest.raises(OffsetOutOfRangeError):
        await read(feed)
    assert await read(feed) == pairs


async def test_a_missing_topic_is_an_error(rig: Rig, admin: Any):
    """It is told from an empty one."""
    feed = TopicFeed(rig.connector, admin, "feed", [TopicPartition("nowhere", 0)], pair_of)
    with pytest.raises(FatalError, match="does not exist"):
        await read(feed)
    await feed.close()


async def _open_copy(rig: Rig, log: TopicPartition, name: str, value: bytes) -> CopyWriter:
    """A native transaction that is open, with a record in the log."""
    writer = cast("LinkConnector", rig.connector).copy_writer(name)
    await writer.fence()
    await writer.begin()
    await writer.copy(log, Copies([b"k"], [value], [round(time.time() * 1000)], [[]]), Span())
    await writer.flush()
    return writer


async def test_an_open_transaction_is_waited_for_on_demand(
    rig: Rig, log: TopicPartition, feed_of: FeedOf, monkeypatch: pytest.MonkeyPatch
):
    """A read to the last stable offset does not wait; the other one waits, and not for ever."""
    await put(rig, log, (b"a", b"1"))
    writer = await _open_copy(rig, log, f"open-{log.topic}", b"2")
    await put(rig, log, (b"b", b"3"))
    feed = feed_of()
    assert await read(feed) == [(b"a", b"1")]
    monkeypatch.setattr(feeds, "STUCK_S", 0.3)
    with pytest.raises(RetriableError, match="did not come"):
        await read(feed, open_too=True)
    monkeypatch.undo()
    reading = asyncio.create_task(read(feed, open_too=True))
    await writer.commit([])
    assert await reading == [(b"k", b"2"), (b"b", b"3")]
    await writer.close()


class _Still:
    """A reader that has lost its brokers."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader

    async def read(self) -> Sequence[Record | EndReached]:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


class _LosingConnector:
    """A connector whose first reader stands still."""

    def __init__(self, connector: Connector) -> None:
        self.readers = 0
        self._connector = connector

    def reader(self, *args: Any, **options: Any) -> Any:
        self.readers += 1
        reader = self._connector.reader(*args, **options)
        return _Still(reader) if self.readers == 1 else reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connector, name)


async def test_a_reader_that_stands_still_is_replaced(
    rig: Rig, log: TopicPartition, feed_of: FeedOf, monkeypatch: pytest.MonkeyPatch
):
    """A read to the present end says so, and the next one is complete."""
    monkeypatch.setattr(feeds, "STUCK_S", 1)
    await put(rig, log, (b"a", b"1"))
    losing = _LosingConnector(rig.connector)
    feed = feed_of(cast("Connector", losing))
    with pytest.raises(RetriableError, match="did not come"):
        await read(feed)
    assert await read(feed) == [(b"a", b"1")]


async def test_a_follower_does_not_stand_still(
    rig: Rig, log: TopicPartition, feed_of: FeedOf, monkeypatch: pytest.MonkeyPatch
):
    """It goes on with another reader; at rest it keeps the reader that it has."""
    monkeypatch.setattr(feeds, "STUCK_S", 1)
    losing = _LosingConnector(rig.connector)
    followed = Followed(feed_of(cast("Connector", losing)))
    await followed.until(0)
    await put(rig, log, (b"a", b"1"))
    await followed.until(1)
    assert losing.readers == 2
    await put(rig, log, (b"a", b"2"))
    await followed.until(2)
    assert losing.readers == 2
    await followed.close()


async def test_an_outage_is_borne_as_the_guard_says(rig: Rig, log: TopicPartition):
    """Without a guard it is the caller's; with one it has the guard's limit."""
    connector = rig.unreachable()
    admin = connector.admin()
    feed = TopicFeed(connector, admin, "feed", [log], pair_of)
    with pytest.raises(RetriableError):
        await read(feed)
    guard = OutageGuard(admin, timeout_s=0.1, retry=Retry(0.05))
    guarded = TopicFeed(connector, admin, "feed", [log], pair_of, outages=guard)
    with pytest.raises(UnavailableError):
        await read(guarded)
    await feed.close()
    await guarded.close()
    await admin.close()


async def test_a_table_has_the_last_value_of_each_key(
    rig: Rig, log: TopicPartition, feed_of: FeedOf
):
    """Deleted keys are gone, and all are after the log was lost."""
    await put(rig, log, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", None))
    table = LastValues(feed_of())
    await table.to_now()
    assert table.values == {b"a": b"3"}
    changes = table.follow()
    await put(rig, log, (b"c", b"4"))
    async with asyncio.timeout(WAIT_S):
        assert await anext(changes) == [(b"c", b"4")]
    assert table.values == {b"a": b"3", b"c": b"4"}
    await changes.aclose()
    await create_again(rig, log)
    with pytest.raises(OffsetOutOfRangeError):
        await table.to_now()
    assert table.values == {}
