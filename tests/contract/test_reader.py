"""`LogReader`: promises of connectors.ports, on every connector."""

import asyncio

import pytest

from stilltide.connectors.errors import FatalError, OffsetOutOfRangeError, RetriableError
from stilltide.connectors.ports.readers import EndReached, Record, TimedRecord
from stilltide.schemas.values import TopicPartition
from tests.contract.rig import Rig, read, read_records, read_to_ends, trim, write


async def test_reads_in_offset_order_from_a_position(rig: Rig, log: TopicPartition):
    """The record at the position is the first, then every one after it."""
    await write(rig, log, *(b"%d" % number for number in range(100)))
    reader = rig.connector.reader("r")
    await reader.assign({log: 40})
    records = await read_records(reader, 60)
    assert [record.offset for record in records] == list(range(40, 100))
    assert records[0] == Record(log.topic, 0, 40, b"k", b"40", None)
    await reader.close()


async def test_the_end_of_an_empty_partition_is_reached(rig: Rig, log: TopicPartition):
    """`EndReached` comes at offset 0 without any record."""
    reader = rig.connector.reader("r")
    await reader.assign({log: 0})
    assert list(await read(reader)) == [EndReached(log.topic, 0, 0)]
    await reader.close()


async def test_the_end_is_reached_again_after_growth(rig: Rig, log: TopicPartition):
    """Each time the reader meets the end it says so, behind the records before it."""
    reader = rig.connector.reader("r")
    await reader.assign({log: 0})
    for end in (0, 2, 4):
        values = await read_to_ends(reader, {log: end})
        assert len(values[log]) == min(end, 2)
        await write(rig, log, b"a", b"b")
    await reader.close()


async def test_reads_several_partitions(rig: Rig, log: TopicPartition):
    """Each partition is read to its own end."""
    other = TopicPartition(log.topic, 1)
    await write(rig, log, b"a", b"b")
    await write(rig, other, b"c")
    reader = rig.connector.reader("r")
    await reader.assign({log: 0, other: 0})
    values = await read_to_ends(reader, {log: 2, other: 1})
    assert values == {log: [b"a", b"b"], other: [b"c"]}
    await reader.close()


async def test_a_waiting_read_gets_a_new_record(rig: Rig, log: TopicPartition):
    """`read` waits at the end and returns what is appended."""
    reader = rig.connector.reader("r")
    await reader.assign({log: 0})
    await read_to_ends(reader, {log: 0})
    waiting = asyncio.create_task(read_records(reader, 1))
    await write(rig, log, b"late")
    assert (await waiting)[0].value == b"late"
    await reader.close()


async def test_assign_replaces_what_is_read(rig: Rig, log: TopicPartition):
    """After `assign` no record of the old assignment is returned, from its position on."""
    other = TopicPartition(log.topic, 1)
    await write(rig, log, *(b"old" for _ in range(2000)))
    await write(rig, other, b"new0", b"new1")
    reader = rig.connector.reader("r")
    await reader.assign({log: 0})
    await read(reader)
    await reader.assign({other: 1})
    assert (await read_to_ends(reader, {other: 2}))[other] == [b"new1"]
    await reader.assign({log: 1999})
    assert [record.offset for record in await read_records(reader, 1)] == [1999]
    await reader.close()


async def test_an_empty_assignment_reads_nothing(rig: Rig, log: TopicPartition):
    """A reader can be told to read nothing, and something again."""
    await write(rig, log, b"a")
    reader = rig.connector.reader("r")
    await reader.assign({log: 0})
    await read_records(reader, 1)
    await reader.assign({})
    waiting = asyncio.create_task(reader.read())
    await reader.assign({log: 0})
    await asyncio.wait([waiting], timeout=10)
    assert [item.value for item in waiting.result() if isinstance(item, Record)] == [b"a"]
    await reader.close()


async def test_a_cancelled_read_loses_nothing(rig: Rig, log: TopicPartition):
    """What a cancelled `read` would have returned comes with the next."""
    reader = rig.connector.reader("r")
    await reader.assign({log: 0})
    await read_to_ends(reader, {log: 0})
    offsets: list[int] = []
    for number in range(20):
        waiting = asyncio.create_task(reader.read())
        await write(rig, log, b"%d" % number)
        waiting.cancel()
        for items in await asyncio.gather(waiting, return_exceptions=True):
            if not isinstance(items, BaseException):
                offsets += [item.offset for item in items if isinstance(item, Record)]
    while len(offsets) < 20:
        offsets += [item.offset for item in await read(reader) if isinstance(item, Record)]
    assert offsets == list(range(20))
    await reader.close()


async def test_a_position_below_the_log_start_is_out_of_range(rig: Rig, log: TopicPartition):
    """It is never moved silently; the error names the partition and stays until `assign`."""
    await write(rig, log, *(b"x" for _ in range(10)))
    await trim(rig, log, 5)
    reader = rig.connector.reader("r")
    await reader.assign({log: 2})
    for _ in range(2):
        with pytest.raises(OffsetOutOfRangeError, match=log.topic):
            await read(reader)
    await reader.assign({log: 5})
    assert [record.offset for record in await read_records(reader, 5)] == [5, 6, 7, 8, 9]
    await reader.close()


async def test_a_position_beyond_the_end_is_out_of_range(rig: Rig, log: TopicPartition):
    """It is not taken for a partition that has nothing yet."""
    await write(rig, log, b"x")
    reader = rig.connector.reader("r")
    await reader.assign({log: 7})
    with pytest.raises(OffsetOutOfRangeError, match=log.topic):
        await read(reader)
    await reader.close()


