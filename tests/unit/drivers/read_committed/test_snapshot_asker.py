"""A reader that stands at an undecided record asks for a snapshot (D2)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.core.groups.frontier import VisibleRecord
from stilltide.pipeline.drivers.read_committed.decided import (
    Blocked,
    DecidedPartitions,
    SnapshotAsker,
)
from stilltide.pipeline.drivers.read_committed.decided_log import DecidedLog
from stilltide.pipeline.drivers.read_committed.outcome_tails import OutcomeLogs
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.subscription.options import SubscriptionOptions
from stilltide.pipeline.drivers.subscription.subscription import SubscriptionDriver
from stilltide.schemas.framing import decode_value
from stilltide.schemas.snapshots import requests as snapshot_requests
from stilltide.schemas.snapshots.snapshots import SnapshotEnd, encode_end, end_key
from stilltide.schemas.topics import SNAPSHOT_REQUESTS, TXN_SNAPSHOTS, system_partition
from stilltide.schemas.values import EndOffset, Offset, TopicPartition, TxnId
from tests.support.coordinator.coordinated import MARKER_PARTITIONS, CoordinatedTopic
from tests.support.coordinator.worker_memory import until

ORDERS = TopicPartition("orders", 0)
SERVING = system_partition(ORDERS, MARKER_PARTITIONS)
ORPHAN = TxnId(0, 5)
ASK_AFTER_S = 0.02


class Rig:
    """A subscription that asks soon, on a broker of its own without any worker."""

    def __init__(self, broker: MemoryBroker, driver: SubscriptionDriver) -> None:
        self.broker = broker
        self.driver = driver

    def asked(self) -> Sequence[Record]:
        """The requests that were sent."""
        return self.broker.records(TopicPartition(SNAPSHOT_REQUESTS, SERVING))

    def snapshot(self, to: int) -> None:
        """One whose M is this."""
        topic_id = self.broker.topics["orders"].description.topic_id
        end = SnapshotEnd(topic_id, EndOffset(to), EndOffset(0), 1, (), {}, {}, EndOffset(0), ())
        place = TopicPartition(TXN_SNAPSHOTS, SERVING)
        self.broker.append(place, end_key(ORDERS), encode_end(end), [])


@asynccontextmanager
async def running(*records: TxnId | None) -> AsyncIterator[Rig]:
    """Reads these records."""
    broker = MemoryBroker()
    connector = MemoryConnector(broker)
    topic = await CoordinatedTopic.create(connector, "orders", 1)
    for txn in records:
        await topic.write(0, txn)
    await topic.close()
    options = SubscriptionOptions(["orders"], "billing", ask_after_s=ASK_AFTER_S)
    driver = SubscriptionDriver(connector, options)
    try:
        await driver.start()
        yield Rig(broker, driver)
    finally:
        await driver.close()


async def test_a_record_that_stays_undecided_is_asked_about():
    """D2: the data partition is named, and the snapshot that comes of it decides the record."""
    async with running(ORPHAN) as rig:
        await until(rig.asked)
        (value, *_) = decode_value(rig.asked()[0].value or b"")
        assert snapshot_requests.decode_request(value).body == ORDERS
        rig.snapshot(1)
        await until(rig.driver.next_queue)


async def test_without_a_worker_it_goes_on_asking_and_the_reading_goes_on():
    """A question that nobody answers fails nothing; another one follows it."""
    async with running(None, ORPHAN) as rig:
        await until(lambda: len(rig.asked()) >= 2)
        assert len(rig.driver.next_queue()) == 1
        assert list(rig.driver.blocked()) == [ORDERS]


async def test_nothing_is_asked_where_nothing_is_undecided():
    """A reader that stands nowhere keeps quiet, however long."""
    async with running(None) as rig:
        now_s = asyncio.get_running_loop().time
        until_s = now_s() + 3 * ASK_AFTER_S
        await until(lambda: now_s() > until_s)
        assert len(rig.driver.next_queue()) == 1
        assert rig.asked() == ()


async def test_the_same_record_is_asked_about_less_and_less_often():
    """Twice as long each time, up to a bound; another record begins anew."""
    blocked = {ORDERS: Blocked(ORDERS, Offset(7), ORPHAN, 5.0)}
    connector = MemoryConnector(MemoryBroker())
    admin = connector.admin()
    logs = OutcomeLogs(connector, admin, OutageGuard(admin), "asks", 1, 1)
    decided = DecidedPartitions[VisibleRecord](logs, DecidedLog(logs), waiting_max=1)
    asker = SnapshotAsker(decided, after_s=5.0)
    asked_at = [now for now in range(200) if asker.due(blocked, now)]
    assert asked_at == [0, 5, 15, 35, 75, 135, 195]
    blocked[ORDERS] = Blocked(ORDERS, Offset(8), ORPHAN, 4.0)
    assert asker.due(blocked, 200) == []
    blocked[ORDERS] = Blocked(ORDERS, Offset(8), ORPHAN, 5.0)
    assert asker.due(blocked, 201) == [ORDERS]
    blocked.clear()
    assert asker.due(blocked, 202) == []
