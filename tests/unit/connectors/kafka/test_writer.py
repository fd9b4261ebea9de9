"""Where a writer's threads and clients go; no broker keeps a record here."""

import asyncio
import threading
from contextlib import closing
from dataclasses import replace
from socket import socket

import pytest
from confluent_kafka import Producer

from stilltide.connectors.errors import ConnectorError, RetriableError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.producer.client import KeptClient, ProducerClient
from stilltide.connectors.kafka.producer.writer import KafkaWriter
from stilltide.schemas.values import TopicPartition
from tests.support.processes.wavering_broker import WaveringBroker

LOG = TopicPartition("log", 0)
MANY = 500
"""While so many are under way the loop polls, and the thread rests."""
WAIT_S = 20


@pytest.fixture
def nowhere() -> KafkaConfig:
    """An address at which nobody listens."""
    with closing(socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        return KafkaConfig(f"127.0.0.1:{bound.getsockname()[1]}")


def thread_of(name: str) -> threading.Thread:
    """The thread that polls for the writer of this name."""
    return next(it for it in threading.enumerate() if it.name == name)


@pytest.mark.parametrize("under_way", [1, MANY])
async def test_closing_fails_what_is_under_way(nowhere: KafkaConfig, under_way: int):
    """Each append is reported, and nothing is left behind."""
    writer = KafkaWriter(nowhere, "closed-writer", linger_ms=0)
    errors: list[ConnectorError | None] = []
    for _ in range(under_way):
        writer.append(LOG, b"x", lambda error, _: errors.append(error))
    thread = thread_of("closed-writer")
    assert not await writer.flush(0.5)
    await writer.close(0)
    assert len(errors) == under_way
    assert all(isinstance(it, RetriableError) for it in errors)
    assert not thread.is_alive()


@pytest.mark.parametrize("under_way", [1, MANY])
def test_the_thread_ends_with_its_loop(nowhere: KafkaConfig, under_way: int):
    """Nobody is left to tell: an application that forgets to close keeps no thread for it."""

    async def forget() -> threading.Thread:
        writer = KafkaWriter(nowhere, "forgotten-writer", linger_ms=0)
        for _ in range(under_way):
            writer.append(LOG, b"x", lambda _error, _offset: None)
        assert not await writer.flush(0.5)
        return thread_of("forgotten-writer")

    thread = asyncio.run(forget())
    thread.join(WAIT_S)
    assert not thread.is_alive()


def client_of(bootstrap: str) -> ProducerClient:
    """A client of a writer, that is not started."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    return ProducerClient(producer, "client", lingers=True)


async def looked(addresses: list[str]) -> tuple[bool, int]:
    """Whether a lost client was replaced, of clients with these addresses; how many were made."""
    left = addresses.copy()
    started: list[ProducerClient] = []
    kept = KeptClient(lambda: client_of(left.pop(0)), started.append, 1.0, "w")
    first = kept.client
    kept.look()
    kept.look()  # as many as come while it looks
    await kept.looked()
    await kept.close()
    assert (kept.client is not first) == bool(started)
    return kept.client is not first, len(addresses) - len(left)


async def test_a_client_that_lost_its_broker_is_replaced(nowhere: KafkaConfig):
    """Another one finds a broker, and it does not: the other one goes on."""
    async with WaveringBroker(seed=1) as broker:
        assert await looked([nowhere.bootstrap_servers, broker.bootstrap]) == (True, 2)


async def test_a_client_is_kept_while_no_broker_is_there(nowhere: KafkaConfig):
    """Its younger records may still be written, in order."""
    assert await looked([nowhere.bootstrap_servers, nowhere.bootstrap_servers]) == (False, 2)


async def test_a_client_is_kept_that_finds_its_broker():
    """One slow record is no reason to take another."""
    async with WaveringBroker(seed=1) as broker:
        assert await looked([broker.bootstrap, broker.bootstrap]) == (False, 1)


async def test_a_record_that_times_out_has_the_writer_look(nowhere: KafkaConfig):
    """The writer still reports each append once, and takes further ones."""
    config = replace(nowhere, delivery_timeout_s=0.2, request_timeout_s=0.2)
    writer = KafkaWriter(config, "looking-writer", linger_ms=5)
    for _ in range(2):
        errors: list[ConnectorError | None] = []
        writer.append(LOG, b"x", lambda error, _, seen=errors: seen.append(error))
        assert await writer.flush(WAIT_S)
        assert [type(it) for it in errors] == [RetriableError]
    await writer.close(0)
