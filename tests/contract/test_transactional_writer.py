"""`TransactionalWriter`: promises of connectors.ports, on every connector."""

import asyncio

import pytest

from stilltide.connectors.errors import ConnectorError, FatalError, FencedError, RetriableError
from stilltide.connectors.kafka.config import RECORD_BYTES_MAX
from stilltide.connectors.ports.readers import EndReached, NewRecord, Record
from stilltide.schemas.values import Offset, TopicPartition
from tests.contract.rig import WAIT_S, Rig, create, read, write


def _set(data: TopicPartition, *values: bytes | None) -> list[NewRecord]:
    return [NewRecord(data, b"k%d" % number, value) for number, value in enumerate(values)]


async def _visible(rig: Rig, data: TopicPartition) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values that a reader of committed data finds behind all that is there now."""
    await write(rig, data, b"last")
    reader = rig.connector.reader("r")
    await reader.assign({data: Offset(0)})
    found: list[tuple[bytes | None, bytes | None]] = []
    while not found or found[-1][1] != b"last":
        found += [(it.key, it.value) for it in await read(reader) if isinstance(it, Record)]
    await reader.close()
    return found[:-1]


async def test_a_set_is_there_in_order_once_write_returns(rig: Rig, log: TopicPartition):
    """Over several partitions, tombstones too; the set after it follows."""
    other = TopicPartition(log.topic, 1)
    writer = rig.connector.transactional_writer("t-order")
    await writer.fence()
    await writer.write([*_set(log, b"a", None), *_set(other, b"c")])
    await writer.write(_set(log, b"d"))
    await writer.write([])
    assert await _visible(rig, log) == [(b"k0", b"a"), (b"k1", None), (b"k0", b"d")]
    assert await _visible(rig, other) == [(b"k0", b"c")]
    await writer.close()


async def test_a_set_takes_one_offset_more_than_its_records(rig: Rig, log: TopicPartition):
    """Of the control record, which readers pass over."""
    writer = rig.connector.transactional_writer("t-offsets")
    await writer.fence()
    await writer.write(_set(log, b"a", b"b"))
    reader = rig.connector.reader("r")
    await reader.assign({log: Offset(0)})
    items: list[Record | EndReached] = []
    while not any(isinstance(it, EndReached) and it.end_offset == 3 for it in items):
        items += await read(reader)
    admin = rig.connector.admin()
    assert await admin.end_offsets([log], committed=True) == {log: 3}
    assert [it.offset for it in items if isinstance(it, Record)] == [0, 1]
    await reader.close()
    await admin.close()
    await writer.close()


async def test_who_fences_last_writes(rig: Rig, log: TopicPartition):
    """The one before gets `FencedError`, and nothing of its set is ever seen."""
    first = rig.connector.transactional_writer("t-fence")
    second = rig.connector.transactional_writer("t-fence")
    await first.fence()
    await first.write(_set(log, b"first"))
    await second.fence()
    with pytest.raises(FencedError):
        await first.write(_set(log, b"zombie"))
    await second.write(_set(log, b"second"))
    assert [value for _, value in await _visible(rig, log)] == [b"first", b"second"]
    await first.fence()  # it may take the id back
    await first.write(_set(log, b"again"))
    with pytest.raises(FencedError):
        await second.write(_set(log, b"zombie"))
    assert [value for _, value in await _visible(rig, log)] == [
        b"first",
        b"second",
        b"last",
        b"again",
    ]
    await first.close()
    await second.close()


async def test_other_ids_do_not_fence_each_other(rig: Rig, log: TopicPartition):
    """A transactional id is fenced by its own kind only."""
    first = rig.connector.transactional_writer("t-one")
    second = rig.connector.transactional_writer("t-two")
    await first.fence()
    await second.fence()
    await first.write(_set(log, b"one"))
    await second.write(_set(log, b"two"))
    assert [value for _, value in await _visible(rig, log)] == [b"one", b"two"]
    await first.close()
    await second.close()


@pytest.mark.parametrize("wrong", ["no such partition", "too large", "no such topic"])
async def test_nothing_of_a_set_is_seen_when_one_record_cannot_be_written(
    rig: Rig, log: TopicPartition, wrong: str
):
    """`FatalError`; `fence` comes before the next set, which is not hindered."""
    impossible = {
        "no such partition": NewRecord(TopicPartition(log.topic, 7), b"k", b"x"),
        "too large": NewRecord(log, b"k", bytes(RECORD_BYTES_MAX - 100)),
        "no such topic": NewRecord(TopicPartition(f"{log.topic}-absent", 0), b"k", b"x"),
    }[wrong]
    writer = rig.connector.transactional_writer("t-impossible")
    await writer.fence()
    with pytest.raises(FatalError):
        await writer.write([*_set(log, b"a"), impossible])
    with pytest.raises(FatalError, match="fence"):
        await writer.write(_set(log, b"b"))
    await writer.fence()
    await writer.write(_set(log, b"c"))
    assert [value for _, value in await _visible(rig, log)] == [b"c"]
    await writer.close()


async def test_a_set_larger_than_the_queue_is_written(rig: Rig, log: TopicPartition):
    """Waits for room on its own."""
    writer = rig.connector.transactional_writer("t-large")
    await writer.fence()
    await writer.write([NewRecord(log, b"k%d" % number, bytes(1000)) for number in range(20_000)])
    assert len(await _visible(rig, log)) == 20_000
    await writer.close()


async def test_a_compacted_topic_takes_keyed_records_only(rig: Rig, topic_name: str):
    """As an ordinary writer's; nothing of the set is there."""
    await create(rig, topic_name, cleanup_policy="compact")
    data = TopicPartition(topic_name, 0)
    writer = rig.connector.transactional_writer("t-compact")
    await writer.fence()
    with pytest.raises(FatalError):
        await writer.write([*_set(data, b"a"), NewRecord(data, None, b"x")])
    await writer.fence()
    await writer.write(_set(data, b"b"))
    assert [value for _, value in await _visible(rig, data)] == [b"b"]
    await writer.close()


async def test_fence_says_that_the_cluster_does_not_answer(rig: Rig):
    """`RetriableError` with its address."""
    writer = rig.unreachable().transactional_writer("t-away")
    with pytest.raises(RetriableError, match=rig.address):
        await writer.fence()
    await writer.close()


async def test_before_fence_and_after_close_nothing_is_written(rig: Rig, log: TopicPartition):
    """`FatalError`, at once."""
    writer = rig.connector.transactional_writer("t-closed")
    with pytest.raises(FatalError, match="fence"):
        await writer.write(_set(log, b"a"))
    await writer.fence()
    await writer.close()
    await writer.close()
    for call in (writer.fence, lambda: writer.write(_set(log, b"a"))):
        with pytest.raises(FatalError, match="closed"):
            await call()
    assert await _visible(rig, log) == []


async def test_close_waits_for_a_set_under_way(rig: Rig, log: TopicPartition):
    """The set is there whole or not at all, and its writer was told."""
    writer = rig.connector.transactional_writer("t-under-way")
    await writer.fence()
    writing = asyncio.create_task(writer.write(_set(log, b"a", b"b")))
    await asyncio.sleep(0)
    await writer.close()
    async with asyncio.timeout(WAIT_S):
        try:
            await writing
            told: list[bytes] = [b"a", b"b"]
        except ConnectorError:
            told = []
    assert [value for _, value in await _visible(rig, log)] == told
