"""Which snapshots a subscription takes, and which stop it (D4, E4, E8)."""

from collections.abc import Sequence

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryAdmin, MemoryConnector
from stilltide.pipeline.client.subscription import Message, Subscription
from stilltide.pipeline.errors import SnapshotPartError, TopicRecreatedError, UndecidedError
from stilltide.schemas.errors import DecodeError, StilltideError, UnknownVersionError
from stilltide.schemas.snapshots.snapshots import (
    AbortedIds,
    SnapshotEnd,
    checksum,
    encode_end,
    encode_part,
    end_key,
    part_key,
)
from stilltide.schemas.topics import TXN_SNAPSHOTS, system_partition
from stilltide.schemas.values import EndOffset, TopicPartition, TxnId
from tests.support.coordinator.coordinated import MARKER_PARTITIONS, CoordinatedTopic
from tests.support.coordinator.worker_memory import until

SOON_S = 0.05
ORDERS = TopicPartition("orders", 0)
SOURCE = TopicPartition(TXN_SNAPSHOTS, system_partition(ORDERS, MARKER_PARTITIONS))
ABORTED, COMMITTED = TxnId(0, 5), TxnId(0, 6)

Part = tuple[bytes, bytes]


def part(number: int, ids: AbortedIds, data: TopicPartition = ORDERS) -> Part:
    """Key and value of a sealed part."""
    return part_key(data, number), encode_part(ids)


class GrowingAdmin(MemoryAdmin):
    """Has records appended to the snapshot topic just before it is asked where that ends."""

    def __init__(self, broker: MemoryBroker, coming: list[Part]) -> None:
        super().__init__(broker)
        self.coming = coming

    async def end_offsets(
        self, partitions: Sequence[TopicPartition], *, committed: bool = False
    ) -> dict[TopicPartition, EndOffset]:
        """As ever, of the log as it has grown meanwhile."""
        if SOURCE in partitions:
            for key, value in self.coming:
                self._broker.append(SOURCE, key, value, [])
            self.coming.clear()
        return await super().end_offsets(partitions, committed=committed)


class GrowingConnector(MemoryConnector):
    """Makes such admins."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.coming: list[Part] = []

    def admin(self) -> MemoryAdmin:
        """One that lets the log grow."""
        return GrowingAdmin(self._broker, self.coming)


class Rig:
    """A topic with a record of an aborted and one of a committed transaction, without markers."""

    def __init__(self, broker: MemoryBroker, connector: GrowingConnector) -> None:
        self.broker = broker
        self.connector = connector
        self.topic_id = broker.topics["orders"].description.topic_id

    def write(self, *records: tuple[bytes, bytes | None]) -> None:
        """Appends to the snapshot topic."""
        for key, value in records:
            self.broker.append(SOURCE, key, value, [])

    def end(
        self,
        parts: Sequence[Part] = (),
        *,
        to: int = 2,
        ids: AbortedIds | None = None,
        topic_id: bytes | None = None,
        valid_from: int = 0,
    ) -> Part:
        """Key and value of an end that names these parts; its M, unsealed ids and F."""
        checksums = tuple(checksum(*one) for one in parts)
        end = SnapshotEnd(
            topic_id or self.topic_id,
            EndOffset(to),
            EndOffset(0),
            1,
            checksums,
            ids or {},
            {},
            EndOffset(valid_from),
            (),
        )
        return end_key(ORDERS), encode_end(end)

    async def read(self) -> list[TxnId | None]:
        """Of whom the visible records are."""
        subscription = Subscription(
            ["orders"], group="g", connector=self.connector, undecided_timeout_s=SOON_S
        )
        async with subscription as orders:
            ends = {ORDERS: EndOffset(2)}
            return [message.txn async for message in orders.read_to(ends)]


@pytest.fixture
async def rig() -> Rig:
    """On a broker of the test's own."""
    broker = MemoryBroker()
    connector = GrowingConnector(broker)
    topic = await CoordinatedTopic.create(connector, "orders", 1)
    await topic.write(0, ABORTED)
    await topic.write(0, COMMITTED)
    await topic.close()
    return Rig(broker, connector)


async def test_without_snapshot_nothing_is_decided(rig: Rig):
    """D5: no `end` is M = 0 and an empty set."""
    with pytest.raises(UndecidedError):
        await rig.read()


async def test_a_snapshot_is_its_end_and_parts(rig: Rig):
    """D4: sealed and unsealed ids hide, M makes the rest visible."""
    sealed = part(1, {0: [ABORTED.sequence]})
    rig.write(sealed, rig.end([sealed], ids={0: [99]}))
    assert await rig.read() == [COMMITTED]


