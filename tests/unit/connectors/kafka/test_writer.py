"""Where a writer's thread goes; no broker answers here."""

import asyncio
import threading
from contextlib import closing
from socket import socket

import pytest

from stilltide.connectors.errors import ConnectorError, RetriableError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.producer.writer import KafkaWriter
from stilltide.schemas.values import TopicPartition

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
