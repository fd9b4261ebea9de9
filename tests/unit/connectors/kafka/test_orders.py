"""Orders to the thread of a consumer; no broker answers here."""

import asyncio

import pytest
from confluent_kafka import Consumer

from stilltide.connectors.errors import FatalError
from stilltide.connectors.kafka.config import KafkaConfig, reader_options
from stilltide.connectors.kafka.consumer.assignments import ReaderSlot
from stilltide.connectors.kafka.consumer.consuming import ConsumerThread
from stilltide.connectors.kafka.consumer.inbox import Inbox

WAIT_S = 30


def _fails(_consumer: Consumer) -> None:
    raise ValueError("unforeseen")


async def test_an_order_that_raises_is_answered_and_the_next_one_runs():
    """The caller gets the error as a `FatalError`; readers of the same consumer go on."""
    config = KafkaConfig("127.0.0.1:1")
    thread = ConsumerThread(config, reader_options(config, "orders", committed=False))
    try:
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(FatalError, match="could not carry out an order") as caught:
                await thread.submit(_fails)
            assert "unforeseen" in caught.value.detail
            await thread.submit(lambda _: None)
        assert not thread.ended
    finally:
        await thread.close()


async def test_the_reader_of_an_order_without_a_caller_fails(monkeypatch: pytest.MonkeyPatch):
    """Nobody waits for a pause: the reader whose pause has failed raises the error."""
    config = KafkaConfig("127.0.0.1:1")
    slot = ReaderSlot(Inbox(10))
    thread = ConsumerThread(config, reader_options(config, "orders", committed=False), slot)

    def fails(*_: object) -> None:
        raise ValueError("unforeseen")

    monkeypatch.setattr(thread.assignments, "pause", fails)
    try:
        thread.pause(slot, [])
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(FatalError, match="could not carry out an order"):
                await thread.take(slot)
    finally:
        await thread.close()
