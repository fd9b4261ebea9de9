"""Pending-ack stores on the memory broker: attached to, acknowledged with, settled, taken over."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.drivers.buffered_log.owned_log import Appended as LogSettle
from stilltide.pipeline.drivers.buffered_log.owned_log import OwnedLog
from stilltide.schemas.coordinator import txn_log
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.framing import decode_value
from stilltide.schemas.pending_ack import codec as pending_ack
from stilltide.schemas.pending_ack.acknowledgements import (
    AckQuestion,
    Acks,
    Attach,
    DescribeAcks,
    PendingAcks,
    Settle,
)
from stilltide.schemas.service.envelopes import Done, RefusalCode, Refused, Request, client_key
from stilltide.schemas.topics import (
    ACK_REQUESTS,
    PENDING_ACK_LOG,
    TXN_LOG,
    TopicSpec,
    system_partition,
)
from stilltide.schemas.values import EndOffset, Range, SubscriptionId, TopicPartition, TxnId
from tests.support.coordinator.worker_memory import PARTITIONS, MemoryWorker, until
from tests.support.pending_ack.client import FIRST, AckClient, one
from tests.support.schemas.wire import too_deep

READ = SubscriptionId(TopicPartition("orders", 0), "billing")
PARTITION = system_partition(READ.data, PARTITIONS)
LOG = TopicPartition(PENDING_ACK_LOG, PARTITION)


@pytest.fixture
async def worker(broker: MemoryBroker, connector: MemoryConnector) -> AsyncIterator[MemoryWorker]:
    """A worker with one coordinator, and the topic that the group reads."""
    broker.create_topic(TopicSpec(READ.data.topic, 1))
    async with MemoryWorker(connector) as made:
        yield made


@pytest.fixture
async def client(connector: MemoryConnector, worker: MemoryWorker) -> AsyncIterator[AckClient]:
    """A client whose first member is attached at offset 5."""
    made = AckClient(connector, READ)
    await made.open(partitions=PARTITIONS)
    assert await made.ask(attach(FIRST)) == acks(5, member=FIRST)
    yield made
    await made.close()


def attach(member: bytes, cursor: int = 5) -> Attach:
    """A member's claim to the subscription."""
    return Attach(member, EndOffset(cursor), ())


def acks(
    cursor: int, *acknowledged: Range, pending: tuple[PendingAcks, ...] = (), member: bytes
) -> Acks:
    """What is known of the subscription."""
    return Acks(EndOffset(cursor), acknowledged, pending, member)


def pending_of(client: AckClient, txn: TxnId, ranges: tuple[Range, ...]) -> PendingAcks:
    """What the client has acknowledged in one of its transactions."""
    return PendingAcks(txn, ranges, None, client_key(client.txn_client_id))


def logged(broker: MemoryBroker) -> list[str]:
    """What the log holds, by kind of record."""
    bodies = [
        pending_ack.decode(data).body
        for it in broker.records(LOG)
        for data in decode_value(it.value)
    ]
    return [type(it.body.ask if isinstance(it, Request) else it).__name__ for it in bodies]


async def test_a_commit_acknowledges_and_an_abort_frees(client: AckClient, broker: MemoryBroker):
    """G, C4: when a transaction has ended, every subscription registered with it is settled."""
    kept, dropped = await client.begin(), await client.begin()
    assert await client.acknowledge(kept, 7, 8) == Done()
    assert await client.acknowledge(dropped, 10) == Done()
    pending = (pending_of(client, kept, (one(7, 9),)), pending_of(client, dropped, (one(10, 11),)))
    assert await client.ask(DescribeAcks()) == acks(5, pending=pending, member=FIRST)
    await client.end(kept, committed=True)
    await client.end(dropped, committed=False)
    assert await client.ask(DescribeAcks()) == acks(5, one(7, 9), member=FIRST)
    assert logged(broker).count("Settle") == 2


async def test_an_answer_follows_an_entry_of_its_own(client: AckClient, broker: MemoryBroker):
    """C1: nothing is answered, not even a question, before the log has been written behind it."""
    txn = await client.begin()
    broker.hold(PENDING_ACK_LOG)
    asking = [
        asyncio.create_task(it) for it in (client.acknowledge(txn, 7), client.ask(DescribeAcks()))
    ]
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(it.done() for it in asking)
    broker.release()
    assert (await asyncio.gather(*asking))[0] == Done()


