"""Partitions at rest share their looks, and are answered when something differs (I16)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.memory.group import Group
from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.drivers.groups import rounds as module
from stilltide.pipeline.drivers.groups.rounds import GroupPolls, Polled
from stilltide.pipeline.drivers.read_committed.decided_log import DecidedLog
from stilltide.pipeline.drivers.read_committed.outcome_tails import OutcomeLogs
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.schemas.topics import REPLICATION_POSITIONS, TopicSpec, system_topics
from stilltide.schemas.values import ClusterName, Offset, TopicPartition

ORDERS = [TopicPartition("orders", number) for number in range(3)]
GROUP = "billing"
LONG_S, WAIT_S = 3600.0, 60.0


class CountingBroker(MemoryBroker):
    """A broker that counts the requests of clients, and those about groups among them."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = self.about_groups = 0
        self.many_about_groups = asyncio.Event()

    def check_up(self) -> None:
        """Each request asks this once."""
        self.requests += 1
        super().check_up()

    def group(self, name: str) -> Group:
        """Each request about a group asks for the group once."""
        self.about_groups += 1
        if self.about_groups > 1000:
            self.many_about_groups.set()
        return super().group(name)


class World:
    """A broker with a topic, and what looks at a group of it."""

    def __init__(self, broker: CountingBroker, polls: GroupPolls) -> None:
        self.broker, self.polls = broker, polls

    def commit(self, data: TopicPartition, offset: int):
        """As the group does."""
        self.broker.group(GROUP).committed[data] = Committed(Offset(offset), "")

    async def now(self, data: TopicPartition) -> Polled:
        """An answer of now."""
        found = await self.polls.poll(data, [GROUP])
        assert found is not None
        return found

    def resting(self, data: TopicPartition, known: Polled) -> "asyncio.Task[Polled | None]":
        """A question of a partition at rest."""
        return asyncio.create_task(self.polls.poll(data, [GROUP], unlike=known))

    def settled(self, data: TopicPartition, known: Polled) -> "asyncio.Task[Polled | None]":
        """A question of a settled partition that does not rest yet."""
        return asyncio.create_task(self.polls.poll(data, [GROUP], unlike=known, rests=False))


@asynccontextmanager
async def looking() -> AsyncIterator[World]:
    """Polls that run."""
    broker = CountingBroker()
    for spec in (*system_topics(coordinators=1, partitions=1), TopicSpec("orders", len(ORDERS))):
        broker.create_topic(spec)
    connector = MemoryConnector(broker)
    admin = connector.admin()

    decided = DecidedLog(OutcomeLogs(connector, admin, OutageGuard(admin), "test", 1, 1))
    for data in ORDERS:
        decided.add({data: Offset(0)})
    polls = GroupPolls(
        connector.group_admin(),
        decided,
        here=ClusterName("a"),
        positions=TopicPartition(REPLICATION_POSITIONS, 0),
    )
    tasks = [asyncio.create_task(it) for it in (decided.run(), polls.run())]
    try:
        async with asyncio.timeout(WAIT_S):
            yield World(broker, polls)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await decided.close()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch):
    """Looks at rest follow each other at once, and nothing but a change ends the rest."""
    monkeypatch.setattr(module, "REST_S", 0)
    monkeypatch.setattr(module, "REST_S_MAX", LONG_S)


async def rested(world: World, *tasks: "asyncio.Task[Polled | None]"):
    """Some looks have been made, and these still rest."""
    for _ in range(20):
        await world.now(ORDERS[2])
    assert not any(task.done() for task in tasks)


async def first_answered(
    world: World, first: "asyncio.Task[Polled | None]", second: "asyncio.Task[Polled | None]"
) -> None:
    """A commit in the first partition answers its request, and not that of its neighbour."""
    await rested(world, first, second)
    world.commit(ORDERS[0], 7)
    polled = await first
    assert polled is not None
    assert polled.groups[GROUP].offset == 7
    await rested(world, second)
    second.cancel()


async def test_what_rests_is_answered_when_it_differs():
    """By a commit of its group; its neighbour goes on resting."""
    async with looking() as world:
        known = [await world.now(data) for data in ORDERS]
        first, second = (world.resting(data, known[data.partition]) for data in ORDERS[:2])
        await first_answered(world, first, second)


async def test_commits_elsewhere_in_the_topic_matter_while_nothing_is_published():
    """A group without a commit of the partition shows whether it has committed another one."""
    async with looking() as world:
        world.commit(ORDERS[1], 7)
        seen = [await world.polls.poll(data, [GROUP], unpublished=[GROUP]) for data in ORDERS[:2]]
        assert [polled and polled.groups[GROUP].elsewhere for polled in seen] == [True, False]
        assert not (await world.now(ORDERS[0])).groups[GROUP].elsewhere


