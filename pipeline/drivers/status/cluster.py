"""Looks at one cluster: whether it is there, and everything that is read on it alone.

*Invariants*: whether the cluster is there is known within `AWAY_S`; nothing else is asked of a
cluster that is away.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from stilltide.connectors.clock import Clock
from stilltide.connectors.ports.admin import LogAdmin, NativeTransactions
from stilltide.connectors.ports.connector import (
    ClusterConnector,
    Connector,
    GroupAdmin,
    GroupConnector,
)
from stilltide.pipeline.core.status.values import (
    Aged,
    BrokersStatus,
    ClusterSeen,
    IndexStatus,
    ReaderHold,
    SnapshotStatus,
    WorkerStatus,
)
from stilltide.pipeline.drivers.groups.outside import groups_outside
from stilltide.pipeline.drivers.native.evidence import indexed_partitions
from stilltide.pipeline.drivers.shared.named_partitions import require_topics
from stilltide.pipeline.drivers.snapshots.listing import ListedSnapshot, listed_snapshots
from stilltide.pipeline.drivers.snapshots.logs import SnapshotLogs
from stilltide.pipeline.drivers.status.holds import CoordinatedHolds, native_holds
from stilltide.pipeline.drivers.status.links import LinksTail
from stilltide.pipeline.drivers.status.part import Part
from stilltide.pipeline.drivers.status.transactions import (
    CoordinatorsLook,
    OwnersRead,
)
from stilltide.schemas.service.envelopes import worker_version
from stilltide.schemas.topics import TXN_REQUESTS, TXN_SNAPSHOTS
from stilltide.schemas.values import ClusterName


class BrokersLook:
    """The brokers of a cluster.

    Args:
        admin: admin client of the cluster, with short time-outs; the look closes it.
        rest_s: seconds between two questions for the brokers that the cluster knows.
    """

    def __init__(self, admin: LogAdmin, rest_s: float) -> None:
        self._admin = admin
        self._rest_s = rest_s
        self._registered = 0
        self._due_s = 0.0

    async def read(self) -> BrokersStatus:
        """The brokers now.

        Raises:
            ConnectorError: no broker answers.
        """
        loop = asyncio.get_running_loop()
        if loop.time() < self._due_s:
            figures = await self._admin.broker_figures(up_only=True)
        else:
            figures = await self._admin.broker_figures()
            self._registered, self._due_s = figures.registered, loop.time() + self._rest_s
        return BrokersStatus(figures.brokers, self._registered)

    async def close(self) -> None:
        """Releases the admin client."""
        await self._admin.close()


class SnapshotsLook:
    """The snapshots of a cluster; each call of `read` reads on where the last one ended.

    Args:
        connector: the cluster.
        admin: admin client of the same cluster; the caller closes it.
    """

    def __init__(self, connector: Connector, admin: LogAdmin) -> None:
        self._connector = connector
        self._admin = admin
        self._logs: SnapshotLogs | None = None

    async def read(self) -> tuple[SnapshotStatus, ...]:
        """Every snapshot, by topic and partition; raises as `listed_snapshots`."""
        if self._logs is None:
            described = await self._admin.describe_topics([TXN_SNAPSHOTS])
            require_topics([TXN_SNAPSHOTS], described)
            numbers = range(described[TXN_SNAPSHOTS].partition_count)
            self._logs = SnapshotLogs(self._connector, self._admin, numbers)
        await self._logs.read_on()
        return tuple(map(_snapshot, await listed_snapshots(self._admin, self._logs)))

    async def close(self) -> None:
        """Releases the reader."""
        logs, self._logs = self._logs, None
        if logs is not None:
            await logs.close()


async def read_index(connector: Connector, admin: LogAdmin) -> tuple[IndexStatus, ...]:
    """The index of every data partition, by topic and number; raises as `indexed_partitions`."""
    return tuple(
        IndexStatus(
            partition.data,
            partition.coverage.covered_to,
            None
            if partition.last_stable_offset is None
            else max(0, partition.last_stable_offset - partition.coverage.covered_to),
            partition.coverage.range_count,
            partition.problem,
        )
        for partition in await indexed_partitions(connector, admin)
    )


def _snapshot(listed: ListedSnapshot) -> SnapshotStatus:
    return SnapshotStatus(
        listed.data,
        listed.end.max_read_position if listed.end else None,
        listed.behind,
        len(listed.parts),
        listed.bytes,
        listed.aborted_count,
        listed.record.timestamp_ms if listed.record else None,
        listed.problem or "",
    )


T = TypeVar("T")

AWAY_S = 2.0
"""Seconds without an answer after which a cluster counts as away."""

REST_S = 5.0
"""Seconds between two looks at what changes slowly, or costs a walk over all topics."""


@dataclass(frozen=True)
class StatusTarget:
    """A cluster to look at.

    Attributes:
        name: its name in the settings.
        address: its address in the settings.
        connector: the cluster.
        quick: the same cluster, with a request time-out of at most `AWAY_S`: asked whether the
            cluster is there.
        native: the brokers' view of their transactions, which `ClusterLook` closes; None: native
            transactions are left out.
    """

    name: ClusterName
    address: str
    connector: ClusterConnector
    quick: GroupConnector
    native: NativeTransactions | None = None


class _Sources(NamedTuple):
    """What keeps something between two reads of a cluster."""

    owners: CoordinatorsLook
    holding: CoordinatedHolds
    stored: SnapshotsLook
    groups: GroupAdmin


class ClusterLook:
    """The parts of one cluster.

    Args:
        target: the cluster.
        clock: tells when something was read.
        rest_s: seconds between two looks at what changes slowly.

    Attributes:
        admin: admin client of the cluster.
        links: what links have told the cluster.
    """

    def __init__(self, target: StatusTarget, clock: Clock, rest_s: float = REST_S) -> None:
        self.target = target
        self._clock = clock
        connector = target.connector
        self.admin: LogAdmin = connector.admin()
        self.links = LinksTail(target.name, connector, self.admin, clock)
        self._brokers = BrokersLook(target.quick.admin(), rest_s)
        self._sources = _Sources(
            CoordinatorsLook(connector, self.admin),
            CoordinatedHolds(connector, self.admin),
            SnapshotsLook(connector, self.admin),
            connector.group_admin(),
        )
        self.brokers = Part("brokers", self._brokers.read, clock, timeout_s=AWAY_S)
        self._workers = Part("workers", self._read_workers, clock, rest_s=rest_s)
        self._coordinators = Part("coordinators", self._read_owners, clock, rest_s=2 * rest_s)
        self._transactions = Part("transactions", self._sources.owners.transactions, clock)
        self._holds = Part("holds", self._read_holds, clock)
        self._native = Part("native", self._read_native, clock, rest_s=rest_s)
        self._snapshots = Part("snapshots", self._sources.stored.read, clock, rest_s=rest_s)
        self._index = Part(
            "index", lambda: read_index(connector, self.admin), clock, rest_s=2 * rest_s
        )
        self._outside = Part(
            "outside",
            lambda: groups_outside(self._sources.groups, self.admin),
            clock,
            rest_s=12 * rest_s,
        )

    @property
    def away(self) -> bool:
        """Whether the cluster did not answer the newest question."""
        return bool(self.brokers.aged.problem)

    async def renew(self) -> None:
        """Reads everything again, except the brokers, which must be there."""
        parts = (self._native, self._snapshots, self._index, self._outside)
        await asyncio.gather(self._renew_owners(), *(it.renew() for it in parts))

    def seen(self) -> ClusterSeen:
        """The cluster as it was read last."""
        owners = self._coordinators.aged
        return ClusterSeen(
            self.target.name,
            self.target.address,
            self.brokers.aged,
            self._workers.aged,
            owners.of(lambda it: it.coordinators),
            owners.of(lambda it: it.ended),
            _of_both(self._transactions.aged.of(lambda it: it.transactions), owners),
            _joined(self._holds.aged, self._native.aged),
            self._snapshots.aged,
            self._index.aged,
            self._outside.aged,
            owners.of(lambda it: it.compacted),
        )

    async def close(self) -> None:
        """Ends what is under way, and releases connections."""
        parts: list[Part[Any]] = [
            self.brokers,
            self._workers,
            self._coordinators,
            self._transactions,
            self._holds,
            self._native,
            self._snapshots,
            self._index,
            self._outside,
        ]
        await asyncio.gather(*(it.close() for it in parts))
        closing = [
            self._sources.owners,
            self._sources.stored,
            self.links,
            self._sources.groups,
            self._brokers,
            self.admin,
        ]
        await asyncio.gather(*(it.close() for it in closing))
        if self.target.native is not None:
            await self.target.native.close()

    async def _renew_owners(self) -> None:
        """Each step needs the result of the one before."""
        await self._workers.renew()
        await self._coordinators.renew()
        if self._coordinators.aged.value is not None:
            await self._transactions.renew()
            await self._holds.renew()

    async def _read_workers(self) -> tuple[WorkerStatus, ...]:
        group = self.target.connector.own_id(f"workers-{self.target.name}")
        return tuple(
            WorkerStatus(
                member.member_id,
                member.host,
                worker_version(member.client_id),
                tuple(sorted(of.partition for of in member.partitions if of.topic == TXN_REQUESTS)),
            )
            for member in await self._sources.groups.described_members(group)
        )

    async def _read_owners(self) -> OwnersRead:
        return await self._sources.owners.owners(worker_runs=bool(self._workers.aged.value))

    async def _read_holds(self) -> tuple[ReaderHold, ...]:
        read = self._transactions.aged.value
        undecided = read.undecided if read is not None else ()
        return await self._sources.holding.read(undecided, self._clock.now_ms())

    async def _read_native(self) -> tuple[ReaderHold, ...]:
        if self.target.native is None:
            return ()
        return tuple(await native_holds(self.target.native, self.admin, self._clock.now_ms()))


def _of_both(part: Aged[T], owners: Aged[OwnersRead]) -> Aged[T]:
    """A part that is not read while `owners` cannot be; then the problem is that of `owners`."""
    if not owners.problem:
        return part
    return Aged(part.value, part.read_ms, owners.problem, owners.hint)


def _joined(
    coordinated: Aged[tuple[ReaderHold, ...]], native: Aged[tuple[ReaderHold, ...]]
) -> Aged[tuple[ReaderHold, ...]]:
    """Both kinds of transactions, the longest hold first, with the older of both times."""
    if coordinated.value is None or coordinated.read_ms is None:
        return coordinated
    holds: Sequence[ReaderHold] = (*coordinated.value, *(native.value or ()))
    read_ms = min(coordinated.read_ms, native.read_ms or coordinated.read_ms)
    return Aged(
        tuple(sorted(holds, key=lambda it: it.since_ms or 0)),
        read_ms,
        coordinated.problem or native.problem,
        coordinated.hint or native.hint,
    )
