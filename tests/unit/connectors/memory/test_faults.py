"""What tests may do to the memory broker, beyond the contract."""

import asyncio

import pytest

from stilltide.connectors.errors import ConnectorError, FatalError, RetriableError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.clock import MemoryClock
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.ports.readers import EndReached, Record
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TopicPartition

pytestmark = pytest.mark.topics(TopicSpec("t", 1), TopicSpec("u", 1, {"cleanup.policy": "compact"}))

DATA = TopicPartition("t", 0)
OTHER = TopicPartition("u", 0)


class _Writer:
    """A writer that keeps its reports."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.writer = MemoryConnector(broker).writer("w")
        self.reports: list[tuple[type[ConnectorError] | None, int]] = []

    def append(self, value: bytes | None, data: TopicPartition = DATA, key: bytes = b"k") -> None:
        self.writer.append(data, value, self._note, key=key)

    def _note(self, error: ConnectorError | None, offset: int) -> None:
        self.reports.append((type(error) if error else None, offset))


async def test_down_fails_writes_and_reads_until_up(broker: MemoryBroker):
    """What is appended while down does not land; logs and positions survive."""
    writer, connector = _Writer(broker), MemoryConnector(broker)
    writer.append(b"0")
    assert await writer.writer.flush(1)
    reader = connector.reader("r")
    await reader.assign({DATA: Offset(0)})
    broker.down()
    writer.append(b"1")
    assert await writer.writer.flush(1)
    with pytest.raises(RetriableError):
        await reader.read()
    with pytest.raises(RetriableError):
        await connector.admin().end_offsets([DATA])
    broker.up()
    assert writer.reports == [(None, 0), (RetriableError, -1)]
    assert [item.offset for item in await reader.read() if isinstance(item, Record)] == [0]


async def test_down_wakes_a_waiting_read(broker: MemoryBroker):
    """A reader at the end hears of the outage, and of nothing when it is over."""
    reader = MemoryConnector(broker).reader("r")
    await reader.assign({DATA: Offset(0)})
    assert await reader.read() == [EndReached("t", 0, 0)]
    waiting = asyncio.create_task(reader.read())
    await asyncio.sleep(0)
    broker.down()
    with pytest.raises(RetriableError):
        await waiting


async def test_a_group_forms_when_the_broker_is_up(broker: MemoryBroker):
    """Nobody is assigned anything during an outage."""
    broker.down()
    assigned: list[object] = []
    member = MemoryConnector(broker).group_reader("m", "g")
    await member.subscribe(["t"], assigned=assigned.append, revoked=lambda _: None)
    await asyncio.sleep(0)
    assert assigned == []
    broker.up()
    assert assigned == [{DATA: 0}]


async def test_held_writes_land_in_order_on_release(broker: MemoryBroker):
    """They neither land nor are reported before; other topics go on."""
    writer = _Writer(broker)
    broker.hold("t")
    writer.append(b"0")
    writer.append(b"x", OTHER)
    writer.append(b"1")
    assert not await writer.writer.flush(0)
    assert writer.reports == [(None, 0)]
    assert broker.records(DATA) == ()
    broker.release()
    assert await writer.writer.flush(1)
    assert [record.value for record in broker.records(DATA)] == [b"0", b"1"]
    assert writer.reports == [(None, 0), (None, 0), (None, 1)]


async def test_close_fails_what_is_held(broker: MemoryBroker):
    """Every append is reported; what was held never lands."""
    writer = _Writer(broker)
    broker.hold("t")
    writer.append(b"0")
    await writer.writer.close(0)
    broker.release()
    assert writer.reports == [(RetriableError, -1)]
    assert broker.records(DATA) == ()


async def test_a_lost_report_is_of_a_record_that_landed(broker: MemoryBroker):
    """The writer cannot tell (A5); only the next record is affected."""
    writer = _Writer(broker)
    broker.reports.lose("t")
    writer.append(b"0")
    writer.append(b"1")
    assert await writer.writer.flush(1)
    assert writer.reports == [(RetriableError, -1), (None, 1)]
    assert len(broker.records(DATA)) == 2


async def test_a_hidden_offset_is_minus_one(broker: MemoryBroker):
    """Durable at an unknown offset, as after an idempotent retry."""
    writer = _Writer(broker)
    broker.reports.hide_offset("t")
    writer.append(b"0")
    assert await writer.writer.flush(1)
    assert writer.reports == [(None, -1)]


async def test_compaction_keeps_offsets_and_readers_pass_the_gaps(broker: MemoryBroker):
    """The last value of each key stays where it was; tombstones and all before them go."""
    writer = _Writer(broker)
    for key, value in ((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", None)):
        writer.append(value, OTHER, key)
    assert await writer.writer.flush(1)
    broker.topics["u"].compact()
    reader = MemoryConnector(broker).reader("r")
    await reader.assign({OTHER: Offset(0)})
    items = list(await reader.read())
    while not isinstance(items[-1], EndReached):
        items += await reader.read()
    assert items == [Record("u", 0, Offset(2), b"a", b"2", None), EndReached("u", 0, 4)]


async def test_a_compacted_topic_refuses_a_record_without_key(broker: MemoryBroker):
    """As Kafka does."""
    reports: list[ConnectorError | None] = []
    writer = MemoryConnector(broker).writer("w")
    writer.append(OTHER, b"x", lambda error, _: reports.append(error))
    assert await writer.flush(1)
    assert isinstance(reports[0], FatalError)


async def test_a_topic_made_again_has_another_id(broker: MemoryBroker):
    """And its readers are told that the old one is gone."""
    admin = MemoryConnector(broker).admin()
    before = (await admin.describe_topics(["t"]))["t"].topic_id
    reader = MemoryConnector(broker).reader("r")
    await reader.assign({DATA: Offset(0)})
    broker.delete_topic("t")
    with pytest.raises(FatalError):
        await reader.read()
    broker.create_topic(TopicSpec("t", 1))
    assert (await admin.describe_topics(["t"]))["t"].topic_id != before


def test_the_clock_moves_only_when_told():
    """Also back, as a wall clock may."""
    clock = MemoryClock(5)
    clock.advance(10)
    assert (clock.now_ms(), clock.now_ms()) == (15, 15)
    clock.set(3)
    assert clock.now_ms() == 3