async def test_the_first_commit_on_a_topic_ends_the_rest_of_all_of_its_partitions():
    """Of those on which nothing is published about the group."""
    async with looking() as world:
        known = await world.now(ORDERS[0])
        asking = world.polls.poll(ORDERS[0], [GROUP], unpublished=[GROUP], unlike=known)
        first, second = asyncio.create_task(asking), world.resting(ORDERS[1], known)
        await rested(world, first, second)
        world.commit(ORDERS[2], 1)
        polled = await first
        assert polled is not None
        assert polled.groups[GROUP].elsewhere
        await rested(world, second)
        second.cancel()


async def test_what_was_published_at_the_last_look_and_no_longer_is_ends_the_rest():
    """By a commit elsewhere, for which the last look did not ask."""
    async with looking() as world:
        world.commit(ORDERS[2], 1)
        known = await world.now(ORDERS[0])
        published = world.resting(ORDERS[0], known)
        await rested(world, published)
        published.cancel()
        polled = await world.polls.poll(ORDERS[0], [GROUP], unpublished=[GROUP], unlike=known)
        assert polled is not None
        assert polled.groups[GROUP].elsewhere


async def test_a_record_ends_the_rest():
    """The end of the log is part of the view."""
    async with looking() as world:
        known = await world.now(ORDERS[0])
        resting = world.resting(ORDERS[0], known)
        await rested(world, resting)
        world.broker.append(ORDERS[0], None, b"x", None)
        found = await resting
        assert found is not None
        assert found.view.end == 1


async def test_a_change_before_the_question_is_told():
    """The question names what its asker knows, which may be older than the last look."""
    async with looking() as world:
        known = await world.now(ORDERS[0])
        world.commit(ORDERS[0], 7)
        await world.now(ORDERS[1])  # has seen the commit
        found = await world.resting(ORDERS[0], known)
        assert found is not None
        assert found.groups[GROUP].offset == 7


async def test_a_partition_that_is_urgent_has_its_answer():
    """Whether it waits for a look, or is looked at."""
    async with looking() as world:
        known = await world.now(ORDERS[0])
        for _ in range(50):
            resting = world.resting(ORDERS[0], known)
            await world.now(ORDERS[2])
            world.polls.look_soon(ORDERS[0])
            assert await resting == known


async def test_nothing_rests_for_ever(monkeypatch: pytest.MonkeyPatch):
    """Its links are judged with each answer, too."""
    monkeypatch.setattr(module, "REST_S_MAX", 0.02)
    async with looking() as world:
        known = await world.now(ORDERS[0])
        assert await world.resting(ORDERS[0], known) == known


async def test_an_absent_cluster_ends_the_rest_with_its_error():
    """The controller begins again."""
    async with looking() as world:
        known = await world.now(ORDERS[0])
        resting = world.resting(ORDERS[0], known)
        await rested(world, resting)
        world.broker.down()
        with pytest.raises(Exception, match="down"):
            await resting
        world.broker.up()


@pytest.fixture
def never_at_rest(monkeypatch: pytest.MonkeyPatch):
    """Only settled partitions are looked at, again and again."""
    monkeypatch.setattr(module, "REST_S", LONG_S)
    monkeypatch.setattr(module, "SETTLED_S", 0)


@pytest.mark.usefixtures("never_at_rest")
async def test_what_is_settled_is_answered_when_it_differs():
    """Without waiting for the looks at partitions at rest, which are not looked at meanwhile."""
    async with looking() as world:
        known = [await world.now(data) for data in ORDERS]
        first, second = (world.settled(data, known[data.partition]) for data in ORDERS[:2])
        await first_answered(world, first, second)


@pytest.mark.usefixtures("never_at_rest")
async def test_a_look_at_settled_partitions_asks_for_their_groups_only():
    """As long as it finds nothing new, for any number of partitions."""
    async with looking() as world:
        known = [await world.now(data) for data in ORDERS]
        settled = [world.settled(data, known[data.partition]) for data in ORDERS]
        while world.polls._settled.seen is None:
            await world.now(ORDERS[0])
        broker = world.broker
        before = broker.requests - broker.about_groups
        await broker.many_about_groups.wait()
        assert broker.requests - broker.about_groups == before
        for task in settled:
            task.cancel()


async def test_what_is_settled_has_its_answer_with_those_at_rest(monkeypatch: pytest.MonkeyPatch):
    """Its links are judged with each answer, too."""
    monkeypatch.setattr(module, "SETTLED_S", LONG_S)
    async with looking() as world:
        known = await world.now(ORDERS[0])
        assert await world.settled(ORDERS[0], known) == known


async def test_a_settled_partition_that_is_urgent_has_its_answer(monkeypatch: pytest.MonkeyPatch):
    """Whether it waits for a look, or is looked at."""
    monkeypatch.setattr(module, "REST_S", LONG_S)
    monkeypatch.setattr(module, "SETTLED_S", 0)
    async with looking() as world:
        known = await world.now(ORDERS[0])
        for _ in range(50):
            settled = world.settled(ORDERS[0], known)
            await world.now(ORDERS[2])
            world.polls.look_soon(ORDERS[0])
            assert await settled == known
