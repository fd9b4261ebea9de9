"""C18: topics that begin to compact are told and logged, and so is a right that is missing."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from stilltide.connectors.kafka.errors import Caller, not_allowed, on_topic
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.ports.admin import TopicDescription
from stilltide.pipeline.drivers.coordinator import compacted_topics as module
from stilltide.pipeline.drivers.coordinator.compacted_topics import CompactedTopics
from stilltide.schemas.coordinator.transactions import CompactedTopic
from stilltide.schemas.retry import Retry
from stilltide.schemas.rights import Operation
from stilltide.schemas.topics import CLEANUP_POLICY, TopicSpec
from tests.support.coordinator.worker_memory import until

NAMES = ["orders", "payments", "refunds"]


class Rig:
    """A memory broker with three topics, whose configs may be hidden, and a clock of its own."""

    def __init__(self, broker: MemoryBroker, connector: MemoryConnector) -> None:
        for name in NAMES:
            broker.create_topic(TopicSpec(name, 1))
        self.broker = broker
        self.now = 1000
        self.hidden: dict[str, Operation] = {}
        self.asked: list[list[str]] = []
        self._admin = connector.admin()

    def now_ms(self) -> int:
        """The clock."""
        return self.now

    def _check(self, operation: Operation, names: Sequence[str]) -> None:
        for name in names:
            if self.hidden.get(name) in {operation, Operation.DESCRIBE}:
                raise not_allowed(Caller("h:1", "User:w"), "no", on_topic(operation, name), "")

    async def topic_configs(self, names: Sequence[str]) -> dict[str, Mapping[str, str | None]]:
        """As the admin, with rights."""
        self.asked.append(list(names))
        self._check(Operation.DESCRIBE_CONFIGS, names)
        return await self._admin.topic_configs(names)

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """As the admin, with rights."""
        self._check(Operation.DESCRIBE, names)
        return await self._admin.describe_topics(names)

    def policy(self, name: str, value: str) -> None:
        """Sets the policy of a topic."""
        self.broker.topics[name].alter({CLEANUP_POLICY: value})

    def watch(self, *allowed: str, names: Sequence[str] | None = NAMES) -> CompactedTopics:
        """The watch of a worker."""
        return CompactedTopics(self, self, lambda: names, allowed)  # type: ignore[arg-type]


@pytest.fixture
async def rig(broker: MemoryBroker, connector: MemoryConnector) -> Rig:
    """Three topics."""
    return Rig(broker, connector)


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs a task during the block."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()


async def test_a_topic_is_told_with_the_time_of_the_first_sight(rig: Rig):
    """The time stays while the topic compacts, and a mended policy is forgotten."""
    watch = rig.watch()
    await watch.look(NAMES)
    assert watch.report() == ()
    rig.policy("payments", "compact,delete")
    await watch.look(NAMES)
    rig.now = 2000
    await watch.look(NAMES)
    assert watch.report() == (CompactedTopic("payments", 1000),)
    rig.policy("payments", "delete")
    await watch.look(NAMES)
    assert watch.report() == ()


async def test_the_log_says_it_once_a_minute(rig: Rig):
    """With the topic, the time, and the command that mends it."""
    watch = rig.watch()
    rig.policy("orders", "compact")
    with capture_logs() as said:
        for _ in range(3):
            await watch.look(NAMES)
    (line,) = [it for it in said if it["event"] == "topic_compacts"]
    assert (line["topic"], line["seen_since_ms"]) == ("orders", 1000)
    assert "--topic orders --add-config cleanup.policy=delete" in line["hint"]


async def test_a_right_that_is_missing_is_named(rig: Rig):
    """Other topics of the same question are looked at; a right that is given is seen."""
    watch = rig.watch()
    rig.policy("refunds", "compact")
    rig.hidden = {"orders": Operation.DESCRIBE_CONFIGS}
    await watch.look(NAMES)
    (missing,) = watch.missing
    assert (missing.operation, missing.resource) == ("DescribeConfigs", "topic orders")
    assert [it.topic for it in watch.report()] == ["refunds"]
    rig.hidden = {}
    await watch.look(["orders"])
    assert watch.missing == []


async def test_a_topic_that_the_worker_does_not_see_hinders_nobody(rig: Rig):
    """C17: Describe was taken away, or never given; registrations there are refused."""
    rig.hidden = {"orders": Operation.DESCRIBE}
    watch = rig.watch()
    await watch.look(NAMES)
    assert watch.missing == []


async def test_many_missing_rights_end_a_look(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    """One is enough for a worker that is not ready."""
    monkeypatch.setattr(module, "MISSING_MAX", 2)
    rig.hidden = dict.fromkeys(NAMES, Operation.DESCRIBE_CONFIGS)
    watch = rig.watch()
    await watch.look(NAMES)
    assert [it.resource for it in watch.missing] == ["topic orders", "topic payments"]


async def test_a_worker_looks_before_it_is_ready(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    """Nothing is looked at before the owners know their topics; topics of the setting are not."""
    monkeypatch.setattr(module, "POLICIES_AT_START", Retry(0))
    known: list[list[str]] = []
    asked: list[bool] = []

    def names() -> list[str] | None:
        asked.append(True)
        return known[0] if known else None

    watch = CompactedTopics(rig, rig, names, ["ref*"])  # type: ignore[arg-type]
    rig.policy("refunds", "compact")
    async with running(watch.run()):
        await until(lambda: len(asked) > 1)
        assert not watch.looked
        known.append(NAMES)
        await until(lambda: watch.looked)
    assert rig.asked == [["orders", "payments"]]
    assert watch.report() == ()


async def test_new_topics_are_looked_at_soon(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    """All others a minute later; a look that fails is made again."""
    monkeypatch.setattr(module, "POLICIES", Retry(0))
    names = ["orders"]
    watch = rig.watch(names=names)
    rig.broker.down()
    async with running(watch.run()):
        await until(lambda: len(rig.asked) > 1)
        assert not watch.looked
        rig.broker.up()
        await until(lambda: watch.looked)
        rig.asked.clear()
        names.append("payments")
        await until(lambda: rig.asked)
    assert rig.asked == [["payments"]]
