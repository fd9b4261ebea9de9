"""Members that copy and acknowledge on a site, what they told, and whether it all holds.

*Source*: rules G. Three topics are fed for as long as members work; see `acknowledger` for
what they do with them.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

import pytest

from stilltide.connectors.errors import ConnectorError, RetriableError
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.ports.writers import LogWriter
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.pipeline.drivers.pending_ack.client import PendingAckStores
from stilltide.schemas.pending_ack.acknowledgements import AckQuestion, Acks, DescribeAcks
from stilltide.schemas.topics import system_partition
from stilltide.schemas.values import EndOffset, SubscriptionId, TopicPartition
from tests.chaos.pending_ack.acknowledger import COPYING, WAYS
from tests.chaos.pending_ack.history import AckHistory
from tests.chaos.points import CLAIMED, Point
from tests.chaos.processes.site import POINT_S, Site
from tests.support.processes.child import Child
from tests.support.processes.worker_process import PARTITIONS, await_all_ended

MEMBERS = 2
UNTOLD_MAX = 500
FEED_S, FED_AT_ONCE = 0.05, 10
REST = 30
"""Written to each topic when no member is left: nobody has seen them."""
TASKS_MAX = 200


class Place(NamedTuple):
    """Where a message lies in its topic."""

    partition: int
    offset: int


class AckWorld:
    """Starts on entry with a worker and members; `check` says whether everything held."""

    def __init__(self, cluster: LocalCluster, directory: Path, seed: int) -> None:
        self._suffix = f"{seed}"
        topics = [f"{way}-{seed}" for way in WAYS] + [f"{way}-out-{seed}" for way in COPYING]
        self.site = Site(cluster, directory, seed, topics)
        self.members: list[Child] = []
        self.history = AckHistory(self.site.connector)
        self._made = 0
        self._told: dict[str, set[Place]] = {way: set() for way in WAYS}
        self._committed: dict[str, set[Place]] = {way: set() for way in COPYING}
        self._acknowledged_one: set[Place] = set()
        self._acknowledged_through: dict[int, int] = {}
        self._kept: set[Place] = set()  # acknowledged since the last rebalance
        self._assigned = asyncio.Event()
        self._fed: Counter[str] = Counter()
        self._heard_more = asyncio.Event()
        self._writer: LogWriter | None = None
        self._enough = asyncio.Event()
        self._feeding: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.site.__aenter__()
        await self.history.start()
        self._writer = self.site.connector.writer("chaos-feeder")
        self._feeding = asyncio.create_task(self._feed(self._writer))
        for _ in range(MEMBERS):
            await self.add_member()
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in self.members:
            if member.running:
                await member.kill()
        if self._feeding is not None and self._writer is not None:
            self._feeding.cancel()
            await self._writer.close()
        await self.history.close()
        await self.site.__aexit__()

    async def add_member(self) -> Child:
        """Another member of each group."""
        self._made += 1
        member = Child.of_module(
            "tests.chaos.pending_ack.acknowledger",
            *(self.site.cluster.bootstrap, f"member{self._made}", self._suffix),
            log_path=self.site.directory / f"members-{self._suffix}.log",
        )
        await member.start(self._heard)
        self.members.append(member)
        return member

    async def remove_member(self) -> None:
        """The first member leaves in good order."""
        await self._leave(self.members.pop(0))

    async def point(self, point: Point) -> None:
        """Waits until the protocol reaches a point; brings a member in for it if need be."""
        if point is CLAIMED:
            await asyncio.gather(self.site.point(point), self.add_member())
        else:
            await self.site.point(point)

    async def progress(self, messages: int = 40) -> None:
        """Waits until members told of so many more messages, of each way."""
        goals = {way: len(told) + messages for way, told in self._told.items()}
        try:
            async with asyncio.timeout(POINT_S):
                while behind := [way for way in WAYS if len(self._told[way]) < goals[way]]:
                    self._heard_more.clear()
                    await self._heard_more.wait()
        except TimeoutError:
            pytest.fail(f"{behind} stand still: see {self.site.directory}")

    async def steady(self) -> None:
        """Members leave until there are as many as in the beginning."""
        while len(self.members) > MEMBERS:
            await self.remove_member()

    async def settle(self) -> None:
        """All members leave in good order, and all transactions end; some messages are left."""
        while len(self.members) > 1:
            self._assigned.clear()
            await self.remove_member()
        async with asyncio.timeout(POINT_S):
            await self._assigned.wait()  # a rebalance forgets what is younger than a second
        await self.progress()
        await self.remove_member()
        assert self._feeding is not None
        assert self._writer is not None
        self._enough.set()
        await self._feeding
        for way in WAYS:
            self._write(self._writer, way, REST)
        assert await self._writer.flush(POINT_S)
        async with TransactionClient(self.site.cluster.bootstrap, resend_s=0.5) as client:
            async with asyncio.timeout(POINT_S):
                await await_all_ended(client)

    async def check(self) -> None:
        """Each message was copied once or is delivered now, and nothing is pending."""
        for way in COPYING:
            await self._check_copies(way)
        await self._check_plain()
        await self._check_nothing_pending()
        await self.history.check()

    async def _check_copies(self, way: str) -> None:
        written = await self._read(way, "check")
        copies = await self._copies(way)
        rest = await self._read(way, f"{way}-{self._suffix}", acknowledgements=True)
        assert set(copies.values()) == {1}, [it for it in copies.items() if it[1] > 1]
        copied = {place for place, _ in copies}
        assert len(copied) == len(copies), "copies of one message differ"
        assert {place: written[place] for place in copied} == dict(copies.keys())
        assert self._committed[way], "nothing was committed: the scenario proves nothing"
        assert self._committed[way] <= copied, "a committed copy is not visible"
        assert copied | rest.keys() == written.keys(), (
            f"{way}: acknowledged without copy: {sorted(written.keys() - copied - rest.keys())}"
        )
        assert not copied & rest.keys(), f"{way}: again: {sorted(copied & rest.keys())}"

    async def _check_plain(self) -> None:
        written = await self._read("plain", "check")
        rest = await self._read("plain", f"plain-{self._suffix}", acknowledgements=True)
        through = self._acknowledged_through
        acknowledged = self._acknowledged_one | {
            place for place in written if place.offset <= through.get(place.partition, -1)
        }
        lost = written.keys() - acknowledged - rest.keys()
        assert not lost, f"never acknowledged, and not delivered: {sorted(lost)}"
        assert self._kept, "nothing was acknowledged at the end: the scenario proves nothing"
        assert not self._kept & rest.keys(), f"again: {sorted(self._kept & rest.keys())}"

    async def _check_nothing_pending(self) -> None:
        async with PendingAckStores(self.site.connector, request_timeout_s=POINT_S) as stores:
            for way in WAYS:
                for partition in range(PARTITIONS):
                    topic = f"{way}-{self._suffix}"
                    subscription = SubscriptionId(TopicPartition(topic, partition), topic)
                    owner = system_partition(subscription.data, stores.count)
                    acks = await stores.ask(owner, AckQuestion(subscription, DescribeAcks()))
                    assert isinstance(acks, Acks)
                    assert not acks.pending, f"{subscription}: {acks.pending}"

    async def _read(
        self, way: str, group: str, *, acknowledgements: bool = False
    ) -> dict[Place, bytes | None]:
        """What a group is given of a way's topic, to its present ends; nothing twice."""
        topic = f"{way}-{self._suffix}"
        found: dict[Place, bytes | None] = {}
        async with Subscription(
            [topic],
            group=group,
            connector=self.site.connector,
            acknowledgements=acknowledgements,
            unacknowledged_records_max=100_000,
        ) as subscription:
            async for message in subscription.read_to(await self._ends(topic)):
                place = Place(message.partition, message.offset)
                assert place not in found, f"{topic} {place} was delivered twice"
                found[place] = message.value
        return found

    async def _copies(self, way: str) -> Counter[tuple[Place, bytes | None]]:
        """The visible copies: of which message, with which contents, and how many."""
        topic = f"{way}-out-{self._suffix}"
        copies: Counter[tuple[Place, bytes | None]] = Counter()
        async with Subscription(
            [topic], group="check", connector=self.site.connector
        ) as subscription:
            async for message in subscription.read_to(await self._ends(topic)):
                assert message.key is not None
                partition, offset = map(int, message.key.split())
                copies[Place(partition, offset), message.value] += 1
        return copies

    async def _ends(self, topic: str) -> dict[TopicPartition, EndOffset]:
        admin = self.site.connector.admin()
        ends = await admin.end_offsets([TopicPartition(topic, it) for it in range(PARTITIONS)])
        await admin.close()
        return ends

    async def _leave(self, member: Child) -> None:
        assert await member.stop() == 0, f"a member failed: see {self.site.directory}"

    async def _feed(self, writer: LogWriter) -> None:
        while not self._enough.is_set():
            for way in COPYING:
                if self._fed[way] - len(self._told[way]) < UNTOLD_MAX:
                    self._write(writer, way, FED_AT_ONCE)
            self._write(writer, "plain", PARTITIONS)  # of most nothing is told: it is covered
            with suppress(TimeoutError):
                async with asyncio.timeout(FEED_S):
                    await self._enough.wait()

    def _write(self, writer: LogWriter, way: str, messages: int) -> None:
        for number in range(self._fed[way], self._fed[way] + messages):
            data = TopicPartition(f"{way}-{self._suffix}", number % PARTITIONS)
            try:
                writer.append(data, b"%d" % number, _unheard)
            except RetriableError:
                return
            self._fed[way] += 1

    def _heard(self, line: str) -> None:
        way, what, *numbers = line.split()
        place = Place(*map(int, numbers))
        if way == "tasks":
            if what == "ended":
                running, left = place
                assert running < TASKS_MAX, f"{running} tasks"
                assert left == 1, f"{left} tasks are left when all is closed"
            return
        if what == "committed":
            self._committed[way].add(place)
        if what == "one":
            self._acknowledged_one.add(place)
        if what == "through":
            before = self._acknowledged_through.get(place.partition, -1)
            self._acknowledged_through[place.partition] = max(before, place.offset)
        if what == "assigned":
            self._kept.clear()
            self._assigned.set()
        if what == "done":
            self._kept.add(place)
        if what in ("committed", "unknown", "done"):
            self._told[way].add(place)
            self._heard_more.set()


def _unheard(_error: ConnectorError | None, _offset: int) -> None:
    """What was written is read from the topic in the end."""
