"""Handlers of FastStream on both of its Kafka brokers: one message, one transaction."""

import asyncio
import importlib
import logging
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from faststream import AckPolicy, Context, FastStream
from faststream.confluent import KafkaBroker
from faststream.exceptions import AckMessage, NackMessage, RejectMessage

from stilltide import ArgumentError, Subscription, Transaction, TransactionClient
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.faststream import Transactions
from tests.support.looks import between_looks
from tests.support.processes.child import Child
from tests.support.processes.local import commit, create_topic, read_values
from tests.support.processes.worker_process import running_worker

KINDS = ("confluent", "kafka")
"""FastStream's brokers for Kafka: by confluent-kafka, and by aiokafka."""

TRANSACTION, MESSAGE = Context("transaction"), Context("message")
WAIT_S = 240.0

DIES = """
import asyncio, sys
from faststream import Context, FastStream
from faststream.{kind} import KafkaBroker
from stilltide.faststream import Transactions

KAFKA, source, target, lot = sys.argv[1:]
broker = KafkaBroker(KAFKA, logger=None)
app = FastStream(
    broker, lifespan=lambda: Transactions(broker, KAFKA, transaction_timeout_s=5)
)

@broker.subscriber(source, group_id=source, auto_offset_reset="earliest")
async def invoice(body: str, txn=Context("transaction")) -> None:
    await broker.publish("invoice of " + body, topic=target)
    if lot == "dies" and body == "click 2":
        await txn.flush()
        print("dying", flush=True)
        await asyncio.Event().wait()

asyncio.run(app.run())
"""


