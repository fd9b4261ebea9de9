"""The owner of a log on the memory broker: fencing, read-back, and what it does when they fail."""

import asyncio

import pytest

from stilltide.connectors.errors import ConnectorError, FatalError, FencedError, RetriableError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits
from stilltide.pipeline.drivers.coordinator.owner import CODEC
from stilltide.schemas.coordinator import txn_log
from stilltide.schemas.errors import DecodeError, UnknownVersionError
from stilltide.schemas.framing import decode_value, encode_batch
from stilltide.schemas.headers import EntryStamp, entry_stamp
from stilltide.schemas.log_frames import Fence, Noop
from stilltide.schemas.topics import TXN_LOG, TopicSpec
from stilltide.schemas.values import BatchPosition, Offset
from tests.support.buffered_log.appending import append_and_wait
from tests.support.buffered_log.owner import LOG, Owner, raised
from tests.support.coordinator.worker_memory import until

pytestmark = pytest.mark.topics(TopicSpec(TXN_LOG, 1))

NOOP = CODEC.encode(Noop(), 0)
UNBATCHED = BatchLimits(batching=False)


async def write(
    connector: Connector, value: bytes | None, headers: list[tuple[str, bytes]] | None = None
) -> Offset:
    """Appends to the log as anybody may; the record's offset."""
    written: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def delivered(error: ConnectorError | None, offset: int) -> None:
        assert error is None
        written.set_result(offset)

    writer = connector.writer("stranger")
    writer.append(LOG, value, delivered, headers=headers)
    await writer.close()
    return Offset(await written)


async def test_serves_after_its_fence_was_read(broker: MemoryBroker, owner: Owner):
    """B1: the first thing in an empty log is the fence, and its offset is the epoch."""
    await owner.serving()
    (fence,) = broker.records(LOG)
    assert fence.value is not None
    assert isinstance(txn_log.decode(fence.value).body, Fence)
    assert owner.log.epoch == fence.offset == 0


async def test_an_append_is_told_where_it_was_read_back(broker: MemoryBroker, owner: Owner):
    """A1, A4, B2: records of one turn share an entry; results come in order, with its place."""
    await owner.serving()
    places = await asyncio.gather(*(append_and_wait(owner.log, b"%d" % n) for n in range(3)))
    assert places == [BatchPosition(0, Offset(1), 3, index) for index in range(3)]
    entry = broker.records(LOG)[1]
    assert decode_value(entry.value) == [b"0", b"1", b"2"]
    assert entry_stamp(entry.headers) == EntryStamp(Offset(0), 1)
    assert owner.entries == [([b"0", b"1", b"2"], True)]


async def test_a_lone_record_is_written_bare(broker: MemoryBroker, owner: Owner):
    """A4: nothing is framed that stands alone."""
    await owner.serving()
    assert await append_and_wait(owner.log, b"alone") == BatchPosition(0, Offset(1), 1, 0)
    assert broker.records(LOG)[1].value == b"alone"


async def test_unbatched_records_are_entries_of_their_own(
    broker: MemoryBroker, connector: MemoryConnector
):
    """A7: with batching off each record is one entry, in order of the calls."""
    owner = Owner(connector, UNBATCHED)
    await owner.serving()
    places = await asyncio.gather(*(append_and_wait(owner.log, b"%d" % n) for n in range(3)))
    assert [(it.offset, it.batch_size) for it in places] == [(1, 1), (2, 1), (3, 1)]
    assert [it.value for it in broker.records(LOG)[1:]] == [b"0", b"1", b"2"]
    await owner.close()


async def test_limits_change_while_it_serves(broker: MemoryBroker, owner: Owner):
    """A7: batching is switched at run time; what was buffered leaves first."""
    await owner.serving()
    first = asyncio.gather(*(append_and_wait(owner.log, it) for it in (b"a", b"b")))
    await asyncio.sleep(0)
    owner.log.limits_changed(UNBATCHED)
    second = asyncio.gather(*(append_and_wait(owner.log, it) for it in (b"c", b"d")))
    assert [it.batch_size for it in [*await first, *await second]] == [2, 2, 1, 1]
    assert [it.value for it in broker.records(LOG)[2:]] == [b"c", b"d"]


async def test_a_successor_replays_what_was_acknowledged(owner: Owner, successor: Owner):
    """B1: the next owner applies every effective entry before it serves, as not its own."""
    await owner.serving()
    for record in (b"a", b"b"):
        await append_and_wait(owner.log, record)
    await successor.serving()
    assert successor.entries == [([b"a"], False), ([b"b"], False)]
    assert successor.log.epoch == 3


