"""A writer and the members of groups that go from cluster to cluster, and what they saw.

Values are the numbers of the records. A member is left without waiting for its end: its cluster may
be dead. It delivers nothing to its group once another member has taken its place.
"""

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka import TopicPartition as Place

from stilltide.connectors.errors import FencedError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.client import Subscription
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.values import EndOffset, TopicPartition
from tests.bench.harness import looks
from tests.bench.replication.copiers import RECORD_BYTES, WAIT_S
from tests.chaos.groups.data import bounds, visible

COMMIT_S = 0.1
CLOSE_S = 20.0


class Writer:
    """Writes at an even rate to the cluster where it is.

    Args:
        topic: where to.
        partitions: of the topic.
        per_s: records a second.

    Attributes:
        acked: the numbers that a cluster has acknowledged, by its address.
    """

    def __init__(self, topic: str, partitions: int, per_s: int) -> None:
        self._topic, self._partitions, self._per_s = topic, partitions, per_s
        self._producer: Producer | None = None
        self._number = 0
        self._writing: asyncio.Task[None] | None = None
        self.acked: defaultdict[str, set[int]] = defaultdict(set)

    def go_to(self, bootstrap: str) -> None:
        """Writes there from now on; what an earlier cluster has not acknowledged is given up."""
        self.rest()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True}
        )
        acked = self.acked[bootstrap]
        self._writing = asyncio.create_task(self._write(self._producer, acked))

    def rest(self) -> None:
        """Writes nothing until `go_to`."""
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    async def flush(self) -> None:
        """Returns once everything is acknowledged; the cluster must be there."""
        assert self._producer is not None
        assert await asyncio.to_thread(self._producer.flush, WAIT_S) == 0

    async def _write(self, producer: Producer, acked: set[int]) -> None:
        def told(error: KafkaError | None, message: Message) -> None:
            if error is None:
                acked.add(int(message.value() or b""))

        first, began = self._number, time.perf_counter()
        async for _ in looks(0.01, wait_s=3600.0):
            due = first + int((time.perf_counter() - began) * self._per_s)
            for number in range(self._number, due):
                value = b"%0*d" % (RECORD_BYTES, number)
                partition = number % self._partitions
                producer.produce(self._topic, value, partition=partition, on_delivery=told)
            self._number = max(due, self._number)
            producer.poll(0)


class Given(NamedTuple):
    """A record that a member was given."""

    at: tuple[str, int]
    offset: int
    value: bytes | None


@dataclass
class Leg:
    """What a group was given since it went to a cluster.

    Attributes:
        began: when it went there.
        again: records that it had been given before.
        positions: by topic and partition, where it has read to.
        committed: the same of its last commit that the cluster has acknowledged.
        went_on: when it was given the first record that it had not been given before; 0: not yet.
    """

    began: float
    again: int = 0
    went_on: float = 0.0
    positions: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    committed: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])

    @property
    def uncommitted(self) -> int:
        """Offsets that it has passed without an acknowledged commit: no fail-over can know them."""
        left = (end - self.committed.get(at, 0) for at, end in self.positions.items())
        return sum(left)