async def test_parts_without_an_end_stop_a_reader(rig: Rig):
    """E4: the end that named them is lost, and with it what is hidden."""
    sealed = part(1, {0: [ABORTED.sequence]})
    rig.write(sealed, rig.end([sealed]), (end_key(ORDERS), None))
    with pytest.raises(SnapshotPartError, match="and no end"):
        await rig.read()


async def test_parts_may_be_without_an_end_that_comes_later(rig: Rig):
    """E4: compaction runs ahead of a reader; only what nothing newer follows is a gap."""
    sealed = part(1, {0: [ABORTED.sequence]})
    rig.write(sealed)
    rig.connector.coming = [rig.end([sealed])]
    assert await rig.read() == [COMMITTED]


async def test_a_part_that_a_newer_end_does_not_need_may_be_gone(rig: Rig):
    """E4: the log is read to its end before a gap means anything."""
    gone = part(1, {0: [ABORTED.sequence]})
    rig.write(rig.end([gone]))
    rig.write(*[part(number, {3: [1]}, TopicPartition("other", 0)) for number in range(1000)])
    rig.write(rig.end(ids={0: [ABORTED.sequence]}))
    assert await rig.read() == [COMMITTED]


async def test_a_gap_is_filled_by_reading_on(rig: Rig):
    """E4: compaction may run ahead of the reader, up to a newer last stable offset."""
    gone, kept = part(1, {0: [99]}), part(1, {0: [ABORTED.sequence]})
    rig.write(rig.end([gone]))
    rig.connector.coming += [kept, rig.end([kept])]
    assert await rig.read() == [COMMITTED]


SEALED = part(1, {0: [ABORTED.sequence]})


@pytest.mark.parametrize(
    "there",
    [
        pytest.param([], id="missing"),
        pytest.param([(SEALED[0], SEALED[1][:-1])], id="truncated"),
        pytest.param([part(1, {0: [ABORTED.sequence]}, TopicPartition("other", 0))], id="of other"),
        pytest.param([part(1, {0: [77]})], id="exchanged"),
        pytest.param([SEALED, (SEALED[0], None)], id="deleted"),
    ],
)
async def test_a_gap_that_stays_stops_the_subscription(rig: Rig, there: list[Part]):
    """E4: without the part an aborted record could be shown; nothing is read past it."""
    rig.write(*there, rig.end([SEALED]))
    with pytest.raises(SnapshotPartError) as caught:
        await rig.read()
    assert caught.value.place == str(SOURCE)
    assert "orders/0" in caught.value.primary


async def test_a_snapshot_of_a_former_topic_stops_the_subscription(rig: Rig):
    """E8: its offsets mean nothing here."""
    rig.write(rig.end(topic_id=b"f" * 16))
    with pytest.raises(TopicRecreatedError) as caught:
        await rig.read()
    assert caught.value.place == "orders/0"


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        (end_key(ORDERS), b"\xff\xff", DecodeError),
        (end_key(ORDERS), b"\x08\x7f", UnknownVersionError),
    ],
)
async def test_what_is_no_snapshot_stops_the_subscription(
    rig: Rig, key: bytes, value: bytes, kind: type[StilltideError]
):
    """It is never skipped: topic, partition and offset are named."""
    rig.write(rig.end(), (key, value))
    with pytest.raises(kind) as caught:
        await rig.read()
    assert caught.value.place == f"{SOURCE}@1"


async def test_snapshots_of_other_partitions_are_no_business_of_this_one(rig: Rig):
    """A gap elsewhere stops whoever reads there."""
    other = TopicPartition("other", 0)
    _, incomplete = rig.end([part(1, {0: [1]}, other)])
    rig.write((end_key(other), incomplete), rig.end(ids={0: [ABORTED.sequence]}))
    assert await rig.read() == [COMMITTED]


async def test_what_left_the_log_undecided_is_lost_once_the_markers_are_read(rig: Rig):
    """D4: it is reported, not shown, and what lies behind it goes on."""
    rig.broker.append(ORDERS, None, b"plain", [])
    subscription = Subscription(["orders"], group="g", connector=rig.connector)
    async with subscription as orders:
        await until(lambda: orders.blocked)
        rig.write(rig.end(to=3, valid_from=2))
        message: Message = await anext(orders)
        assert (message.offset, orders.statistics()[ORDERS].lost) == (2, 2)