@pytest.mark.parametrize(("suffix", "partition"), [("-absent", 0), ("", 9)])
async def test_a_missing_partition_is_fatal(
    rig: Rig, log: TopicPartition, suffix: str, partition: int
):
    """Neither an unknown topic nor an unknown partition is waited for."""
    reader = rig.connector.reader("r")
    await reader.assign({TopicPartition(log.topic + suffix, partition): 0})
    with pytest.raises(FatalError):
        await read(reader)
    await reader.assign({log: 0})
    await read_to_ends(reader, {log: 0})
    await reader.close()


async def test_a_paused_partition_is_not_fetched_and_resumes_where_it_stood(
    rig: Rig, log: TopicPartition
):
    """While one partition is paused the other goes on; nothing is lost or repeated.

    The pause holds at the latest when something that was written after it has been read.
    """
    other = TopicPartition(log.topic, 1)
    reader = rig.connector.reader("r")
    await reader.assign({log: 0, other: 0})
    await read_to_ends(reader, {log: 0, other: 0})
    await write(rig, log, b"0", b"1")
    assert len(await read_records(reader, 2)) == 2
    reader.pause([log])
    await write(rig, other, b"x")
    assert [record.value for record in await read_records(reader, 1)] == [b"x"]
    await write(rig, log, b"2", b"3")
    await write(rig, other, b"y")
    assert [record.value for record in await read_records(reader, 1)] == [b"y"]
    reader.resume([log])
    assert [record.offset for record in await read_records(reader, 2)] == [2, 3]
    await reader.close()


async def test_nothing_is_paused_once_assigned_anew(rig: Rig, log: TopicPartition):
    """A partition that was paused is read when it is assigned again, now or later."""
    other = TopicPartition(log.topic, 1)
    await write(rig, log, b"0", b"1", b"2")
    await write(rig, other, b"0", b"1", b"2")
    reader = rig.connector.reader("r")
    for data, start in ((log, 0), (log, 1), (other, 0), (log, 2), (other, 1), (log, 0)):
        await reader.assign({data: start})
        found = await read_records(reader, 3 - start)
        assert [record.offset for record in found] == list(range(start, 3))
        reader.pause([data])
    await reader.close()


async def test_what_was_fetched_before_a_pause_comes_once(rig: Rig, log: TopicPartition):
    """Pausing in mid-stream neither loses nor repeats a record, however much was fetched."""
    await write(rig, log, *(bytes(100) for _ in range(5000)))
    reader = rig.connector.reader("r")
    await reader.assign({log: 0})
    offsets: list[int] = []
    while len(offsets) < 5000:
        reader.pause([log])
        reader.resume([log])
        offsets += [item.offset for item in await read(reader) if isinstance(item, Record)]
    assert offsets == list(range(5000))
    await reader.close()


async def test_close_wakes_a_waiting_read(rig: Rig, log: TopicPartition):
    """The waiting `read` and every later one raise `FatalError`; closing twice is safe."""
    reader = rig.connector.reader("r")
    await reader.assign({log: 0})
    await read_to_ends(reader, {log: 0})
    waiting = asyncio.create_task(reader.read())
    await asyncio.sleep(0)
    await reader.close()
    with pytest.raises(FatalError):
        await waiting
    with pytest.raises(FatalError):
        await reader.read()
    with pytest.raises(FatalError):
        await reader.assign({log: 0})
    await reader.close()


async def test_an_unused_reader_closes(rig: Rig):
    """Closing needs no assignment."""
    reader = rig.connector.reader("r")
    await reader.close()
    with pytest.raises(FatalError):
        await reader.read()


async def test_readers_are_independent(rig: Rig, log: TopicPartition):
    """Two readers of one client id see every record each, at their own pace."""
    await write(rig, log, b"a", b"b", b"c")
    one, two = rig.connector.reader("r"), rig.connector.reader("r")
    await one.assign({log: 0})
    await two.assign({log: 2})
    assert len(await read_records(one, 3)) == 3
    assert len(await read_records(two, 1)) == 1
    await one.close()
    await write(rig, log, b"d")
    assert [record.value for record in await read_records(two, 1)] == [b"d"]
    await two.close()


async def test_a_reader_far_behind_holds_back_its_thread(rig: Rig, log: TopicPartition):
    """More records than a reader may hold ahead all arrive, in order."""
    count = 30_000
    await write(rig, log, *(b"x" for _ in range(count)))
    reader = rig.connector.reader("r")
    await reader.assign({log: 0})
    records = await read_records(reader, count)
    assert [record.offset for record in records] == list(range(count))
    await reader.close()


async def test_a_broker_away_is_retriable(rig: Rig):
    """`read` raises `RetriableError` with the address, each time it is called again."""
    reader = rig.unreachable().reader("r")
    await reader.assign({TopicPartition("t", 0): 0})
    for _ in range(2):
        with pytest.raises(RetriableError, match=rig.address):
            async with asyncio.timeout(240):
                await reader.read()
    await reader.close()


async def test_a_record_says_when_it_was_written_to_whom_asks(rig: Rig, log: TopicPartition):
    """Milliseconds since 1970; other readers are spared the cost."""
    await write(rig, log, b"a")
    for timestamps in (True, False):
        reader = rig.connector.reader("r", timestamps=timestamps)
        await reader.assign({log: 0})
        (record,) = await read_records(reader, 1)
        assert isinstance(record, TimedRecord) is timestamps
        assert getattr(record, "timestamp_ms", 0) >= 0
        await reader.close()
