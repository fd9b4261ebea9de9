"""Reads the snapshots and the index of a cluster from their topics.

*Source*: docs/protocols E2, E8, F3.
"""

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.core.status.values import IndexStatus, SnapshotStatus
from stilltide.pipeline.drivers.native.evidence import indexed_partitions
from stilltide.pipeline.drivers.shared.named_partitions import require_topics
from stilltide.pipeline.drivers.snapshots.listing import ListedSnapshot, listed_snapshots
from stilltide.pipeline.drivers.snapshots.logs import SnapshotLogs
from stilltide.schemas.topics import TXN_SNAPSHOTS


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
            found = await self._admin.describe_topics([TXN_SNAPSHOTS])
            require_topics([TXN_SNAPSHOTS], found)
            numbers = range(found[TXN_SNAPSHOTS].partition_count)
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
            one.data,
            one.coverage.covered_to,
            None
            if one.last_stable_offset is None
            else max(0, one.last_stable_offset - one.coverage.covered_to),
            one.coverage.range_count,
            one.problem,
        )
        for one in await indexed_partitions(connector, admin)
    )


def _snapshot(one: ListedSnapshot) -> SnapshotStatus:
    return SnapshotStatus(
        one.data,
        one.end.max_read_position if one.end else None,
        one.behind,
        len(one.parts),
        one.bytes,
        one.aborted_count,
        one.record.timestamp_ms if one.record else None,
        one.problem or "",
    )
