"""Frameworks whose own acknowledgements and cancellations come between a handler and its message.

A user of FastStream saw that what its documentation says of `nack` holds for one policy of
acknowledgements, and not for the default one: the message was gone. Another one saw a message gone
whose handler was cancelled while the application stopped.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from faststream import AckPolicy, Context
from faststream.confluent import KafkaBroker

from stilltide.faststream import Transactions
from stilltide.testing import MemoryCluster

MESSAGE = Context("message")
POLICIES = [AckPolicy.ACK_FIRST, AckPolicy.ACK, AckPolicy.MANUAL]
WAIT_S = 100
NOWHERE = "127.0.0.1:1"
"""FastStream's own producer connects to nothing: all goes through the transactions."""


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """A cluster with three messages."""
    async with MemoryCluster({"clicks": 1, "invoices": 1}) as cluster:
        for value in (b"click 0", b"click 1", b"click 2"):
            cluster.append("clicks", value)
        yield cluster


@pytest.mark.parametrize("policy", POLICIES)
async def test_nack_brings_the_message_again(cluster: MemoryCluster, policy: AckPolicy):
    """With each policy, of which there is a default; what was published is dropped."""
    broker = KafkaBroker(NOWHERE)
    tries: Counter[str] = Counter()
    again = asyncio.Event()

    @broker.subscriber("clicks", group_id="g", auto_offset_reset="earliest", ack_policy=policy)
    async def invoice(body: str, message: Any = MESSAGE) -> None:
        tries[body] += 1
        await broker.publish(f"{body}, try {tries[body]}", topic="invoices")
        if body == "click 1" and tries[body] == 1:
            await message.nack()
        elif body == "click 1":
            again.set()

    async with asyncio.timeout(WAIT_S):
        async with Transactions(broker, connector=cluster.connector, redelivery_delay_s=0.1):
            await broker.start()
            await again.wait()
            await broker.stop()
    values = [record.value for record in await cluster.committed("invoices")]
    assert b"click 1, try 1" not in values


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_handler_that_is_cancelled_acknowledges_nothing(
    cluster: MemoryCluster, policy: AckPolicy
):
    """The application stops while the handler runs; the message comes again, without a trace."""
    broker = KafkaBroker(NOWHERE, graceful_timeout=0.1)
    running, done = asyncio.Event(), asyncio.Event()

    @broker.subscriber("clicks", group_id="g", auto_offset_reset="earliest", ack_policy=policy)
    async def invoice(body: str) -> None:
        await broker.publish(f"{body}, cancelled", topic="invoices")
        running.set()
        await asyncio.Event().wait()

    second = KafkaBroker(NOWHERE)
    seen: list[str] = []

    @second.subscriber("clicks", group_id="g", auto_offset_reset="earliest", ack_policy=policy)
    async def invoice_again(body: str) -> None:
        seen.append(body)
        if len(seen) == 3:
            done.set()

    async with asyncio.timeout(WAIT_S):
        async with Transactions(broker, connector=cluster.connector):
            await broker.start()
            await running.wait()
            await broker.stop()
        async with Transactions(second, connector=cluster.connector):
            await second.start()
            await done.wait()
            await second.stop()
    assert sorted(seen) == ["click 0", "click 1", "click 2"]
    assert await cluster.committed("invoices") == []
