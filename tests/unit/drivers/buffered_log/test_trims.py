"""What trims and gaps do to readers of the log (B2, B3, B7).

A trim has replays begin again and fences an owner; a gap that is no trim does nothing.
"""

from collections.abc import Sequence

import pytest

from stilltide.connectors.errors import ConnectorError, FencedError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryAdmin, MemoryConnector
from stilltide.connectors.memory.writer import MemoryTransactionalWriter
from stilltide.connectors.ports.readers import NewRecord
from stilltide.pipeline.drivers.coordinator.owner import CODEC
from stilltide.schemas.headers import EntryStamp
from stilltide.schemas.log_frames import Fence, Noop
from stilltide.schemas.topics import TXN_LOG, TopicSpec
from stilltide.schemas.values import EndOffset, Offset, TopicPartition
from tests.support.buffered_log.appending import append_and_wait
from tests.support.buffered_log.owner import LOG, Owner, raised
from tests.support.coordinator.worker_memory import until

pytestmark = pytest.mark.topics(TopicSpec(TXN_LOG, 1))

NOOP = CODEC.encode(Noop(), 0)


async def test_a_trimmed_log_begins_with_an_effective_entry(
    connector: MemoryConnector, broker: MemoryBroker, owner: Owner, successor: Owner
):
    """B2: the first entry of a trimmed log counts, though its fence has gone."""
    await owner.serving()
    for record in (b"a", b"b", b"c"):
        await append_and_wait(owner.log, record)
    broker.delete_records(LOG, Offset(2))
    await successor.serving()
    assert successor.entries == [([b"b"], False), ([b"c"], False)]


async def test_a_replay_that_a_trim_overtakes_begins_anew(
    connector: MemoryConnector, broker: MemoryBroker, owner: Owner, successor: Owner
):
    """B3: before its fence was read, a gap costs a second look from the new log start."""
    await owner.serving()
    for record in (b"a", b"b", b"c"):
        await append_and_wait(owner.log, record)
    broker.hold(TXN_LOG)
    task = successor.run()
    await successor.held_back()
    broker.delete_records(LOG, Offset(3))
    broker.release()
    await until(lambda: successor.log.epoch is not None)
    assert successor.began == [0, 3]
    assert successor.entries == [([b"c"], False)]
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
            watch.end()
            broker.append(LOG, None, CODEC.encode(Fence(b"n" * 16), 0), None)
            broker.append(LOG, None, NOOP, EntryStamp(Offset(1), 1).to_headers())
            broker.delete_records(LOG, Offset(2))

    watch = broker.watchers.add(overtake)
    watch.follow([LOG])
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


async def native_transaction(broker: MemoryBroker, *values: bytes) -> None:
    """Commits records of a native transaction in the log; behind them one offset is missing."""
    writer = MemoryTransactionalWriter(broker, "stranger")
    await writer.fence()
    await writer.write([NewRecord(LOG, None, value) for value in values])
    await writer.close()


async def test_control_records_are_passed_over(
    broker: MemoryBroker, owner: Owner, successor: Owner
):
    """B7: native transactions leave gaps that are no trims; the owner and its successor go on."""
    task = await owner.serving()
    await native_transaction(broker, b"x")
    assert (await append_and_wait(owner.log, b"a")).offset == 3
    await native_transaction(broker, b"y", b"z")
    assert (await append_and_wait(owner.log, b"b")).offset == 7
    assert not task.done()
    await successor.serving()
    assert successor.entries == [([b"a"], False), ([b"b"], False)]
    assert successor.began == [0]


async def test_an_open_native_transaction_holds_nobody_up(broker: MemoryBroker, owner: Owner):
    """B7: the log is read uncommitted, so nobody else's transaction delays an answer."""
    await owner.serving()
    broker.transactions.append_open("stranger", LOG, None, b"x", None)
    assert (await append_and_wait(owner.log, b"a")).offset == 2
    broker.transactions.end_open("stranger", committed=False)
    assert (await append_and_wait(owner.log, b"b")).offset == 4


class TrimmedMeanwhile(MemoryConnector):
    """A cluster on which, `before` set, a trim comes in front of the next look at a log start."""

    before: Offset | None = None

    def admin(self) -> MemoryAdmin:
        """An admin whose look at a log start another owner's trim overtakes."""
        return _Overtaken(self, self._broker)


class _Overtaken(MemoryAdmin):
    def __init__(self, connector: TrimmedMeanwhile, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self._connector = connector

    async def start_offsets(
        self, partitions: Sequence[TopicPartition], *, since_ms: int | None = None
    ) -> dict[TopicPartition, Offset]:
        """As ever, after the trim."""
        if self._connector.before is not None:
            self._broker.delete_records(LOG, self._connector.before)
        return await super().start_offsets(partitions, since_ms=since_ms)


async def test_a_gap_that_a_trim_has_left_counts_as_fenced(broker: MemoryBroker):
    """B3, B7: with the log start above the first missing offset, entries are gone unread."""
    connector = TrimmedMeanwhile(broker)
    owner = Owner(connector)
    task = await owner.serving()
    connector.before = Offset(2)
    log = broker.log(LOG)
    assert log is not None
    log.end = EndOffset(2)  # what a control record leaves
    broker.append(LOG, None, NOOP, EntryStamp(Offset(7), 1).to_headers())
    error = await raised(task)
    assert isinstance(error, FencedError)
    assert error.detail == "expected offset 1, read 2; the log begins at 2"
    await owner.close()
