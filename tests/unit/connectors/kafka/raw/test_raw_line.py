"""Calls over kafka-python's connections end, whatever becomes of their requests."""

import asyncio

import pytest
from kafka.errors import KafkaConnectionError
from kafka.future import Future

from stilltide.connectors.errors import FatalError, RetriableError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.raw.line import Line, RawClient, SharedLine

CONFIG = KafkaConfig("127.0.0.1:1", request_timeout_s=0.1)
CONFIG.contact.made = True  # the tests are about connections that were there before


async def never(_line: Line) -> None:
    """A request whose connection was lost without an outcome."""
    await Future()  # pyright: ignore[reportGeneralTypeIssues] - stubs of kafka-python 2


async def itself(line: Line) -> Line:
    """The line of a call."""
    return line


async def test_a_call_without_an_outcome_is_given_up_and_the_next_one_has_another_connection():
    """Whatever became of the first one."""
    lines: list[Line] = []

    async def use(line: Line) -> int:
        lines.append(line)
        return len(lines)

    client = RawClient(SharedLine(CONFIG, "test"), "an admin of groups")
    try:
        assert await client.call(use) == 1
        with pytest.raises(RetriableError, match="no answer to an admin of groups"):
            await client.call(never)
        assert await client.call(use) == 2
    finally:
        await client.close()
    assert lines[0] is not lines[1]


async def test_clients_share_a_line_until_the_last_one_is_closed():
    """A client that is closed, even twice, takes the line of another one with it in no case."""
    shared = SharedLine(CONFIG, "test")
    client, other = RawClient(shared, "an admin of groups"), RawClient(shared, "an asker")
    line = await client.call(itself)
    assert await other.call(itself) is line
    await client.close()
    await client.close()
    assert await other.call(itself) is line
    await other.close()
    later = RawClient(shared, "a later one")
    assert await later.call(itself) is not line
    await later.close()


async def test_clients_of_a_line_that_was_given_up_share_another_one():
    """A call under way on the line that was given up ends with an error that passes."""
    shared = SharedLine(CONFIG, "test")
    client, other = RawClient(shared, "an admin of groups"), RawClient(shared, "an asker")
    line = await client.call(itself)
    failing = asyncio.create_task(client.call(never))
    await asyncio.sleep(0)
    calling = asyncio.create_task(other.call(never))
    with pytest.raises(RetriableError, match="no answer to an admin of groups"):
        await failing
    with pytest.raises((RetriableError, KafkaConnectionError)):
        await calling
    again = await other.call(itself)
    assert again is not line
    assert await client.call(itself) is again
    await client.close()
    await other.close()


async def test_a_call_under_way_ends_with_its_client():
    """It would wait for ever otherwise."""
    client = RawClient(SharedLine(CONFIG, "test"), "an admin of groups")

    async def close(_line: Line) -> None:
        loop.call_soon_threadsafe(closing.set)
        await Future()  # pyright: ignore[reportGeneralTypeIssues] - as above

    loop, closing = asyncio.get_running_loop(), asyncio.Event()
    calling = asyncio.create_task(client.call(close))
    await closing.wait()
    await client.close()
    with pytest.raises(FatalError, match="is closed"):
        await calling
