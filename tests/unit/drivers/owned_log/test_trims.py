"""What a trim does to who reads the log (B2, B3): replays begin anew, an owner is fenced."""

from connectors.errors import ConnectorError, FencedError
from connectors.memory.broker import MemoryBroker
from connectors.memory.connector import MemoryConnector
from pipeline.drivers.coordinator import CODEC
from schemas.headers import EntryStamp
from schemas.topics import TXN_LOG
from schemas.values import Offset
from tests.support.log_owner import LOG, Owner, raised
from tests.support.worker_memory import until

NOOP = CODEC.noop()


async def test_a_trimmed_log_begins_with_an_effective_entry(
    connector: MemoryConnector, broker: MemoryBroker, owner: Owner, successor: Owner
):
    """B2: the first entry of a trimmed log counts, though its fence has gone."""
    await owner.serving()
    for record in (b"a", b"b", b"c"):
        await owner.log.append_and_wait(record)
    broker.delete_records(LOG, Offset(2))
    await successor.serving()
    assert successor.applied == [([b"b"], False), ([b"c"], False)]


async def test_a_replay_that_a_trim_overtakes_begins_anew(
    connector: MemoryConnector, broker: MemoryBroker, owner: Owner, successor: Owner
):
    """B3: before its fence was read, a gap costs a second look from the new log start."""
    await owner.serving()
    for record in (b"a", b"b", b"c"):
        await owner.log.append_and_wait(record)
    broker.hold(TXN_LOG)
    task = successor.run()
    await successor.held_back()
    broker.delete_records(LOG, Offset(3))
    broker.release()
    await until(lambda: successor.log.epoch is not None)
    assert successor.began == [0, 3]
    assert successor.applied == [([b"c"], False)]
    assert not task.done()


async def test_a_replay_does_not_wait_for_a_fence_that_was_trimmed(
    broker: MemoryBroker, connector: MemoryConnector
):
    """B3, B4: who trims beyond an owner's fence has replaced it."""
    successor = Owner(connector)
    broker.hold(TXN_LOG)
    task = successor.run()
    await successor.held_back()

    def overtake() -> None:
        if broker.records(LOG):
            unwatch()
            broker.append(LOG, None, CODEC.fence(b"n" * 16), None)
            broker.append(LOG, None, NOOP, EntryStamp(Offset(1), 1).to_headers())
            broker.delete_records(LOG, Offset(2))

    unwatch = broker.watch(overtake)
    broker.release()
    error = await raised(task)
    assert isinstance(error, FencedError)
    assert "trim" in error.primary
    await successor.close()


async def test_an_owner_that_a_trim_overtakes_is_fenced(
    broker: MemoryBroker, connector: MemoryConnector, owner: Owner
):
    """B3: whoever deletes what a serving owner has not read is another owner."""
    task = await owner.serving()
    writer = connector.writer("stranger")
    landed: list[int] = []

    def delivered(_error: ConnectorError | None, offset: int) -> None:
        landed.append(offset)
        if len(landed) == 2:
            broker.delete_records(LOG, Offset(2))  # before the owner's reader wakes

    for serial in (1, 2):
        writer.append(LOG, NOOP, delivered, headers=EntryStamp(Offset(7), serial).to_headers())
    error = await raised(task)
    assert isinstance(error, FencedError)
    assert "outside the log [2, 3)" in error.detail
    await writer.close()


async def test_a_gap_in_the_offsets_counts_as_fenced(
    broker: MemoryBroker, connector: MemoryConnector, owner: Owner
):
    """B3: a reader that was overtaken by a trim may not go on."""
    task = await owner.serving()
    landed: list[int] = []

    def delivered(_error: ConnectorError | None, offset: int) -> None:
        landed.append(offset)
        if len(landed) == 2:
            broker.compact(TXN_LOG)  # takes the first before the owner's reader wakes

    writer = connector.writer("stranger")
    for value in (b"gone", b"there"):
        writer.append(LOG, value, delivered, headers=EntryStamp(Offset(0), 1).to_headers())
    error = await raised(task)
    assert isinstance(error, FencedError)
    assert error.detail == "expected offset 1, read 2"
    await writer.close()
