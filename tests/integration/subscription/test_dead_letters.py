"""G2 on a real broker: exactly one dead letter for each bad message, whatever is killed."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.client import Message, Subscription, TransactionClient
from stilltide.schemas.pending_ack.dead_letters import decode
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import TopicPartition
from tests.support.pending_ack.failing import DELIVERIES_MAX
from tests.support.processes.child import Child
from tests.support.processes.operator import Operator
from tests.support.processes.worker_process import WorkerProcess

COUNT = 120
BAD = {offset for offset in range(COUNT) if offset % 4 < 2}
GROUP = "billing"
WAIT_S = 360.0


class Deliveries:
    """What one member was given: pairs of offset and number of deliveries."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []
        self._more = asyncio.Event()

    def heard(self, line: str) -> None:
        """Takes a line of the member's output."""
        offset, deliveries = json.loads(line)
        self.seen.append((offset, deliveries))
        self._more.set()

    async def until(self, holds: Callable[[list[tuple[int, int]]], object]) -> None:
        """Waits for deliveries until something holds."""
        async with asyncio.timeout(WAIT_S):
            while not holds(self.seen):
                self._more.clear()
                await self._more.wait()


@asynccontextmanager
async def member(bootstrap: str, topic: str, log_path: Path) -> AsyncIterator[Deliveries]:
    """A member of the group until SIGKILL; its deliveries."""
    arguments = (bootstrap, topic, GROUP)
    module = "tests.support.pending_ack.failing"
    deliveries = Deliveries()
    process = Child.of_module(module, *arguments, log_path=log_path)
    try:
        await process.start(deliveries.heard)
        yield deliveries
        assert process.running, process.said
    finally:
        await process.kill()


async def letters(watch: Subscription, count: int) -> None:
    """Waits for so many more dead letters."""
    async with asyncio.timeout(WAIT_S):
        for _ in range(count):
            await anext(watch)


async def visible(bootstrap: str, topic: str) -> list[Message]:
    """All that can be seen in a topic with one partition."""
    connector = KafkaConnector(KafkaConfig(bootstrap))
    admin = connector.admin()
    ends = await admin.end_offsets([TopicPartition(topic, 0)])
    await admin.close()
    async with Subscription([topic], group=uuid4().hex, connector=connector) as subscription:
        return [it async for it in subscription.read_to(ends)]


async def prepare(bootstrap: str) -> tuple[str, str]:
    """A topic with messages, and its dead-letter topic."""
    topic = f"orders-{uuid4().hex[:8]}"
    dead = f"{topic}-{GROUP}-DLQ"
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    await admin.ensure_topics([TopicSpec(topic, 1), TopicSpec(dead, 1)])
    await admin.close()
    async with TransactionClient(bootstrap) as client, client.transaction() as txn:
        for offset in range(COUNT):
            kind = b"bad" if offset in BAD else b"good"
            await txn.send(topic, kind + b" %d" % offset, key=b"k", headers=[("h", b"1")])
    return topic, dead


def check(found: list[Message], topic: str) -> None:
    """One dead letter for each bad message, which says where from, how often and why."""
    headers = [decode(it.headers) for it in found]
    assert Counter(it.offset for it in headers if it) == Counter(dict.fromkeys(BAD, 1))
    for message, one in zip(found, headers, strict=True):
        assert one is not None
        assert message.value == b"bad %d" % one.offset
        assert one.data == TopicPartition(topic, 0)
        assert (one.group, one.deliveries) == (GROUP, DELIVERIES_MAX)
        assert one.error.endswith(f"offset {one.offset} is bad")
        assert one.timestamp_ms is not None
        assert one.timestamp_ms > 1_700_000_000_000


@pytest.mark.slow
async def test_one_dead_letter_for_each_message_whatever_is_killed(bootstrap: str, tmp_path: Path):
    """SIGKILL between deliveries and while dead letters are sent; then list, replay and drop."""
    log_path = tmp_path / "member.log"
    async with WorkerProcess(
        bootstrap, tmp_path / "worker.log", "--instance-id", f"w-{uuid4().hex[:8]}"
    ) as worker:
        await worker.serving()
        topic, dead = await prepare(bootstrap)
        async with Subscription([dead], group=dead, bootstrap_servers=bootstrap) as watch:
            async with member(bootstrap, topic, log_path) as first:
                await first.until(lambda seen: any(deliveries == 2 for _, deliveries in seen))
            async with member(bootstrap, topic, log_path) as second:
                await letters(watch, 3)
            async with member(bootstrap, topic, log_path) as third:
                await letters(watch, len(BAD) - 3)
        assert Counter(second.seen)[min(BAD), 1] == 1  # a member counts its own deliveries
        for deliveries in (first, second, third):
            assert max(Counter(deliveries.seen).values()) == 1
            assert max(it for _, it in deliveries.seen) <= DELIVERIES_MAX
        check(await visible(bootstrap, dead), topic)
        await replay_and_drop(Operator(bootstrap, tmp_path), bootstrap, topic, dead)


async def replay_and_drop(operator: Operator, bootstrap: str, topic: str, dead: str) -> None:
    """The commands move every dead letter once, and only with --apply."""
    rows: list[dict[str, Any]] = await operator.ask(f"dead-letter list {dead}")
    assert {row["from_offset"] for row in rows} == BAD
    assert (await operator.ask(f"dead-letter replay {dead} --all", code=3))["moved"] == 0
    one = f"dead-letter drop {dead} --partition 0 --offset {rows[-1]['offset']}"
    assert (await operator.ask(f"{one} --apply --yes"))["moved"] == 1
    replay = f"dead-letter replay {dead} --all --apply --yes"
    assert (await operator.ask(replay))["moved"] == len(BAD) - 1
    assert await operator.ask(f"dead-letter list {dead}") == []
    assert (await operator.ask(replay))["moved"] == 0
    back = [it for it in await visible(bootstrap, topic) if it.offset >= COUNT]
    sent = {b"bad %d" % it for it in BAD} - {b"bad %d" % rows[-1]["from_offset"]}
    assert Counter(it.value for it in back) == Counter(dict.fromkeys(sent, 1))
    assert all(it.key == b"k" for it in back)
    assert all([n for n, _ in it.headers or ()] == ["txn", "h"] for it in back)
