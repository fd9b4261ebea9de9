"""`LogWriter`: promises of connectors.ports, on every connector."""

import asyncio
from contextlib import suppress

import pytest

from stilltide.connectors.errors import FatalError, RetriableError
from stilltide.connectors.kafka.config import RECORD_BYTES_MAX
from stilltide.connectors.ports.writers import append
from stilltide.schemas.values import Offset, TopicPartition
from tests.contract.rig import Reports, Rig, create, read_records, write


async def test_reports_come_in_the_order_of_appends_with_growing_offsets(
    rig: Rig, log: TopicPartition
):
    """Each append is reported once, in order per partition, at consecutive offsets."""
    writer, reports = rig.connector.writer("w"), Reports()
    for number in range(1000):
        writer.append(log, b"%d" % number, reports.of(number))
    await reports.wait_for(1000)
    await writer.close()
    assert [number for number, _, _ in reports.seen] == list(range(1000))
    assert reports.offsets == list(range(1000))


async def test_reports_keep_their_order_in_a_crowd_and_after_it(rig: Rig, log: TopicPartition):
    """Many records are under way for a while, then one at a time, then many again."""
    writer, reports = rig.connector.writer("w"), Reports()
    sent = 0
    for under_way, count in ((500, 3000), (1, 200), (500, 3000)):
        for _ in range(count):
            await reports.wait_for(sent - under_way + 1)
            writer.append(log, b"%d" % sent, reports.of(sent))
            sent += 1
    await reports.wait_for(sent)
    await writer.close()
    assert [number for number, _, _ in reports.seen] == list(range(sent))
    assert reports.offsets == list(range(sent))


async def test_a_report_never_comes_within_its_append(rig: Rig, log: TopicPartition):
    """`append` returns before `delivered` is called."""
    writer, reports = rig.connector.writer("w"), Reports()
    writer.append(log, b"x", reports.of(0))
    assert reports.seen == []
    await reports.wait_for(1)
    await writer.close()


async def test_partitions_have_offsets_of_their_own(rig: Rig, log: TopicPartition):
    """Offsets count per partition."""
    other = TopicPartition(log.topic, 1)
    assert await write(rig, log, b"a", b"b") == [0, 1]
    assert await write(rig, other, b"c") == [0]
    assert await write(rig, log, b"d") == [2]


async def test_key_value_and_headers_arrive_as_written(rig: Rig, log: TopicPartition):
    """Null and empty stay apart; headers keep order and repeats; without any they are None."""
    writer, reports = rig.connector.writer("w"), Reports()
    headers = [("b", b"1"), ("a", b""), ("b", b"2")]
    writer.append(log, b"", reports.of(0), key=b"", headers=headers)
    writer.append(log, None, reports.of(1), key=b"k")
    writer.append(log, b"v", reports.of(2))
    writer.append(log, b"v", reports.of(3), headers=[])
    await reports.wait_for(4)
    reader = rig.connector.reader("r")
    await reader.assign({log: Offset(0)})
    full, tombstone, bare, no_headers = await read_records(reader, 4)
    assert (full.key, full.value, list(full.headers or ())) == (b"", b"", headers)
    assert (tombstone.key, tombstone.value, tombstone.headers) == (b"k", None, None)
    assert (bare.key, bare.value, bare.headers) == (None, b"v", None)
    assert no_headers.headers is None
    await reader.close()
    await writer.close()


async def test_a_record_too_large_for_any_topic_is_refused_at_once(rig: Rig, log: TopicPartition):
    """`append` raises `FatalError`, nothing is reported, and the writer goes on."""
    writer, reports = rig.connector.writer("w"), Reports()
    with pytest.raises(FatalError):
        writer.append(log, bytes(RECORD_BYTES_MAX + 1), reports.of(0))
    writer.append(log, b"x", reports.of(1))
    await reports.wait_for(1)
    assert reports.offsets == [0]
    await writer.close()


async def test_a_record_too_large_for_its_topic_is_reported(rig: Rig, topic_name: str):
    """The topic's own limit comes back as `FatalError`, and the writer goes on."""
    await create(rig, topic_name, max_message_bytes="10000")
    data = TopicPartition(topic_name, 0)
    writer, reports = rig.connector.writer("w"), Reports()
    writer.append(data, bytes(20_000), reports.of(0))
    await reports.wait_for(1)
    assert isinstance(reports.seen[0][1], FatalError)
    reports.seen.clear()
    writer.append(data, b"x", reports.of(1))
    await reports.wait_for(1)
    assert reports.offsets == [0]
    await writer.close()


async def test_five_mebibytes_pass(rig: Rig, topic_name: str):
    """The largest log entry is written and read."""
    await create(rig, topic_name, max_message_bytes=str(5 * 1024 * 1024))
    data = TopicPartition(topic_name, 0)
    large = bytes(5 * 1024 * 1024 - 1000)
    assert await write(rig, data, large, large) == [0, 1]
    reader = rig.connector.reader("r")
    await reader.assign({data: Offset(0)})
    assert [record.value for record in await read_records(reader, 2)] == [large, large]
    await reader.close()


@pytest.mark.parametrize(("suffix", "partition"), [("-absent", 0), ("", 9)])
async def test_a_missing_partition_is_a_fatal_report(
    rig: Rig, log: TopicPartition, suffix: str, partition: int
):
    """Neither an unknown topic nor an unknown partition is tried for ever."""
    writer, reports = rig.connector.writer("w"), Reports()
    writer.append(TopicPartition(log.topic + suffix, partition), b"x", reports.of(0))
    await reports.wait_for(1)
    assert isinstance(reports.seen[0][1], FatalError)
    await writer.close()


