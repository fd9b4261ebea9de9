"""C11, C15: on a broker with an authorizer, nobody changes another client's transactions.

The least rights of each process are tested in `tests/integration/rights`.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from stilltide.connectors.errors import FatalError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.readers import EndReached, Record
from stilltide.pipeline.client import Subscription, Transaction, TransactionClient
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.drivers.pending_ack.client import PENDING_ACK_SERVICE
from stilltide.pipeline.drivers.service.ask.requests import COORDINATOR_SERVICE, Requests
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.coordinator.requests import encode_request
from stilltide.schemas.coordinator.transactions import Abort, End, Listed, ListTransactions
from stilltide.schemas.pending_ack.acknowledgements import AckQuestion, Attach
from stilltide.schemas.service.envelopes import RefusalCode, Refused, Request, client_key
from stilltide.schemas.topics import (
    ACK_REQUESTS,
    TXN_LOG,
    TXN_REQUESTS,
    TXN_RESPONSES,
    TopicSpec,
    system_partition,
)
from stilltide.schemas.values import EndOffset, SubscriptionId, TopicPartition
from tests.support.processes.rights import EVERY, GuardedCluster, Right, guarded_cluster
from tests.support.processes.worker_process import COORDINATORS, running_worker

SYSTEM = "stilltide."
WAIT_S = 180.0
ORDERS, RIVALS = "orders", "rivals"

WORKER = [
    Right(
        "topic",
        f"{SYSTEM}*",
        ["create", "describe", "describe_configs", "read", "write", "delete"],
    ),
    Right("group", f"{SYSTEM}*", ["read"]),
    Right("transactional-id", f"{SYSTEM}*", ["describe", "write"]),
    Right("topic", EVERY, ["describe", "describe_configs"]),
    Right("group", EVERY, ["describe"]),
]
CLIENT = [
    Right("topic", TXN_REQUESTS, ["write"]),
    Right("topic", TXN_RESPONSES, ["read"]),
]
READER = [
    Right("topic", f"{SYSTEM}txn-markers", ["read"]),
    Right("topic", f"{SYSTEM}txn-snapshots", ["read"]),
    Right("topic", f"{SYSTEM}replication-markers", ["read"]),
    Right("topic", f"{SYSTEM}snapshot-requests", ["write"]),
    Right("topic", ACK_REQUESTS, ["write"]),
    Right("topic", TXN_RESPONSES, ["read"]),
]
OPERATOR = [
    Right("topic", f"{SYSTEM}operator-*", ["write"]),
    Right("topic", TXN_RESPONSES, ["read"]),
    Right("topic", TXN_LOG, ["describe"]),
]


def application(topic: str, group: str) -> list[Right]:
    """The rights of an application that writes, reads and acknowledges in one topic."""
    data = [Right("topic", topic, ["read", "write"]), Right("group", group, ["read"])]
    return [*CLIENT, *READER, *data]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedCluster]:
    """A broker that denies by default, a worker with its rights, and three users with theirs."""
    directory = tmp_path_factory.mktemp("guarded")
    users = "worker", "owner", "rival", "operator"
    with guarded_cluster(directory / "g", *users) as made:
        made.grant("worker", *WORKER)
        made.grant("owner", *application(ORDERS, "billing"))
        made.grant("rival", *application(RIVALS, "rivalry"))
        made.grant("operator", *OPERATOR)
        asyncio.run(create_topics(made))
        with running_worker(made.bootstrap, directory / "worker.log", **made.settings("worker")):
            yield made


async def create_topics(guarded: GuardedCluster) -> None:
    """Makes the applications' topics, as the cluster's own administrator."""
    admin = KafkaConnector(KafkaConfig(guarded.cluster.bootstrap)).admin()
    await admin.ensure_topics([TopicSpec(ORDERS, 1), TopicSpec(RIVALS, 1)])
    await admin.close()


@pytest.fixture
async def owner(guarded: GuardedCluster) -> AsyncIterator[TransactionClient]:
    """A client that writes to `orders`."""
    connector = guarded.connector("owner")
    async with TransactionClient(connector=connector, name="owner") as made:
        yield made


@pytest.fixture
async def rival(guarded: GuardedCluster) -> AsyncIterator[Requests]:
    """A client with rights on another topic only, that sends any request to coordinators."""
    connector = guarded.connector("rival")
    writer = connector.writer("rival")
    made = Requests(
        COORDINATOR_SERVICE,
        connector,
        writer,
        name="rival",
        request_timeout_s=WAIT_S,
        resend_s=1.0,
    )
    await made.open(partition_count=COORDINATORS, response_partition_count=4)
    yield made
    await made.close()
    await writer.close()


async def begun(client: TransactionClient, value: bytes) -> Transaction:
    """A transaction with one durable record."""
    txn = await client.transaction(timeout_s=600).__aenter__()
    await txn.send(ORDERS, value)
    await txn.flush()
    return txn


async def visible(guarded: GuardedCluster, group: str, value: bytes) -> None:
    """Returns when a reader of the owner gets this record."""
    connector = guarded.connector("owner")
    async with (
        asyncio.timeout(WAIT_S),
        Subscription([ORDERS], group=group, connector=connector) as orders,
    ):
        async for message in orders:
            if message.value == value:
                return


async def read_answers(connector: KafkaConnector) -> list[Record]:
    """All answers that any client was ever sent, as a reader sees them."""
    admin, reader = connector.admin(), connector.reader("curious", committed=False)
    logs = [TopicPartition(TXN_RESPONSES, number) for number in range(4)]
    try:
        starts, ends = await admin.start_offsets(logs), await admin.end_offsets(logs)
        await reader.assign(starts)
        found: list[Record] = []
        left = {data for data in logs if ends[data] > starts[data]}
        while left:
            for item in await reader.read():
                if isinstance(item, EndReached):
                    left.discard(item.data)
                else:
                    found.append(item)
        return found
    finally:
        await reader.close()
        await admin.close()


async def test_c15_what_answers_show_is_of_no_use(
    guarded: GuardedCluster, owner: TransactionClient
):
    """A rival reads every answer and sends ahead under what it finds; the owner's commit counts."""
    await (await begun(owner, b"first")).commit()
    txn = await begun(owner, b"second")
    assert owner._cluster is not None
    secret = owner._cluster.client_id
    connector = guarded.connector("rival")
    answers = await read_answers(connector)
    assert client_key(secret) in {it.key for it in answers}
    assert not any(secret in (it.key or b"") + (it.value or b"") for it in answers)
    writer, sent = connector.writer("rival"), asyncio.Event()
    for key in {it.key for it in answers if it.key is not None}:
        for number in range(1, 40):
            assert txn.id is not None
            ahead = Request(key, number, 0, 0, End(txn.id.sequence, False, (), False))
            data = TopicPartition(TXN_REQUESTS, txn.id.coordinator)
            writer.append(data, encode_request(ahead), lambda *_: sent.set(), key=key)
    async with asyncio.timeout(WAIT_S):
        await sent.wait()
    await writer.close()
    await txn.__aexit__(None, None, None)
    assert txn.state == "committed"
    await visible(guarded, "billing", b"second")