@pytest.fixture(scope="module")
def served(empty_kafka: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker with a worker."""
    log = tmp_path_factory.mktemp("faststream") / "worker.log"
    with running_worker(empty_kafka.bootstrap, log):
        yield empty_kafka.bootstrap


@pytest.fixture
def topics(served: str, request: pytest.FixtureRequest) -> tuple[str, str]:
    """Where handlers read, and where they write."""
    name = f"{request.node.name.translate(str.maketrans('[]', '--'))}".replace("--", "-")
    source, target = f"{name}-from", f"{name}-to"
    for topic in (source, target):
        create_topic(served, topic)
    return source, target


def kafka_broker(kind: str, served: str) -> Any:
    """A broker of FastStream."""
    return importlib.import_module(f"faststream.{kind}").KafkaBroker(served)


@asynccontextmanager
async def running(broker: Any, served: str, **options: Any) -> AsyncIterator[None]:
    """Runs the handlers of a broker in transactions."""
    async with Transactions(broker, served, redelivery_delay_s=0.1, **options):
        try:
            await broker.start()
            yield
        finally:
            await broker.stop()


async def write(served: str, topic: str, values: list[str], *, aborted: bool = False) -> None:
    """Writes records in one transaction."""
    async with TransactionClient(served) as client, client.transaction() as txn:
        for value in values:
            await txn.send(topic, value.encode())
        if aborted:
            await txn.flush()
            await txn.abort()


async def committed(served: str, topic: str, wanted: set[str]) -> list[str]:
    """What readers see of a topic until they have seen all that is wanted."""
    values: list[str] = []
    group = f"reader-{topic}-{os.urandom(4).hex()}"
    async with (
        asyncio.timeout(WAIT_S),
        Subscription(topic, group=group, bootstrap_servers=served) as records,
    ):
        while not wanted <= set(values):
            values.append(((await anext(records)).value or b"").decode())
    return values


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_handler_publishes_is_one_transaction(
    kind: str, served: str, topics: tuple[str, str]
):
    """What it returns and what it publishes are visible together; an exception leaves nothing."""
    source, target = topics
    broker = kafka_broker(kind, served)
    tries: Counter[str] = Counter()
    done = asyncio.Event()

    @broker.subscriber(source, group_id=source, auto_offset_reset="earliest")
    @broker.publisher(target)
    async def invoice(body: str, txn: Transaction = TRANSACTION) -> str:
        tries[body] += 1
        await broker.publish(
            f"{body}, try {tries[body]}", topic=target, key="k", headers={"a": "b"}
        )
        await broker.publish_batch(f"{body}, more", f"{body}, most", topic=target)
        if body == "click 1" and tries[body] == 1:
            await txn.flush()  # the records are in the topic
            raise ValueError("once")
        if body == "last":
            done.set()
        return f"{body}, returned"

    await write(served, source, ["hidden"], aborted=True)
    await write(served, source, ["click 0", "click 1", "last"])
    async with asyncio.timeout(WAIT_S), running(broker, served):
        await done.wait()
        values = await committed(served, target, {"click 1, returned", "last, returned"})
    expected = [
        (f"{body}, try {number}", f"{body}, more", f"{body}, most", f"{body}, returned")
        for body, number in (("click 0", 1), ("last", 1), ("click 1", 2))
    ]
    assert sorted(values) == sorted(it for values in expected for it in values)
    assert tries == {"click 0": 1, "click 1": 2, "last": 1}


@pytest.mark.parametrize(
    ("kind", "policy"), [("confluent", AckPolicy.MANUAL), ("kafka", AckPolicy.ACK_FIRST)]
)
async def test_a_handler_that_refuses_its_message(
    kind: str, policy: AckPolicy, served: str, topics: tuple[str, str]
):
    """`NackMessage` and `nack` bring it again; `RejectMessage` drops it and what it published."""
    source, target = topics
    broker = kafka_broker(kind, served)
    tries: Counter[str] = Counter()

    @broker.subscriber(source, group_id=source, auto_offset_reset="earliest", ack_policy=policy)
    async def handle(body: str, message: Any = MESSAGE) -> None:
        tries[body] += 1
        await broker.publish(f"{body} {tries[body]}", topic=target)
        if tries[body] == 1 and body == "nack":
            await message.nack()
        elif tries[body] == 1 and body == "raise nack":
            raise NackMessage
        elif body == "raise reject":
            raise RejectMessage
        elif body == "raise ack":
            raise AckMessage

    bodies = ["raise reject", "raise nack", "nack", "raise ack"]
    await write(served, source, bodies)
    async with asyncio.timeout(WAIT_S), running(broker, served):
        wanted = {"raise ack 1", "raise nack 2", "nack 2"}
        await committed(served, target, wanted)
        await write(served, source, ["last"])  # after what was dropped has come again unseen
        values = await committed(served, target, wanted | {"last 1"})
    assert sorted(values) == sorted(wanted | {"last 1"})
    assert tries["raise reject"] == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_batches_and_many_messages_at_once(kind: str, served: str, topics: tuple[str, str]):
    """A batch is one transaction; with `max_workers` each message still has its own."""
    source, target = topics
    broker = kafka_broker(kind, served)
    together = asyncio.Barrier(4)

    @broker.subscriber(source, group_id=f"{source}-b", auto_offset_reset="earliest", batch=True)
    async def count(bodies: list[str]) -> None:
        for body in bodies:
            await broker.publish(f"batch: {body}", topic=target)

    @broker.subscriber(source, group_id=f"{source}-w", auto_offset_reset="earliest", max_workers=4)
    async def each(body: str) -> None:
        await together.wait()
        await broker.publish(f"each: {body}", topic=target)

    await write(served, source, [f"click {number}" for number in range(8)])
    async with asyncio.timeout(WAIT_S), running(broker, served):
        wanted = {f"{way}: click {number}" for way in ("batch", "each") for number in range(8)}
        values = await committed(served, target, wanted)
    assert sorted(values) == sorted(wanted)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_handler_that_is_killed(
    kind: str, served: str, topics: tuple[str, str], tmp_path: Path
):
    """Between the record and the acknowledgement: the message comes again, the record is hidden."""
    source, target = topics
    command = [sys.executable, "-c", DIES.replace("{kind}", kind), served, source, target]
    clicks = [f"click {number}" for number in range(6)]
    await write(served, source, clicks)
    async with Child([*command, "dies"], tmp_path / "log") as child:
        assert await child.line() == "dying"
        child.send(signal.SIGKILL)
        await child.ended()
    wanted = {f"invoice of {click}" for click in clicks}
    async with Child([*command, "lives"], tmp_path / "log"):
        values = await committed(served, target, wanted)
    assert sorted(values) == sorted(wanted)
    written = read_values(served, target)
    assert written.count(b"invoice of click 2") == 2, "one of them in the transaction that died"


@pytest.mark.parametrize("kind", KINDS)
async def test_what_cannot_be_part_of_a_transaction(
    kind: str, served: str, topics: tuple[str, str]
):
    """Each is an error that names the next step, and nothing is read."""
    source, target = topics
    broker = kafka_broker(kind, served)
    broker.subscriber(source)(print)
    with pytest.raises(ArgumentError, match="has no group"):
        async with running(broker, served):
            pass
    errors: list[Exception] = []
    broker = kafka_broker(kind, served)

    @broker.subscriber(source, group_id=source, auto_offset_reset="earliest")
    async def handle(body: str) -> None:
        try:
            await broker.publish(body, topic=target, timestamp_ms=5)
        except ArgumentError as error:
            errors.append(error)
        await broker.publish(body, topic=target)

    await write(served, source, ["click"])
    async with asyncio.timeout(WAIT_S), running(broker, served):
        assert await committed(served, target, {"click"}) == ["click"]
    assert "timestamp_ms" in str(errors[0])
    with pytest.raises(ArgumentError, match="no broker for Kafka"):
        Transactions(object(), served)
    with pytest.raises(ArgumentError, match="FastStream decodes messages itself"):
        Transactions(broker, served, value_deserializer=bytes.decode)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_subscription_that_fails_ends_the_application(
    kind: str, served: str, topics: tuple[str, str]
):
    """The group is beyond the end of the log: the application ends, and reads no further."""
    source, _ = topics
    broker = kafka_broker(kind, served)
    app = FastStream(broker, lifespan=lambda: Transactions(broker, served))
    broker.subscriber(source, group_id=source, auto_offset_reset="earliest")(print)
    commit(served, source, source, 5)
    async with asyncio.timeout(60):
        await app.run()


async def test_a_message_of_another_consumer(
    served: str, topics: tuple[str, str], caplog: pytest.LogCaptureFixture
):
    """The middleware refuses a broker that has started before: its offsets are Kafka's."""
    source, _ = topics
    handled: list[str] = []
    broker = KafkaBroker(served, logger=logging.getLogger("faststream-test"))

    @broker.subscriber(source, group_id=source, auto_offset_reset="earliest")
    async def handle(body: str) -> None:
        handled.append(body)

    await broker.start()
    async with Transactions(broker, served):
        await write(served, source, ["click"])
        async with asyncio.timeout(WAIT_S):
            while "enter `Transactions` before the broker starts" not in caplog.text:
                await between_looks()
        await broker.stop()
    assert not handled
