"""Calls over kafka-python's connections end, whatever becomes of their requests."""

import asyncio

import pytest
from kafka.future import Future

from stilltide.connectors.errors import FatalError, RetriableError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.raw.line import Line, RawClient

CONFIG = KafkaConfig("127.0.0.1:1", request_timeout_s=0.1)
CONFIG.contact.made = True  # the tests are about connections that were there before


async def never(_line: Line) -> None:
    """A request whose connection was lost without an outcome."""
    await Future()  # pyright: ignore[reportGeneralTypeIssues] - stubs of kafka-python 2


async def test_a_call_without_an_outcome_is_given_up_and_the_next_one_has_another_connection():
    """Whatever became of the first one."""
    lines: list[Line] = []

    async def use(line: Line) -> int:
        lines.append(line)
        return len(lines)

    client = RawClient(CONFIG, "test", "an admin of groups")
    try:
        assert await client.call(use) == 1
        with pytest.raises(RetriableError, match="no answer to an admin of groups"):
            await client.call(never)
        assert await client.call(use) == 2
    finally:
        await client.close()
    assert lines[0] is not lines[1]


async def test_a_call_under_way_ends_with_its_client():
    """It would wait for ever otherwise."""
    client = RawClient(CONFIG, "test", "an admin of groups")

    async def close(_line: Line) -> None:
        loop.call_soon_threadsafe(closing.set)
        await Future()  # pyright: ignore[reportGeneralTypeIssues] - as above

    loop, closing = asyncio.get_running_loop(), asyncio.Event()
    calling = asyncio.create_task(client.call(close))
    await closing.wait()
    await client.close()
    with pytest.raises(FatalError, match="is closed"):
        await calling
