"""Clusters in memory with controllers and links.

*Source*: rules I.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.clock import WrongClock
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.ports.connector import ClusterConnector
from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.core.groups.controller import SyncMode
from stilltide.pipeline.core.groups.pace import ControllerLimits
from stilltide.pipeline.core.groups.position_snapshots import PositionSnapshotLimits
from stilltide.pipeline.core.links.link import LinkLimits
from stilltide.pipeline.drivers.groups.controller import GroupsOwnerDeps, Replicated
from stilltide.pipeline.drivers.groups.owner import GroupsOwner
from stilltide.pipeline.drivers.links.link import LinkRun, LinkRunOptions
from stilltide.pipeline.drivers.links.topics import TopicChoice
from stilltide.pipeline.drivers.service.hindrances import Hindrances
from stilltide.pipeline.drivers.service.own.replies import Replies
from stilltide.pipeline.drivers.service.own.watched_writer import WatchedWriter
from stilltide.pipeline.drivers.worker.placement import CONTROLLERS
from stilltide.pipeline.drivers.worker.runtime import Runtime
from stilltide.pipeline.metrics.groups import GroupMetrics
from stilltide.schemas.replication import signals
from stilltide.schemas.replication.signals import (
    Applied,
    SignalKey,
    SignalValue,
    UpdateKey,
)
from stilltide.schemas.retry import Retry
from stilltide.schemas.topics import REPLICATION_MARKERS, TopicSpec, system_topics
from stilltide.schemas.values import ClusterName, Offset, TopicPartition

WAIT_S = 180.0
DATA = TopicPartition("orders", 0)
MARKERS = TopicPartition(REPLICATION_MARKERS, 0)
LINKS = LinkRunOptions(
    choice=TopicChoice(merge=True),
    partition_count=1,
    look_interval_s=0.01,
    retry=Retry(0.01),
    limits=LinkLimits(linger_ms=5, records_max=100, position_interval_ms=20),
)


async def cancelled(task: asyncio.Task[None]):
    """Cancels a task and waits for its end."""
    task.cancel()
    await asyncio.wait([task])


class Site:
    """One cluster and its controller."""

    def __init__(self, name: str, others: list[str], mode: SyncMode, queue: int) -> None:
        self.mode = mode
        self.name = name
        self.broker = MemoryBroker(f"id-{name}")
        self.clock = WrongClock()
        self.connector = MemoryConnector(self.broker, clock=self.clock, writer_records_max=queue)
        self.others = others
        self.named: set[tuple[str, str, bool]] = set()
        self.runtime: Runtime[int, GroupsOwner] | None = None
        self.driver: GroupsOwner | None = None
        self.hindrances = Hindrances()
        self.metrics = GroupMetrics(name, lambda: self.driver.stats() if self.driver else {})
        for spec in system_topics(coordinators=1, partitions=1):
            self.broker.create_topic(spec)
        self.broker.create_topic(TopicSpec(DATA.topic, 1))

    async def start(self):
        """Starts a controller of the cluster."""
        deps = GroupsOwnerDeps(
            connector=self.connector,
            admin=self.connector.admin(),
            writer=WatchedWriter(self.connector.writer("controller"), self.hindrances),
            replies=Replies(self.connector.writer("replies")),
            here=ClusterName(self.name),
            remotes=[ClusterName(one) for one in self.others],
            replicated=Replicated(lambda: self.named, self.clock),
            first=self._first,
            partition_count=1,
            mode=self.mode,
            snapshot_limits=PositionSnapshotLimits(interval_ms=50),
            controller_limits=ControllerLimits(poll_interval_ms=10, publish_interval_ms=10),
            snapshot_taken=self.metrics.snapshot_taken,
        )
        driver = self.driver = GroupsOwner(0, deps)
        chance = deps.connector.chance
        self.runtime = Runtime(CONTROLLERS, lambda _: driver, chance=chance)
        await self.runtime.assign([0])

    async def kill(self):
        """Cancels the controller at any point of its work."""
        assert self.runtime is not None
        await self.runtime.stop()

    def write(self, *values: bytes):
        """Writes local records."""
        for value in values:
            self.broker.append(DATA, None, value, None)

    def commit(self, group: str, offset: int, metadata: str = ""):
        """Commits for the group, as any consumer does."""
        self.broker.group(group).committed[DATA] = Committed(Offset(offset), metadata)

    def committed(self, group: str) -> int | None:
        """The group's committed offset."""
        found = self.broker.group(group).committed.get(DATA)
        return None if found is None else found.offset

    def markers(self) -> list[tuple[SignalKey, SignalValue | None]]:
        """All signals, in order."""
        found = self.broker.records(MARKERS)
        return [signals.decode(one.key, one.value) for one in found]

    def updates(self) -> list[tuple[SignalKey, SignalValue | None]]:
        """Updates of all clusters that this cluster has."""
        return [it for it in self.markers() if isinstance(it[0], UpdateKey)]

    def applied(self) -> list[Applied]:
        """What this cluster has noted about its groups, in order."""
        return [value for _, value in self.markers() if isinstance(value, Applied)]

    def values(self) -> list[bytes]:
        """The values that readers of committed data see."""
        return self.visible(0, self.stable_end())

    def visible(self, first: int, end: int) -> list[bytes]:
        """The visible values in a range of offsets below the last stable offset."""
        log = self.broker.log(DATA)
        assert log is not None
        assert end <= log.stable_end
        return [
            one.value or b""
            for one in log.records
            if first <= one.offset < end and one.offset not in log.aborted
        ]

    def stable_end(self) -> int:
        """The last stable offset."""
        log = self.broker.log(DATA)
        assert log is not None
        return log.stable_end

    def end(self) -> int:
        """The end offset of the log."""
        log = self.broker.log(DATA)
        assert log is not None
        return log.end

    async def _first(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        logs = {data: self.broker.log(data) for data in partitions}
        return {data: log.start for data, log in logs.items() if log is not None}


class Sites:
    """All clusters, with a link in each direction between any two."""

    def __init__(self, names: str, mode: SyncMode, queue: int) -> None:
        self.sites = {
            name: Site(name, [one for one in names if one != name], mode, queue) for name in names
        }
        self.links: dict[tuple[str, str], LinkRun] = {}
        self.linking: dict[tuple[str, str], asyncio.Task[None]] = {}

    @property
    def connectors(self) -> dict[ClusterName, ClusterConnector]:
        """By name."""
        return {ClusterName(name): site.connector for name, site in self.sites.items()}

    def __getitem__(self, name: str) -> Site:
        """By name."""
        return self.sites[name]

    def link(self, source: str, target: str):
        """Starts a link."""
        ends = [(ClusterName(it), self.sites[it].connector) for it in (source, target)]
        link = LinkRun(ends[0], ends[1], self.sites[target].clock, LINKS)
        self.links[source, target] = link
        self.linking[source, target] = asyncio.create_task(link.run())

    def link_all(self):
        """Starts every link."""
        for source in self.sites:
            for target in self.sites:
                if source != target:
                    self.link(source, target)

    async def unlink(self, source: str, target: str):
        """Cancels a link at any point of its work."""
        await cancelled(self.linking.pop((source, target)))

    async def until(self, reached: Callable[[], bool]):
        """Returns when `reached()` is true."""
        async with asyncio.timeout(WAIT_S):
            while not reached():
                for task in self.linking.values():
                    if task.done() and not task.cancelled():
                        task.result()
                for site in self.sites.values():
                    for end in site.runtime.ends.values() if site.runtime else ():
                        raise end.error
                await asyncio.sleep(0)


@asynccontextmanager
async def replicated(
    names: str, *groups: str, mode: SyncMode = SyncMode.EXACT, queue: int = 100_000
) -> AsyncIterator[Sites]:
    """Sites whose controllers replicate these groups, with links between any two.

    A writer refuses more than `queue` records that wait.
    """
    sites = Sites(names, mode, queue)
    for site in sites.sites.values():
        site.named = {(DATA.topic, group, True) for group in groups}
        await site.start()
    sites.link_all()
    try:
        yield sites
    finally:
        for source, target in list(sites.linking):
            await sites.unlink(source, target)
        for site in sites.sites.values():
            await site.kill()