@dataclass
class Group:
    """A consumer group and all that it was given.

    Attributes:
        name: of the group.
        ours: whether its members are of `Subscription`.
        read: the numbers that it was given.
        leg: since it went to the cluster where it is.
    """

    name: str
    ours: bool
    read: set[int] = field(default_factory=set[int])
    leg: Leg = field(default_factory=lambda: Leg(0.0))
    members: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    stop: threading.Event = field(default_factory=threading.Event)

    def go_to(self, bootstrap: str, topics: Sequence[str]) -> None:
        """Reads there from now on."""
        self.stop.set()
        for member in self.members if self.ours else ():
            member.cancel()
        self.stop = threading.Event()
        self.leg = Leg(time.perf_counter())
        work = self._ours(bootstrap, topics) if self.ours else self._foreign(bootstrap, topics)
        self.members.append(asyncio.create_task(work))

    async def leave(self) -> None:
        """Stops reading; raises what a member has met before it was told to stop."""
        self.stop.set()
        await asyncio.gather(self.members[-1])

    async def close(self) -> None:
        """Waits for the ends of all members, but not long for those of a cluster that is away."""
        self.stop.set()
        await asyncio.wait(self.members, timeout=CLOSE_S)

    def given(self, stop: threading.Event, records: Sequence[Given]) -> None:
        """A member was given these; one that a later member has replaced does not count."""
        if stop is not self.stop:
            return
        for one in records:
            self.leg.positions[one.at] = one.offset + 1
            number = int(one.value or b"")
            if number in self.read:
                self.leg.again += 1
                continue
            self.read.add(number)
            self.leg.went_on = self.leg.went_on or time.perf_counter()

    async def _ours(self, bootstrap: str, topics: Sequence[str]) -> None:
        stop, leg = self.stop, self.leg
        connector = KafkaConnector(KafkaConfig(bootstrap))
        async with Subscription(topics, group=self.name, connector=connector) as subscription:
            due = 0.0
            while not stop.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(COMMIT_S):
                        it = await anext(subscription)
                        self.given(stop, [Given((it.topic, it.partition), it.offset, it.value)])
                if time.perf_counter() >= due:
                    due = time.perf_counter() + COMMIT_S
                    positions = dict(leg.positions)
                    with suppress(FencedError):
                        await subscription.commit()
                        leg.committed = positions
            with suppress(StilltideError):
                await subscription.commit()
                leg.committed = dict(leg.positions)

    async def _foreign(self, bootstrap: str, topics: Sequence[str]) -> None:
        await asyncio.to_thread(self._consume, self.stop, self.leg, bootstrap, topics)

    def _consume(
        self, stop: threading.Event, leg: Leg, bootstrap: str, topics: Sequence[str]
    ) -> None:
        def committed(error: KafkaError | None, places: Sequence[Place]) -> None:
            if error is None:
                leg.committed |= {(it.topic, it.partition): it.offset for it in places}
            elif not stop.is_set():
                say(f"disaster: group {self.name} at {bootstrap}: a commit failed: {error}")

        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": self.name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "on_commit": committed,
            }
        )
        consumer.subscribe(list(topics))
        positions = leg.positions
        due = 0.0
        while not stop.is_set():
            found = [it for it in consumer.consume(1000, 0.02) if it.error() is None]
            self.given(stop, [_given(it) for it in found])
            if positions and time.perf_counter() >= due:
                due = time.perf_counter() + COMMIT_S
                consumer.commit(offsets=places_of(positions), asynchronous=True)
        if stop is self.stop and positions:
            committed(None, consumer.commit(offsets=places_of(positions), asynchronous=False))
        consumer.close()


def _given(message: Message) -> Given:
    at = str(message.topic()), message.partition() or 0
    return Given(at, message.offset() or 0, message.value())


def places_of(positions: Mapping[tuple[str, int], int]) -> list[Place]:
    """Positions in the client's type."""
    return [Place(*at, offset) for at, offset in positions.items()]


async def seen_on(bootstrap: str, partitions: list[TopicPartition]) -> set[int]:
    """The numbers that lie in a topic."""
    connector = KafkaConnector(KafkaConfig(bootstrap))
    logs = await visible(connector, await bounds(connector, partitions))
    return {int(it.value or b"") for log in logs.values() for it in log}


async def skipped_by(group: Group, bootstrap: str, partitions: list[TopicPartition]) -> int:
    """How many records lie below the group's commits and were never given to it."""
    connector = KafkaConnector(KafkaConfig(bootstrap))
    admin = connector.group_admin()
    try:
        committed = (await admin.committed([group.name], partitions))[group.name]
    finally:
        await admin.close()
    ends = {data: EndOffset(one.offset) for data, one in committed.items()}
    below = await visible(connector, ends)
    return len({int(it.value or b"") for log in below.values() for it in log} - group.read)
