import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.memory.broker import ADDRESS, MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.schemas.values import TopicPartition
from tests.contract.rig import Rig, create
from tests.support.processes.local import delete_topic


@pytest.fixture
def dead_port() -> Iterator[int]:
    """A port that refuses connections, and that nobody else can take."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def _memory_rig() -> Rig:
    broker = MemoryBroker()
    gone = MemoryBroker()
    gone.down()

    connector = MemoryConnector(broker)
    return Rig(
        address=ADDRESS,
        connector=connector,
        helper=connector.writer("helper"),
        with_queue_of=lambda count: MemoryConnector(broker, writer_records_max=count),
        unreachable=lambda: MemoryConnector(gone),
        delete_topic=broker.delete_topic,
    )


def _kafka_rig(bootstrap: str, dead_port: int) -> Rig:
    config = KafkaConfig(bootstrap, session_timeout_s=6)
    gone = KafkaConfig(f"127.0.0.1:{dead_port}", request_timeout_s=1, delivery_timeout_s=1)

    connector = KafkaConnector(config)
    return Rig(
        address=gone.bootstrap_servers,
        connector=connector,
        helper=connector.writer("helper"),
        with_queue_of=lambda count: KafkaConnector(replace(config, writer_records_max=count)),
        unreachable=lambda: KafkaConnector(gone),
        delete_topic=lambda name: delete_topic(bootstrap, name),
    )


@pytest.fixture(params=["memory", "kafka"])
async def rig(request: pytest.FixtureRequest, dead_port: int) -> AsyncIterator[Rig]:
    """Each connector in turn."""
    if request.param == "memory":
        rig = _memory_rig()
    else:
        rig = _kafka_rig(request.getfixturevalue("bootstrap"), dead_port)
    yield rig
    await rig.helper.close()


@pytest.fixture
async def log(rig: Rig, topic_name: str) -> TopicPartition:
    """An empty partition of a new topic of two."""
    await create(rig, topic_name)
    return TopicPartition(topic_name, 0)