async def test_c11_another_clients_end_is_refused(
    guarded: GuardedCluster, owner: TransactionClient, rival: Requests
):
    """A rival neither ends a transaction nor registers with it; the owner commits afterwards."""
    txn = await begun(owner, b"third")
    assert txn.id is not None
    for committed in (True, False):
        end = End(txn.id.sequence, committed, (), wait_visible=False)
        answer = await rival.ask(txn.id.coordinator, end)
        assert isinstance(answer, Refused)
        assert answer.code is RefusalCode.NOT_OWNER
    await txn.__aexit__(None, None, None)
    await visible(guarded, "billing", b"third")


async def test_c15_only_operators_act_on_others(
    guarded: GuardedCluster, owner: TransactionClient, rival: Requests
):
    """Neither topic takes a rival's abort; an operator lists the owner by name, and aborts."""
    txn = await begun(owner, b"fourth")
    assert txn.id is not None
    coordinator, sequence = txn.id
    answer = await rival.ask(coordinator, Abort(sequence))
    assert isinstance(answer, Refused)
    assert answer.code is RefusalCode.OPERATORS_ONLY
    answer = await rival.ask(coordinator, ListTransactions())
    assert isinstance(answer, Refused)
    assert answer.code is RefusalCode.OPERATORS_ONLY
    with pytest.raises(FatalError, match="uthoriz"):
        async with Coordinators(guarded.connector("rival"), request_timeout_s=5):
            pass
    async with Coordinators(guarded.connector("operator"), request_timeout_s=WAIT_S) as operator:
        listed = await operator.ask(coordinator, ListTransactions())
        assert isinstance(listed, Listed)
        (shown,) = [it for it in listed.transactions if it.sequence == sequence]
        assert owner._cluster is not None
        assert shown.client_name == "owner"
        assert shown.client_key == client_key(owner._cluster.client_id)
        await operator.ask(coordinator, Abort(sequence))
    with pytest.raises(RefusedError):
        await txn.commit()


async def test_c15_a_claim_needs_membership(guarded: GuardedCluster, owner: TransactionClient):
    """A rival cannot attach to a group in which it is no member; the group's member can."""
    connector = guarded.connector("rival")
    writer = connector.writer("rival")
    acks = Requests(
        PENDING_ACK_SERVICE,
        connector,
        writer,
        name="rival",
        request_timeout_s=WAIT_S,
        resend_s=1.0,
    )
    await acks.open(partition_count=4, response_partition_count=4)
    about = SubscriptionId(TopicPartition(ORDERS, 0), "billing")
    claim = Attach(bytes(16), EndOffset(0), (), "somebody")
    answer = await acks.ask(system_partition(about.data, 4), AckQuestion(about, claim))
    assert isinstance(answer, Refused)
    assert answer.code is RefusalCode.NOT_IN_GROUP
    await acks.close()
    await writer.close()
    await (await begun(owner, b"fifth")).commit()
    async with (
        asyncio.timeout(WAIT_S),
        Subscription(
            [ORDERS], group="billing", connector=guarded.connector("owner"), acknowledgements=True
        ) as orders,
        owner.transaction() as txn,
    ):
        await txn.acknowledge(orders, await anext(orders))
    assert txn.state == "committed"
