"""L: prepared transactions of a worker on the memory broker, in the bytes of its topics."""

from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.schemas.coordinator import markers, txn_log
from stilltide.schemas.coordinator.prepared_tokens import hash_of
from stilltide.schemas.coordinator.requests import decode_response, encode_request
from stilltide.schemas.coordinator.transactions import (
    Answer,
    CoordinatorStats,
    Decide,
    Describe,
    DescribeCoordinator,
    Description,
    EndPrepared,
    Open,
    Opened,
    Prepare,
    Registered,
    RequestBody,
    Written,
)
from stilltide.schemas.framing import decode_value
from stilltide.schemas.service.envelopes import Done, RefusalCode, Refused, Request, client_key
from stilltide.schemas.topics import (
    OPERATOR_REQUESTS,
    TXN_LOG,
    TXN_MARKERS,
    TXN_REQUESTS,
    TXN_RESPONSES,
    TopicSpec,
    system_partition,
)
from stilltide.schemas.values import EndOffset, Offset, TopicPartition, TxnId
from tests.support.coordinator.worker_memory import PARTITIONS, MemoryWorker, until

pytestmark = pytest.mark.topics(TopicSpec("orders", 2))

LOG = TopicPartition(TXN_LOG, 0)
RESPONSES = TopicPartition(TXN_RESPONSES, 1)
ORDERS = TopicPartition("orders", 0)
SECRET = b"the secret of the token, really!"
OPEN = Open(30_000, 1, (Registered(ORDERS, EndOffset(0), bytes(15) + b"\x01"),))
WRITTEN = (Written(ORDERS, Offset(0), EndOffset(2), 2),)
PREPARE = Prepare(0, WRITTEN, None, hash_of(SECRET), "orders-db")
COMMIT = EndPrepared(0, True, SECRET, True)


class Asker:
    """A client, or an operator, with an id of its own."""

    def __init__(self, broker: MemoryBroker, client_id: bytes, topic: str = TXN_REQUESTS) -> None:
        self._broker = broker
        self._client_id = client_id
        self._topic = TopicPartition(topic, 0)
        self._last = 0

    async def ask(self, body: RequestBody) -> Answer:
        """The answer to a request."""
        self._last = number = self._last + 1
        request = Request(self._client_id, number, 0, RESPONSES.partition, body)
        self._broker.append(self._topic, b"k", encode_request(request), None)
        await until(lambda: number in self._answers())
        return self._answers()[number]

    async def code_of(self, body: RequestBody) -> RefusalCode:
        """Why a request is refused."""
        answer = await self.ask(body)
        assert isinstance(answer, Refused)
        return answer.code

    def _answers(self) -> dict[int, Answer]:
        key = client_key(self._client_id)
        values = [it.value for it in self._broker.records(RESPONSES) if it.key == key]
        responses = [decode_response(data) for value in values for data in decode_value(value)]
        return {it.number: it.answer for it in responses}


@pytest.fixture
def client(broker: MemoryBroker) -> Asker:
    """The client that opens transactions."""
    return Asker(broker, b"client-012345678")


@pytest.fixture
def other(broker: MemoryBroker) -> Asker:
    """A client in another process."""
    return Asker(broker, b"other-0123456789")


@pytest.fixture
def operator(broker: MemoryBroker) -> Asker:
    """Somebody who may write to the topic of operators."""
    return Asker(broker, b"operator-0123456", OPERATOR_REQUESTS)


@pytest.fixture
async def prepared(
    broker: MemoryBroker, connector: MemoryConnector, client: Asker
) -> AsyncIterator[MemoryWorker]:
    """A worker with the prepared transaction 0, which has two records."""
    for _ in range(2):
        broker.append(ORDERS, None, b"record", None)
    async with MemoryWorker(connector, txn_timeout_ms_max=60_000) as worker:
        assert await client.ask(OPEN) == Opened(0, 1)
        assert await client.ask(PREPARE) == Done()
        yield worker