async def test_a_full_queue_refuses_and_room_lets_go_on(rig: Rig, log: TopicPartition):
    """`RetriableError` while the queue is full; after `room` every record gets in, in order."""
    writer, reports = rig.with_queue_of(10).writer("w"), Reports()
    refused = 0
    for number in range(200):
        while True:
            try:
                writer.append(log, b"%d" % number, reports.of(number))
                break
            except RetriableError:
                refused += 1
                async with asyncio.timeout(240):
                    await writer.room()
    await reports.wait_for(200)
    assert refused > 0
    assert reports.offsets == list(range(200))
    await writer.close()


async def test_a_write_that_is_waited_for_waits_for_room_too(rig: Rig, log: TopicPartition):
    """`append` of the port raises nothing while the queue is full, and every record gets in."""
    writer = rig.with_queue_of(3).writer("w")
    async with asyncio.timeout(240):
        offsets = await asyncio.gather(*[append(writer, log, b"x") for _ in range(100)])
    assert sorted(offsets) == list(range(100))
    await writer.close()


async def test_asking_for_room_first_avoids_refusals(rig: Rig, log: TopicPartition):
    """After `room` an append gets in, also when none was refused before."""
    writer, reports = rig.with_queue_of(1).writer("w"), Reports()
    for number in range(20):
        async with asyncio.timeout(240):
            await writer.room()
        writer.append(log, b"x", reports.of(number))
    await reports.wait_for(20)
    assert reports.offsets == list(range(20))
    await writer.close()


async def test_room_returns_at_once_when_there_is_room(rig: Rig, log: TopicPartition):
    """`room` waits for nothing on an idle writer."""
    writer = rig.connector.writer("w")
    async with asyncio.timeout(0):
        await writer.room()
    await writer.close()


async def test_flush_waits_for_every_report(rig: Rig, log: TopicPartition):
    """`flush` is True only after each callback has been called."""
    writer, reports = rig.connector.writer("w", linger_ms=20), Reports()
    for number in range(50):
        writer.append(log, b"x", reports.of(number))
    assert await writer.flush(10)
    assert len(reports.seen) == 50
    assert await writer.flush(0)
    await writer.close()


async def test_a_flush_does_not_linger(rig: Rig, log: TopicPartition):
    """What is queued lands long before its linger is over; the next records linger again.

    A flush lasts a millisecond, in which the sending thread of a busy machine may not run: the test
    flushes again.
    """
    writer, reports = rig.connector.writer("w", linger_ms=20_000), Reports()
    writer.flush_soon()  # of nothing
    for first, end in ((0, 1), (1, 20)):  # the first one connects
        for number in range(first, end):
            writer.append(log, b"%d" % number, reports.of(number))
        async with asyncio.timeout(15):
            while len(reports.seen) < end:
                writer.flush_soon()
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.5):
                        await reports.wait_for(end)
    assert sorted(reports.offsets) == list(range(20))
    writer.append(log, b"lingers", reports.of(20))
    await writer.close()
    writer.flush_soon()
    assert len(reports.seen) == 21


async def test_an_exception_in_a_callback_costs_no_other_report(rig: Rig, log: TopicPartition):
    """The loop's exception handler gets it; every other report still comes."""
    writer, reports = rig.connector.writer("w"), Reports()
    caught: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: caught.append(context.get("exception"))
    )
    boom = ValueError("boom")

    def fail(*_: object) -> None:
        raise boom

    writer.append(log, b"0", reports.of(0))
    writer.append(log, b"1", fail)
    writer.append(log, b"2", reports.of(2))
    await writer.flush(10)
    await writer.close()
    assert [number for number, _, _ in reports.seen] == [0, 2]
    assert caught == [boom]


async def test_nothing_is_appended_after_close(rig: Rig, log: TopicPartition):
    """`append` raises `FatalError` on a closed writer, used or not; closing twice is safe."""
    used, unused = rig.connector.writer("w"), rig.connector.writer("w")
    reports = Reports()
    used.append(log, b"x", reports.of(0))
    for writer in (used, unused):
        await writer.close()
        await writer.close()
        with pytest.raises(FatalError):
            writer.append(log, b"x", reports.of(1))
    assert reports.offsets == [0]


async def test_writers_share_a_partition(rig: Rig, log: TopicPartition):
    """Two writers interleave; each one's records keep their order."""
    one, two = rig.connector.writer("one"), rig.connector.writer("two")
    reports = Reports()
    for number in range(100):
        (one if number % 2 else two).append(log, b"%d" % number, reports.of(number))
    await reports.wait_for(100)
    await one.close()
    await two.close()
    assert sorted(reports.offsets) == list(range(100))
    for start in (0, 1):
        mine = [(number, offset) for number, _, offset in reports.seen if number % 2 == start]
        assert mine == sorted(mine)


async def test_a_broker_away_is_a_retriable_report_in_bounded_time(rig: Rig):
    """The report names the address and comes within the delivery time-out."""
    writer, reports = rig.unreachable().writer("w"), Reports()
    writer.append(TopicPartition("t", 0), b"x", reports.of(0))
    async with asyncio.timeout(240):
        await reports.wait_for(1)
    error = reports.seen[0][1]
    assert isinstance(error, RetriableError)
    assert rig.address in str(error)
    await writer.close()


async def test_close_fails_what_it_cannot_flush(rig: Rig):
    """Every append is reported, also those that a close cuts off."""
    writer, reports = rig.unreachable().writer("w"), Reports()
    for number in range(20):
        writer.append(TopicPartition("t", 0), b"x", reports.of(number))
    await writer.close(0.05)
    assert sorted(number for number, _, _ in reports.seen) == list(range(20))
    assert all(isinstance(error, RetriableError) for _, error, _ in reports.seen)
