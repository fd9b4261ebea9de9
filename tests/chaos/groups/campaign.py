"""Groups that go from cluster to cluster while applications write everywhere; judged all along.

*Invariants*: below what a group has committed lies nothing that it was never given; it reads no
more again than it was told before; copies come once and in order; after silence every cluster's
group stands at the first record that was not read anywhere.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random

from confluent_kafka.admin import AdminClient

from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.drivers.groups.report import Standpoint, describe_group, fail_over
from stilltide.pipeline.drivers.shared.dynamic_settings import write_setting
from stilltide.schemas.settings import subscription_setting
from stilltide.schemas.values import ClusterName, EndOffset, TopicPartition
from tests.chaos.groups.data import Writer, bounds, read_by_others, read_by_us, visible
from tests.chaos.groups.mesh import PARTITIONS, Mesh
from tests.chaos.points import APPLIED, REPLICATION_POINTS, Point

SILENCE_S = 60.0
ANSWER_S = 60.0


class Group:
    """A consumer group and all that it was given.

    Args:
        name: of the group.
        ours: whether its members are of `Subscription`.
        at: the cluster that it reads on.
        share: how much of what is there it reads each time, at most.
    """

    def __init__(self, name: str, at: str, *, ours: bool, share: float = 1.0) -> None:
        self.name, self.at, self.ours, self.share = name, at, ours, share
        self.read: set[bytes] = set()
        self.again = 0


class Campaign:
    """What happens on a mesh, from a seed."""

    def __init__(self, mesh: Mesh, random: Random) -> None:
        self.mesh, self.random = mesh, random
        self.partitions = [TopicPartition(mesh.topic, it) for it in range(PARTITIONS)]
        self.writers = {
            name: Writer(name, mesh.brokers[name].bootstrap, self.partitions) for name in mesh.names
        }
        first, tag = mesh.names[0], mesh.topic
        self.groups = [
            Group(f"{tag}-ours", first, ours=True),
            Group(f"{tag}-others", first, ours=False),
            Group(f"{tag}-lagging", first, ours=False, share=0.1),
            Group(f"{tag}-idle", first, ours=True, share=0.0),
        ]
        self.reading = self.groups[:2]
        self.away: set[str] = set()
        self._began = time.monotonic()

    @property
    def here(self) -> list[str]:
        """Clusters that are not away."""
        return [name for name in self.mesh.names if name not in self.away]

    async def begin(self):
        """Some records everywhere, and every group has read a few of them."""
        for group in self.groups:
            await self.enable(group, value=True)
        for name, writer in self.writers.items():  # one by one: topics with records are not linked
            for data in self.partitions:
                writer.write(data, 1)
            await self.copied(name)
        self.write(200)
        await asyncio.to_thread(self.flush)
        for group in self.groups:
            await self.consume(group, 0.2)

    async def enable(self, group: Group, *, value: bool):
        """Has it replicated, or not."""
        setting = subscription_setting(self.mesh.topic, group.name)
        for connector in self.mesh.connectors.values():
            await write_setting(connector, setting, value, at_ms=round(time.time() * 1000))

    def write(self, most: int):
        """So many records at most to every partition of every cluster, away or not."""
        for writer in self.writers.values():
            for data in self.partitions:
                writer.write(data, self.random.randrange(most + 1))

    async def write_aborted(self):
        """Some that nobody must see, somewhere."""
        writer = self.writers[self.random.choice(self.here)]
        await asyncio.to_thread(writer.write_aborted, self.random.choice(self.partitions), 3)

    def flush(self):
        """Blocks until all is written; no cluster may be away."""
        for writer in self.writers.values():
            writer.flush()

    def written(self) -> set[bytes]:
        """Everywhere."""
        return {
            value
            for writer in self.writers.values()
            for values in writer.values.values()
            for value in values
        }

    async def committed(self, name: str, group: Group) -> dict[TopicPartition, Committed]:
        """Where a group stands on a cluster."""
        admin = self.mesh.connector(name).group_admin()
        try:
            return (await admin.committed([group.name], self.partitions))[group.name]
        finally:
            await admin.close()

    async def consume(self, group: Group, share: float | None = None) -> Counter[TopicPartition]:
        """Reads a share of what there is where it is; how much of that was not new.

        Nothing below where it stands then was never given to it.
        """
        share = self.random.random() * group.share if share is None else share
        connector = self.mesh.connector(group.at)
        stable = await bounds(connector, self.partitions)
        committed = await self.committed(group.at, group)
        until: dict[TopicPartition, EndOffset] = {}
        for data, end in stable.items():
            begin = committed[data].offset if data in committed else 0
            until[data] = EndOffset(begin + round(max(0, end - begin) * share))
        if group.ours:
            found = await read_by_us(connector, group.name, until)
        else:
            address = self.mesh.brokers[group.at].bootstrap
            found = await asyncio.to_thread(read_by_others, address, group.name, until)
        again = self._again(group, found)
        group.read.update(found)
        await self._nothing_is_skipped(group)
        return again

    @asynccontextmanager
    async def stirred(self) -> AsyncIterator[None]:
        """Meanwhile applications write, and groups read where they are."""
        over = asyncio.Event()

        async def stir() -> None:
            while not over.is_set():
                self.write(50)
                await self.consume(self.random.choice(self.reading), 0.3)

        stirring = asyncio.create_task(stir())
        try:
            yield
        finally:
            over.set()
            await stirring

    def any_point(self, name: str) -> Point:
        """One that comes on a cluster while groups read; where all of them are, none is moved."""
        moved = any(group.at != name for group in self.reading)
        return self.random.choice([one for one in REPLICATION_POINTS if moved or one != APPLIED])

    async def point(self, name: str, point: Point):
        """Applications write until the protocol reaches a point on a cluster."""
        met = asyncio.create_task(self.mesh.point(name, point))
        while not met.done():
            self.write(20)
            await asyncio.wait([met], timeout=0.3)
        await met

    async def fail_over_at_once(self, group: Group):
        """Goes to another cluster, and waits for nothing."""
        group.at = self.random.choice([one for one in self.here if one != group.at])
        await self.read_within(group, await self.said(group))

    async def read_within(self, group: Group, said: Mapping[TopicPartition, int]):
        """Reads where it is; no more again than that."""
        again = await self.consume(group)
        for data, count in again.items():
            assert count <= said[data], f"{group.name} on {group.at}: {again}, said were {said}"
        group.again += again.total()
        self.say(f"{group.name} on {group.at}: {again.total()} again, {sum(said.values())} said")

    async def said(self, group: Group, name: str | None = None) -> dict[TopicPartition, int]:
        """How much it would read again there, by default where it is, as an operator is told."""
        return {
            one.data: one.read_again if group.ours else one.read_again_foreign
            for one in await self.described(group)
            if one.cluster == (name or group.at)
        }

    async def described(self, group: Group) -> list[Standpoint]:
        """By all clusters that are not away."""
        connectors = {name: it for name, it in self.mesh.connectors.items() if name in self.here}
        return await describe_group(connectors, self.mesh.topic, group.name, timeout_s=ANSWER_S)

    async def fail_over_in_order(self, group: Group, target: str):
        """Waits until everything is carried over; then nothing of ours is read again."""
        done = await fail_over(
            self.mesh.connectors,
            self.mesh.topic,
            group.name,
            ClusterName(target),
            dry_run=False,
            timeout_s=ANSWER_S,
        )
        assert done.complete, done
        group.at = target
        said = {
            one.data: one.read_again if group.ours else one.read_again_foreign
            for one in done.target
        }
        assert not group.ours or not any(said.values()), done
        await self.read_within(group, said)

    async def told_away(self, group: Group) -> list[str]:
        """What an operator is told to be away who would have it go on where it is."""
        connectors, at = self.mesh.connectors, ClusterName(group.at)
        done = await fail_over(
            connectors, self.mesh.topic, group.name, at, dry_run=True, timeout_s=ANSWER_S
        )
        assert not done.complete
        return list(done.away)

    async def forget(self, group: Group, name: str):
        """A cluster forgets the group, once it knows it; it has no members there."""
        async with asyncio.timeout(SILENCE_S):
            while not await self.committed(name, group):
                pass
        admin = AdminClient({"bootstrap.servers": self.mesh.brokers[name].bootstrap})
        deleted = admin.delete_consumer_groups([group.name])[group.name]
        await asyncio.to_thread(deleted.result, ANSWER_S)

    async def settle(self):
        """Silence: copies and positions are as they must be, soon."""
        await asyncio.to_thread(self.flush)
        began = time.monotonic()
        for name in self.mesh.names:
            await self.copied(name)
        copied = time.monotonic()
        problems = ["nobody looked"]
        while problems:
            problems = [one for group in self.groups for one in await self._positions(group)]
            # A look may take long on a busy machine; what it finds right is right.
            assert not problems or time.monotonic() - copied < SILENCE_S, problems
        self.say(
            f"copied after {copied - began:.1f} s, exact {time.monotonic() - copied:.1f} s later"
        )

    async def end(self):
        """Each group reads the rest, and has been given everything."""
        for group in self.groups:
            await self.consume(group, 1.0)
            missing = self.written() - group.read
            assert not missing, (
                f"{group.name} was never given {len(missing)}: {sorted(missing)[:9]}"
            )
            assert group.read <= self.written()
        for source, writer in self.writers.items():
            for name in self.mesh.names:
                assert await self._copies(name, source) == writer.values, f"{source} on {name}"
        total = len(self.written())
        for group in self.groups:
            self.say(f"{group.name}: {group.again} of {total} read again")

    def say(self, what: str):
        """A figure, shown by `pytest -s`."""
        print(f"  {time.monotonic() - self._began:.1f} {what}")  # noqa: T201

    def _again(self, group: Group, found: Counter[bytes]) -> Counter[TopicPartition]:
        again: Counter[TopicPartition] = Counter()
        for value, count in found.items():
            partition = int(value.split(b"-")[1])
            again[self.partitions[partition]] += count - (value not in group.read)
        return again

    async def copied(self, source: str, *targets: str):
        """All that a cluster was given up to now is on these, or on all; once and in order."""
        writer = self.writers[source]
        await asyncio.to_thread(writer.flush)
        wanted = {data: list(values) for data, values in writer.values.items()}
        for name in targets or self.mesh.names:
            copies: dict[TopicPartition, list[bytes]] = {}
            deadline = time.monotonic() + SILENCE_S
            while sum(map(len, copies.values())) < sum(map(len, wanted.values())):
                copies = await self._copies(name, source)
                if time.monotonic() > deadline:
                    break
            for data, values in wanted.items():
                assert copies[data][: len(values)] == values, f"{data} of {source} on {name}"

    async def _nothing_is_skipped(self, group: Group) -> None:
        ends = {
            data: EndOffset(one.offset)
            for data, one in (await self.committed(group.at, group)).items()
        }
        for data, records in (await visible(self.mesh.connector(group.at), ends)).items():
            skipped = [it.value for it in records if it.value not in group.read]
            assert not skipped, f"{group.name} on {group.at} skipped in {data}: {skipped[:9]}"

    async def _copies(self, name: str, source: str) -> dict[TopicPartition, list[bytes]]:
        """What a cluster has of another one, or of its own."""
        connector = self.mesh.connector(name)
        logs = await visible(connector, await bounds(connector, self.partitions))
        values = {data: [it.value or b"" for it in logs[data]] for data in self.partitions}
        begin = f"{source}-".encode()
        return {
            data: [it for it in found if it.startswith(begin)] for data, found in values.items()
        }

    async def _positions(self, group: Group) -> list[str]:
        """Where the group does not stand exactly where it must."""
        problems: list[str] = []
        for name in self.mesh.names:
            connector = self.mesh.connector(name)
            committed = await self.committed(name, group)
            for data, records in (
                await visible(connector, await bounds(connector, self.partitions))
            ).items():
                at = committed[data].offset if data in committed else 0
                unread = next((it.offset for it in records if it.value not in group.read), None)
                below = [it.offset for it in records if unread is None or it.offset < unread]
                if (below and at <= below[-1]) or (unread is not None and at > unread):
                    problems.append(f"{group.name} on {name} at {at} of {data}, unread {unread}")
        return problems + [
            f"{group.name} on {one.cluster} reads {one.read_again} again"
            for one in await self.described(group)
            if one.read_again and group.ours
        ]