async def test_a_later_fence_ends_an_ownership(owner: Owner, successor: Owner):
    """B4: the owner that is replaced stops with `FencedError`, and takes no more appends."""
    task = await owner.serving()
    await successor.serving()
    error = await raised(task)
    assert isinstance(error, FencedError)
    assert (error.place, error.detail) == (str(LOG), "a fence at offset 1")
    assert owner.log.epoch is None
    with pytest.raises(FencedError):
        owner.log.append(b"late")


async def test_an_owner_is_given_what_it_appended(owner: Owner, successor: Owner):
    """What was decoded before is not decoded again; the next owner has the bytes alone."""
    await owner.serving()
    owner.log.append(b"a", None, "decoded")
    owner.log.append(b"b")
    await until(lambda: owner.entries)
    assert owner.entries == [(["decoded", b"b"], True)]
    await successor.serving()
    assert successor.entries == [([b"a", b"b"], False)]


async def test_a_forgery_of_its_own_entry_ends_the_owner(broker: MemoryBroker, owner: Owner):
    """B2: what the next owner reads is what counts, not what this one meant to write."""
    task = await owner.serving()
    broker.hold(TXN_LOG)
    waiting = asyncio.create_task(append_and_wait(owner.log, b"mine"))
    await owner.held_back()
    offset = broker.append(LOG, None, b"forged", EntryStamp(Offset(0), 1).to_headers())
    error = await raised(task)
    assert isinstance(error, DecodeError)
    assert error.place == f"{LOG}@{offset}"
    assert owner.entries == []
    await asyncio.gather(waiting, return_exceptions=True)


async def test_a_zombie_appends_and_acknowledges_nothing(
    broker: MemoryBroker, connector: MemoryConnector
):
    """B2, B3, B4: an entry behind a later fence is not effective for anybody."""
    successor = Owner(connector)
    owner = Owner(connector)
    task = await owner.serving()
    broker.hold(TXN_LOG)
    waiting = asyncio.create_task(append_and_wait(owner.log, b"from a zombie"))
    await owner.held_back()
    taking_over = asyncio.create_task(successor.serving())
    await successor.held_back()
    broker.release()
    with pytest.raises(FencedError):
        await waiting
    assert isinstance(await raised(task), FencedError)
    await taking_over
    await append_and_wait(successor.log, b"mine")
    values = [it.value for it in broker.records(LOG)]
    assert values[2:] == [b"from a zombie", b"mine"]
    assert successor.entries == [([b"mine"], True)]
    await asyncio.gather(owner.close(), successor.close())


async def test_a_lost_report_is_settled_by_the_read_back(broker: MemoryBroker, owner: Owner):
    """B5: a write whose report was lost has landed, and counts where it was read."""
    await owner.serving()
    broker.reports.lose(TXN_LOG)
    assert (await append_and_wait(owner.log, b"landed")).offset == 1


async def test_a_write_that_never_landed_is_settled_by_a_noop(broker: MemoryBroker, owner: Owner):
    """B5: the failed write fails its own caller once a later entry is read back, no other."""
    await owner.serving()
    broker.down()
    lost = asyncio.create_task(append_and_wait(owner.log, b"lost"))
    await until(lambda: owner.log._owner is not None and owner.log._owner.in_flight > 1)
    assert not lost.done()
    broker.up()
    with pytest.raises(RetriableError, match="not written"):
        await lost
    assert [it.value for it in broker.records(LOG)[1:]] == [NOOP]
    assert isinstance(txn_log.decode(NOOP).body, Noop)
    assert (await append_and_wait(owner.log, b"next")).offset == 2
    assert owner.log.in_flight == 0


async def test_a_report_without_offset_is_settled_by_the_read_back(
    broker: MemoryBroker, owner: Owner
):
    """B3: a durable record whose offset the producer does not know has the one it is read at."""
    await owner.serving()
    broker.reports.hide_offset(TXN_LOG)
    assert (await append_and_wait(owner.log, b"somewhere")).offset == 1


async def test_a_lost_report_of_the_fence_is_survived(broker: MemoryBroker, owner: Owner):
    """B1, B5: a fence whose fate is unknown costs another fence, not the ownership."""
    broker.reports.lose(TXN_LOG)
    await owner.serving()
    assert (await append_and_wait(owner.log, b"mine")).offset == len(broker.records(LOG)) - 1


@pytest.mark.parametrize(
    ("value", "headers", "kind"),
    [
        (b"\x0e\x01\x00\x02whatever", EntryStamp(Offset(0), 1).to_headers(), UnknownVersionError),
        (b"\x0e\x01\x00\x01\xff\xff", EntryStamp(Offset(0), 1).to_headers(), DecodeError),
        (None, EntryStamp(Offset(0), 1).to_headers(), DecodeError),
    ],
    ids=["later version", "corrupt batch", "null"],
)
async def test_an_effective_entry_that_cannot_be_understood_stops_the_owner(
    connector: MemoryConnector,
    owner: Owner,
    value: bytes | None,
    headers: list[tuple[str, bytes]] | None,
    kind: type[DecodeError],
):
    """B6: damage or a newer version ends the owner with topic, partition and offset."""
    task = await owner.serving()
    waiting = asyncio.create_task(append_and_wait(owner.log, b"mine"))
    await asyncio.sleep(0)
    offset = await write(connector, value, headers)
    error = await raised(task)
    assert isinstance(error, kind)
    assert error.place == f"{LOG}@{offset}"
    await asyncio.gather(waiting, return_exceptions=True)


