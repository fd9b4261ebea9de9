"""Several `LogReader`s of one connector: none notices the others, on every connector."""

import asyncio
import random

import pytest

from stilltide.connectors.errors import FatalError, OffsetOutOfRangeError
from stilltide.schemas.values import TopicPartition
from tests.contract.rig import WAIT_S, Rig, create, read, read_records, read_to_ends, write

PARTITIONS = 4
MANY = 10_000
"""Records: more than a reader holds ahead of its caller."""


@pytest.fixture
async def logs(rig: Rig, topic_name: str) -> list[TopicPartition]:
    """The partitions of a new topic, empty."""
    await create(rig, topic_name, PARTITIONS)
    return [TopicPartition(topic_name, number) for number in range(PARTITIONS)]


async def test_each_reads_what_it_was_assigned(rig: Rig, logs: list[TopicPartition]):
    """While others come, turn to another partition and go."""
    one, two, three = (rig.connector.reader(name) for name in ("one", "two", "three"))
    for data in logs:
        await write(rig, data, *(b"%d-%d" % (data.partition, number) for number in range(3)))
    await one.assign({logs[0]: 0, logs[1]: 1})
    assert len(await read_records(one, 5)) == 5
    await two.assign({logs[2]: 0})
    await three.assign({logs[3]: 2})
    assert [it.value for it in await read_records(two, 3)] == [b"2-0", b"2-1", b"2-2"]
    assert [it.value for it in await read_records(three, 1)] == [b"3-2"]
    await two.assign({logs[3]: 1})
    assert [it.value for it in await read_records(two, 2)] == [b"3-1", b"3-2"]
    await three.close()
    await write(rig, logs[3], b"late")
    await write(rig, logs[0], b"later")
    assert [it.value for it in await read_records(two, 1)] == [b"late"]
    assert [it.value for it in await read_records(one, 1)] == [b"later"]
    await two.close()
    await write(rig, logs[1], b"last")
    assert [it.value for it in await read_records(one, 1)] == [b"last"]
    await one.close()


async def test_one_that_does_not_read_holds_up_no_other(rig: Rig, logs: list[TopicPartition]):
    """It gets everything later, in order, each once; what it has paused stays so."""
    slow, quick = rig.connector.reader("slow"), rig.connector.reader("quick")
    await slow.assign({logs[0]: 0, logs[1]: 0})
    await quick.assign({logs[2]: 0})
    await read_to_ends(quick, {logs[2]: 0})
    slow.pause([logs[1]])
    for _ in range(4):
        await write(rig, logs[0], *(b"x" for _ in range(MANY // 4)))
        await write(rig, logs[2], b"now")
        assert [it.value for it in await read_records(quick, 1)] == [b"now"]
    await write(rig, logs[1], b"paused")
    found = await read_records(slow, MANY)
    assert [(it.partition, it.offset) for it in found] == [(0, at) for at in range(MANY)]
    slow.resume([logs[1]])
    assert [it.value for it in await read_records(slow, 1)] == [b"paused"]
    await slow.assign({logs[2]: 0})
    assert len(await read_records(slow, 4)) == 4
    await slow.close()
    await quick.close()


async def test_what_one_cannot_read_is_no_concern_of_others(rig: Rig, logs: list[TopicPartition]):
    """Neither a missing topic nor an offset out of range."""
    lost, beyond, sound = (rig.connector.reader(name) for name in ("lost", "beyond", "sound"))
    await sound.assign({logs[0]: 0})
    await lost.assign({TopicPartition(logs[0].topic + "-absent", 0): 0})
    await beyond.assign({logs[1]: 99})
    with pytest.raises(FatalError):
        await read(lost)
    with pytest.raises(OffsetOutOfRangeError, match=str(logs[1])):
        await read(beyond)
    await write(rig, logs[0], b"x")
    assert [it.value for it in await read_records(sound, 1)] == [b"x"]
    await beyond.assign({logs[2]: 0})
    await write(rig, logs[2], b"y")
    assert [it.value for it in await read_records(beyond, 1)] == [b"y"]
    for reader in (lost, beyond, sound):
        await reader.close()


@pytest.mark.parametrize("seed", range(3))
async def test_any_order_of_assignments(rig: Rig, logs: list[TopicPartition], seed: int):
    """Readers that turn to whatever partitions they like, some of them the same, read these."""
    chance = random.Random(seed)
    counts = {data: chance.randrange(1, 3000) for data in logs}
    for data, count in counts.items():
        await write(rig, data, *(b"%d" % number for number in range(count)))
    readers = [rig.connector.reader(f"r{number}") for number in range(4)]
    for _ in range(6):
        for reader in chance.sample(readers, 3):
            chosen = chance.sample(logs, chance.randrange(1, 3))
            positions = {data: chance.randrange(counts[data]) for data in chosen}
            await reader.assign(positions)
            if chance.random() < 0.3:
                await read(reader)
                continue
            values = await read_to_ends(reader, {data: counts[data] for data in chosen})
            for data, start in positions.items():
                assert values[data] == [b"%d" % it for it in range(start, counts[data])]
    for reader in readers:
        await reader.close()


async def test_all_close_at_once(rig: Rig, logs: list[TopicPartition]):
    """A reader made afterwards reads."""
    readers = [rig.connector.reader(f"r{number}") for number in range(PARTITIONS)]
    for reader, data in zip(readers, logs, strict=True):
        await reader.assign({data: 0})
    await asyncio.gather(*(reader.close() for reader in readers))
    await write(rig, logs[0], b"x")
    after = rig.connector.reader("after")
    await after.assign({logs[0]: 0})
    (record,) = await read_records(after, 1)
    assert record.value == b"x"
    await after.close()


async def test_each_closes_though_the_close_of_another_is_cancelled(
    rig: Rig, logs: list[TopicPartition]
):
    """A reader that waits to leave a shared consumer hears of its end from the consumer itself."""
    first, last = rig.connector.reader("first"), rig.connector.reader("last")
    await first.assign({logs[0]: 0})
    await last.assign({logs[1]: 0})
    closing = [asyncio.create_task(it.close()) for it in (first, last)]
    await asyncio.sleep(0)  # both have begun
    closing[1].cancel()
    done, _ = await asyncio.wait(closing, timeout=WAIT_S)
    assert done == set(closing)
    assert closing[0].exception() is None