async def test_a_transaction_ends_only_when_its_subscriptions_are_settled(
    client: AckClient, broker: MemoryBroker
):
    """C4: a commit is answered at once, and stays COMMITTING until the store has said so."""
    txn = await client.begin()
    assert await client.acknowledge(txn, 7) == Done()
    broker.hold(PENDING_ACK_LOG)
    await client.end(txn, committed=True, wait_visible=False)
    for _ in range(50):
        await asyncio.sleep(0)
    assert await client.state(txn) == "COMMITTING"
    broker.release()
    async with asyncio.timeout(10):
        while await client.state(txn) != "ENDED":
            pass
    assert await client.ask(DescribeAcks()) == acks(5, one(7, 8), member=FIRST)


async def test_what_an_owner_applies_is_what_the_next_one_reads(
    client: AckClient, monkeypatch: pytest.MonkeyPatch
):
    """C0: requests are decoded once, as they arrive; in the log they say the same."""
    said: list[tuple[str, bytes, object]] = []
    append = OwnedLog.append

    def listen(
        self: OwnedLog, record: bytes, settle: LogSettle | None = None, decoded: object = None
    ) -> None:
        said.append((self.partition.topic, record, decoded))
        append(self, record, settle, decoded)

    monkeypatch.setattr(OwnedLog, "append", listen)
    txn = await client.begin()
    assert await client.acknowledge(txn, 7) == Done()
    await client.end(txn, committed=True)
    decode = {TXN_LOG: txn_log.decode, PENDING_ACK_LOG: pending_ack.decode}
    arrived = [it for it in said if it[2] is not None]
    assert {topic for topic, _, _ in arrived} == decode.keys()
    assert [decoded for _, _, decoded in arrived] == [decode[it[0]](it[1]) for it in arrived]


async def test_the_next_owner_knows_what_is_pending(
    broker: MemoryBroker, connector: MemoryConnector, worker: MemoryWorker, client: AckClient
):
    """B1, G: who takes the log over holds what its log says, and settles it."""
    txn = await client.begin()
    assert await client.acknowledge(txn, 7) == Done()
    worker.revoke()
    async with MemoryWorker(connector):  # is given every request anew
        await until(lambda: not worker.pending_acks[PARTITION].serving)
        pending = (pending_of(client, txn, (one(7, 8),)),)
        assert await client.ask(DescribeAcks()) == acks(5, pending=pending, member=FIRST)
        await client.end(txn, committed=True)
        assert await client.ask(DescribeAcks()) == acks(5, one(7, 8), member=FIRST)
    assert logged(broker).count("Fence") == 2


async def test_a_settle_for_nobody_is_done(client: AckClient):
    """C4: settling again, or where nothing was ever acknowledged, is harmless."""
    for _ in range(2):
        assert await client.ask(Settle(TxnId(3, 9), committed=True, low_watermark=9)) == Done()


@pytest.mark.parametrize(
    "value",
    [
        b"\xff garbage",
        too_deep(
            pending_ack.encode_request(Request(b"c", 1, 0, 0, AckQuestion(READ, DescribeAcks())))
        ),
    ],
    ids=["garbage", "too deep for the log"],
)
async def test_garbage_is_refused_before_it_reaches_the_log(
    broker: MemoryBroker, worker: MemoryWorker, value: bytes
):
    """What is no request is raised to who brought it, and nothing of the value is appended."""
    before = len(broker.records(LOG))
    with pytest.raises(DecodeError):
        worker.pending_acks[PARTITION].requests_received(value)
    assert len(broker.records(LOG)) == before


async def test_a_repeated_request_has_one_effect(broker: MemoryBroker, client: AckClient):
    """G: whatever arrives again, late or at the next owner, changes nothing more."""
    txn = await client.begin()
    await client.acknowledge(txn, 7)
    await client.end(txn, committed=True)
    before = await client.ask(DescribeAcks())
    source = TopicPartition(ACK_REQUESTS, PARTITION)
    for it in broker.records(source):
        broker.append(source, it.key, it.value, None)
    assert await client.ask(DescribeAcks()) == before


async def test_the_log_is_trimmed_and_its_next_owner_begins_from_a_base(
    broker: MemoryBroker, connector: MemoryConnector, worker: MemoryWorker, client: AckClient
):
    """C8: once nothing is pending a base stands for all before it, also for the next owner."""
    txn = await client.begin()
    await client.acknowledge(txn, 7)
    await client.end(txn, committed=True)
    before = await client.ask(DescribeAcks())
    await until(lambda: broker.log(LOG).start > 0)  # pyright: ignore[reportOptionalMemberAccess]
    worker.revoke()
    async with MemoryWorker(connector):
        await until(lambda: not worker.pending_acks[PARTITION].serving)
        assert await client.ask(DescribeAcks()) == before
        refused = await client.acknowledge(txn, 9)
        assert isinstance(refused, Refused)
        assert refused.code == RefusalCode.TRANSACTION_ENDED
