"""Runs a replication world step by step, and keeps a transcript.

A line of the transcript names a change on a cluster: `a| ask 1` is a request of round 1 written on
`a`, `a>b| ask 1` the same request, copied by the link from `a` to `b`.
"""

from collections.abc import Iterator

from stilltide.schemas.replication.signals import (
    AppliedKey,
    PositionSnapshotRequest,
    PositionSnapshotResponse,
    PositionSnapshots,
    ResponseKey,
    SignalKey,
    SignalValue,
    Update,
)
from stilltide.schemas.values import ClusterName
from tests.support.groups.system import ControllerActor, System
from tests.support.groups.world import Cluster, World
from tests.support.links.link import LinkActor


class Theatre:
    """Clusters with connected links, one data partition, and a transcript.

    Args:
        names: names of the clusters, a letter each.
        about: the cluster whose attempts at snapshots are shown.
        groups: names of the replicated groups.
    """

    def __init__(self, names: str, *, about: str = "a", groups: str = "g") -> None:
        self.world = World(names)
        self.system = System(self.world, list(groups))
        self.data = self.world.partitions[0]
        self.about = ClusterName(about)
        self.lines: list[str] = []
        for link in self.system.links:
            while link.step(0, 1000):
                pass

    def cluster(self, name: str) -> Cluster:
        """The cluster with this name."""
        return next(one for one in self.world.clusters if one.name == name)

    def write(self, name: str, count: int):
        """Writes local records."""
        log = self.cluster(name).data[self.data]
        for _ in range(count):
            self.world.write(self.cluster(name), self.data)
        self.lines.append(f"{name}| log to {log.end}")

    def read(self, name: str, group: str, count: int, *, ours: bool = False):
        """Has a member join, read, commit and leave."""
        cluster = self.cluster(name)
        self.world.start(group, cluster, ours=ours)
        self.world.poll(group, cluster, self.data, count)
        self.world.stop(group, cluster, commit=True)
        self.lines.append(f"{name}| {group} at {cluster.committed[group, self.data][0]}")

    def link(self, source: str, target: str):
        """Runs a link until it has nothing to do, and its transaction is committed."""
        for actor in self.system.links:
            if (actor.source.name, actor.target.name) == (source, target):
                self._play(actor, f"{source}>{target}", actor.target)

    def controller(self, name: str):
        """Runs a controller until it has nothing to do."""
        for actor in self.system.controllers:
            if actor.cluster.name == name:
                self._play(actor, name, actor.cluster)

    def all(self):
        """Runs controllers and links in turn, until nothing is written any more."""
        before: object = None
        while before != self.system.written():
            before = self.system.written()
            for link in self.system.links:
                self.link(link.source.name, link.target.name)
            for cluster in self.world.clusters:
                self.controller(cluster.name)

    def transcript(self) -> list[str]:
        """The lines since the last call."""
        lines, self.lines = self.lines, []
        return lines

    def _play(self, actor: LinkActor | ControllerActor, who: str, where: Cluster) -> None:
        log = where.data[self.data]
        end, markers, groups = log.end, where.markers.end, dict(where.committed)
        for _ in range(2):  # the second time its deadlines have come
            self.world.now_ms += 200
            while actor.step(0, 1000):
                pass
        if log.end > end:
            self.lines.append(f"{who}| log to {log.end}")
        for _, (key, value) in where.markers.visible(markers, where.markers.end):
            self.lines += [f"{who}| {line}" for line in self._described(key, value)]
        for (group, _), (offset, _) in where.committed.items():
            if groups.get((group, self.data), (None, None))[0] != offset:
                self.lines.append(f"{who}| {group} moved to {offset}")

    def _described(self, key: SignalKey, value: SignalValue) -> Iterator[str]:
        asker = key.target if isinstance(key, ResponseKey) else key.source
        if isinstance(value, PositionSnapshotRequest) and asker == self.about:
            yield f"ask {value.round}"
        elif isinstance(value, PositionSnapshotResponse) and asker == self.about:
            yield f"answer {value.round}: decided to {value.decided_end}"
        elif isinstance(value, PositionSnapshots) and asker == self.about:
            newest = value.snapshots[-1]
            remotes = [f"{one.incarnation.cluster} to {one.end_offset}" for one in newest.positions]
            yield f"snapshot at {newest.local_end}: {', '.join(remotes)}"
        elif isinstance(value, Update) and not isinstance(key, AppliedKey):
            claimed = [
                f"{one.cluster} {' '.join(f'[{first}, {end})' for first, end in held)}"
                for one, held in sorted(value.claims.items())
            ]
            yield f"has read {', '.join(claimed)}"