FOREIGN: list[tuple[bytes | None, list[tuple[str, bytes]] | None]] = [
    (b"x", None),
    (b"", None),
    (None, None),
    (NOOP, None),
    (b"\x0e\x01\x00\x02whatever", None),
    (CODEC.encode(Fence(b"n" * 16), 0), [("epoch", b"12345678")]),
    (b"x", [("epoch", b"1"), ("serial", b"2")]),
    (b"x", EntryStamp(Offset(2**63), 1).to_headers()),
    (b"\x0e\x01\x00\x01\xff\xff", EntryStamp(Offset(1), 1).to_headers()),
    (None, EntryStamp(Offset(0), 0).to_headers()),
]
"""What no owner writes while it is one: not stamped and no fence, half a stamp, a stale one."""


async def test_foreign_entries_are_passed_over(
    broker: MemoryBroker, connector: MemoryConnector, owner: Owner, successor: Owner
):
    """B6: by the owner that tails the log, and by the replay of its successor."""
    task = await owner.serving()
    for value, headers in FOREIGN:
        await write(connector, value, headers)
    last = 1 + len(FOREIGN)
    assert (await append_and_wait(owner.log, b"mine")).offset == last
    foreign = list(range(1, last))
    assert owner.strangers == foreign
    assert not task.done()
    await successor.serving()
    assert successor.strangers == foreign
    assert successor.entries == [([b"mine"], False)]


async def test_a_foreign_entry_in_a_new_log_is_passed_over(
    connector: MemoryConnector, owner: Owner
):
    """B6: also before any owner's fence."""
    await write(connector, b"x")
    await write(connector, b"\xff", EntryStamp(Offset(0), 1).to_headers())
    await owner.serving()
    assert owner.strangers == [0, 1]
    assert owner.log.epoch == 2


async def test_a_corrupt_entry_stops_the_replay(connector: MemoryConnector, owner: Owner):
    """A log that cannot be understood is never served from."""
    await write(connector, CODEC.encode(Fence(b"n" * 16), 0))
    offset = await write(
        connector, encode_batch([b"x"])[:-1], EntryStamp(Offset(0), 1).to_headers()
    )
    error = await raised(owner.run())
    assert isinstance(error, DecodeError)
    assert error.place == f"{LOG}@{offset}"
    assert owner.log.epoch is None


async def test_a_missing_log_is_named(connector: MemoryConnector, broker: MemoryBroker):
    """Without its topic the owner says which one, and how it comes to be."""
    broker.delete_topic(TXN_LOG)
    owner = Owner(connector)
    error = await raised(owner.run())
    assert isinstance(error, FatalError)
    assert error.place == str(LOG)
    assert "worker" in error.hint
    await owner.close()


async def test_a_short_outage_is_ridden_out(broker: MemoryBroker, owner: Owner):
    """A broker that comes back within the owner's patience costs nothing but time."""
    task = await owner.serving()
    broker.down()
    waiting = asyncio.create_task(append_and_wait(owner.log, b"kept"))
    for _ in range(5):
        await asyncio.sleep(0)
    broker.up()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (await append_and_wait(owner.log, b"after")).offset == len(broker.records(LOG)) - 1
    assert not task.done()


async def test_a_stopped_owner_fails_what_is_in_flight(broker: MemoryBroker, owner: Owner):
    """A1, A6: every append ends exactly once, also when the partition is taken away."""
    task = await owner.serving()
    broker.hold(TXN_LOG)
    told: list[BatchPosition | ConnectorError] = []
    for record in (b"a", b"b"):
        owner.log.append(record, told.append)
    await owner.held_back()
    owner.log.append(b"c", told.append)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [type(it) for it in told] == [FencedError] * 3
    assert owner.log.in_flight == 0
    broker.release()
    await owner.close()
    assert len(told) == 3


async def test_a_full_queue_of_the_writer_loses_nothing(broker: MemoryBroker):
    """Entries wait for room in the producer's queue, in order."""
    owner = Owner(MemoryConnector(broker, writer_records_max=1), UNBATCHED)
    await owner.serving()
    places = await asyncio.gather(*(append_and_wait(owner.log, b"%d" % n) for n in range(20)))
    assert [it.offset for it in places] == list(range(1, 21))
    assert [it.value for it in broker.records(LOG)[1:]] == [b"%d" % n for n in range(20)]
    await owner.close()
