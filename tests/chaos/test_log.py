"""A log under fault: every acknowledged record has exactly one (offset, batch index).

*Source*: rules A4, B1, B2, B3, B4, B5. Owners in processes of their own are killed, paused and
woken as zombies; afterwards the log is read by an independent reader of B2, and each acknowledged
position is looked up in it.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.ports.readers import Record
from stilltide.schemas.framing import decode_value
from stilltide.schemas.headers import entry_stamp
from stilltide.schemas.topics import ENTRY_BYTES_MAX, TopicSpec
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.processes.child import Child

SEED = int(os.environ.get("SEED", "1"))
ROUNDS = int(os.environ.get("ROUNDS", "2"))
PROGRESS_S = 60.0

Place = tuple[int, int, int]
"""Offset, batch size, batch index."""


@dataclass
class Owners:
    """Owners of one log, one after the other or at once, and what they say was acknowledged."""

    cluster: LocalCluster
    topic: str
    directory: Path
    random: Random
    acknowledged: dict[str, Place] = field(default_factory=dict)
    running: list[Child] = field(default_factory=list)
    _made: int = 0
    _heard_more: asyncio.Event = field(default_factory=asyncio.Event)

    async def add(self) -> Child:
        """One more owner; it fences the one before."""
        self._made += 1
        owner = Child.of_module(
            "tests.chaos.processes.appender",
            *(self.cluster.bootstrap, self.topic, f"owner{self._made}"),
            log_path=self.directory / "owners.log",
        )
        await owner.start(self._heard)
        self.running.append(owner)
        return owner

    async def progress(self, count: int = 2000) -> None:
        """Waits until so many more appends were acknowledged."""
        goal = len(self.acknowledged) + count
        async with asyncio.timeout(PROGRESS_S):
            while len(self.acknowledged) < goal:
                self._heard_more.clear()
                await self._heard_more.wait()

    def _heard(self, line: str) -> None:
        if line == "serving":
            return
        payload, *place = line.split()
        offset, size, index = map(int, place)
        assert payload not in self.acknowledged, f"{payload} was acknowledged twice"
        self.acknowledged[payload] = offset, size, index
        self._heard_more.set()


async def owner_killed(owners: Owners) -> None:
    """SIGKILL; the next owner takes the log."""
    await owners.running.pop().kill()
    await owners.add()


async def owner_replaced(owners: Owners) -> None:
    """A second owner while the first is at work: it is fenced and ends."""
    first = owners.running.pop()
    await owners.add()
    await first.ended()


async def owner_woken_as_a_zombie(owners: Owners) -> None:
    """SIGSTOP; replaced; what it appends when it wakes counts for nothing."""
    zombie = owners.running.pop()
    zombie.pause()
    await owners.add()
    await owners.progress()
    zombie.resume()
    await zombie.ended()


async def broker_killed(owners: Owners) -> None:
    """SIGKILL to the broker with entries in flight; the owner settles what became of them (B5)."""
    await asyncio.to_thread(owners.cluster.kill)
    await asyncio.to_thread(owners.cluster.start)


async def broker_killed_and_owner_replaced(owners: Owners) -> None:
    """Both at once: the old owner's entries may land before the new one's fence, or never."""
    await asyncio.to_thread(owners.cluster.kill)
    first = owners.running.pop()
    await asyncio.to_thread(owners.cluster.start)
    await owners.add()
    await first.ended()


SCENARIOS: list[Callable[[Owners], Awaitable[None]]] = [
    owner_killed,
    owner_replaced,
    owner_woken_as_a_zombie,
    broker_killed,
    broker_killed_and_owner_replaced,
]


@pytest.fixture
async def owners(cluster: LocalCluster, topic_name: str, tmp_path: Path) -> AsyncIterator[Owners]:
    """One owner at work on a log of the test's own."""
    await asyncio.to_thread(cluster.start)
    admin = KafkaConnector(KafkaConfig(cluster.bootstrap)).admin()
    await admin.ensure_topics(
        [TopicSpec(topic_name, 1, {"max.message.bytes": str(ENTRY_BYTES_MAX)})]
    )
    await admin.close()
    made = Owners(cluster, topic_name, tmp_path, Random(SEED))
    await made.add()
    yield made
    for owner in made.running:
        if owner.running:
            await owner.kill()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda it: it.__name__)
async def test_every_acknowledged_record_lies_where_it_was_said(
    owners: Owners, scenario: Callable[[Owners], Awaitable[None]]
):
    """A4, B3: at that offset and index of an effective entry of that size, and nowhere else."""
    await owners.progress()
    for _ in range(ROUNDS):
        await scenario(owners)
        await owners.progress()
    await owners.running.pop().kill()
    found = effective_records(await whole_log(owners.cluster, owners.topic))
    for payload, place in owners.acknowledged.items():
        assert found.get(payload) == place, f"{payload} was acknowledged at {place}"
    places = [(offset, index) for offset, _, index in owners.acknowledged.values()]
    assert len(set(places)) == len(places)


async def whole_log(cluster: LocalCluster, topic: str) -> list[Record]:
    """Every entry from the log start to the end as it is now."""
    connector = KafkaConnector(KafkaConfig(cluster.bootstrap))
    admin, reader = connector.admin(), connector.reader("chaos-check", committed=False)
    data = TopicPartition(topic, 0)
    try:
        end = (await admin.end_offsets([data]))[data]
        await reader.assign({data: Offset(0)})
        entries: list[Record] = []
        while len(entries) < end:
            entries += [it for it in await reader.read() if isinstance(it, Record)]
        return entries
    finally:
        await reader.close()
        await admin.close()


def effective_records(entries: list[Record]) -> dict[str, Place]:
    """B2 said again: only what the fence in force allows, and no serial twice."""
    found: dict[str, Place] = {}
    epoch, serial = -1, 0
    for entry in entries:
        stamp = entry_stamp(entry.headers)
        if stamp is None:
            epoch, serial = entry.offset, 0
        elif stamp.epoch == epoch and stamp.serial > serial:
            serial = stamp.serial
            records = decode_value(entry.value)
            for index, record in enumerate(records):
                payload = record.decode(errors="replace")
                assert payload not in found, f"{payload} is effective twice"
                found[payload] = entry.offset, len(records), index
    return found