def outcomes(broker: MemoryBroker) -> list[tuple[bool, int]]:
    """The outcome and count of each marker of transaction 0."""
    source = TopicPartition(TXN_MARKERS, system_partition(ORDERS, PARTITIONS))
    found = [markers.decode(it.key, it.value) for it in broker.records(source)]
    return [
        (it.committed, it.record_count)
        for it in found
        if isinstance(it, markers.Marker) and it.txn == TxnId(0, 0)
    ]


@pytest.mark.usefixtures("prepared")
async def test_l2_another_client_commits_by_the_secret(broker: MemoryBroker, other: Asker):
    """L2, L3: with the counts of `Prepare`; and no byte of the log is the secret."""
    assert await other.ask(COMMIT) == Done()
    assert outcomes(broker) == [(True, 2)]
    values = [it.value or b"" for it in broker.records(LOG)]
    assert not [value for value in values if SECRET in value]
    bodies = [txn_log.decode(data).body for value in values for data in decode_value(value)]
    decided = [it.body for it in bodies if isinstance(it, Request) and isinstance(it.body, Decide)]
    assert decided == [Decide(0, True, "", hash_of(SECRET), True)]


async def test_l1_prepared_transactions_outlive_their_worker(
    prepared: MemoryWorker, connector: MemoryConnector, broker: MemoryBroker, other: Asker
):
    """L1: the next worker knows the secret's hash and the counts from the log."""
    await prepared.__aexit__(None, None, None)
    async with MemoryWorker(connector, txn_timeout_ms_max=60_000):
        assert await other.code_of(COMMIT._replace(secret=bytes(32))) is RefusalCode.NOT_OWNER
        assert await other.ask(COMMIT) == Done()
        assert await other.code_of(COMMIT._replace(committed=False)) is RefusalCode.COMMITTED
    assert outcomes(broker) == [(True, 2)]


@pytest.mark.usefixtures("prepared")
async def test_l2_the_hash_of_a_secret_decides_nothing(client: Asker, operator: Asker):
    """L2, C15: who reads the log learns the hash, and can end nothing by it."""
    by_hash = Decide(0, True, "", hash_of(SECRET))
    assert await client.code_of(by_hash) is RefusalCode.OPERATORS_ONLY
    assert await client.code_of(Decide(0, True, "why")) is RefusalCode.OPERATORS_ONLY
    assert await operator.code_of(by_hash) is RefusalCode.MALFORMED
    assert await operator.code_of(Decide(0, True)) is RefusalCode.MALFORMED
    assert await operator.code_of(COMMIT) is RefusalCode.UNSUPPORTED
    described = await client.ask(Describe(0))
    assert isinstance(described, Description)
    assert described.state == "PREPARED"


@pytest.mark.usefixtures("prepared")
async def test_l3_an_operator_decides(broker: MemoryBroker, client: Asker, operator: Asker):
    """L3: for a reason; the token then says what stands."""
    assert await operator.ask(Decide(0, False, "restored from a backup", b"", True)) == Done()
    assert outcomes(broker) == [(False, 0)]
    assert await client.code_of(COMMIT) is RefusalCode.ABORTED


@pytest.mark.usefixtures("prepared")
async def test_l7_figures_name_prepared_transactions(operator: Asker, other: Asker):
    """L7: how many there are, and since when the oldest waits."""
    stats = await operator.ask(DescribeCoordinator())
    assert isinstance(stats, CoordinatorStats)
    assert (stats.open_count, stats.prepared_count) == (0, 1)
    assert stats.oldest_prepared_ms > 0
    await other.ask(COMMIT)
    stats = await operator.ask(DescribeCoordinator())
    assert isinstance(stats, CoordinatorStats)
    assert (stats.prepared_count, stats.oldest_prepared_ms) == (0, 0)
    assert (stats.commit_count, stats.abort_count) == (1, 0)


async def test_c16_offsets_that_the_log_does_not_have_are_not_prepared(
    connector: MemoryConnector, client: Asker
):
    """C16: a prepared transaction may commit, so its end offsets are proved as those of commits."""
    async with MemoryWorker(connector, txn_timeout_ms_max=60_000):
        await client.ask(OPEN)
        beyond = (Written(ORDERS, Offset(0), EndOffset(1_000_000), 2),)
        assert await client.code_of(PREPARE._replace(written=beyond)) is RefusalCode.MALFORMED
