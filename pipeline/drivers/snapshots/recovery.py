"""Recovers the state of a snapshot writer, after it has fenced the writer before it.

*Source*: docs/protocols E4.
*Invariants*: txn-snapshots is read to its last stable offset after the fence, and the markers' log
start is read after that; a gap is an error only if no other writer has written meanwhile.
"""

import asyncio
from collections.abc import Callable

from stilltide.connectors.errors import FencedError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.records import Record
from stilltide.pipeline.core.snapshots.recovery import SnapshotTable
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits, SnapshotWriter
from stilltide.pipeline.drivers.shared.feed import TopicFeed
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.system_topics import missing_topic
from stilltide.pipeline.errors import MarkersTrimmedError, SnapshotError
from stilltide.schemas.topics import TXN_MARKERS, TXN_SNAPSHOTS
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


async def marker_bounds(admin: LogAdmin, markers: TopicPartition) -> tuple[Offset, EndOffset]:
    """Start and end offset of a marker partition; raises `RetriableError`, `FatalError`."""
    starts = await admin.start_offsets([markers])
    ends = await admin.end_offsets([markers])
    if markers not in starts or markers not in ends:
        raise missing_topic(TXN_MARKERS)
    return starts[markers], ends[markers]


async def recovered_writer(
    connector: Connector,
    admin: LogAdmin,
    outages: OutageGuard,
    partition: int,
    *,
    nonce: bytes,
    limits: SnapshotLimits,
    now_ms: Callable[[], int],
) -> SnapshotWriter:
    """The machine of a writer that has fenced others; it needs the markers from its `position`.

    Raises:
        FencedError: another writer has written meanwhile.
        SnapshotError: a part is missing, or markers are missing that no snapshot has absorbed.
        DecodeError: a record cannot be decoded; names its place.
    """
    snapshots = TopicPartition(TXN_SNAPSHOTS, partition)
    markers = TopicPartition(TXN_MARKERS, partition)
    end = await outages.call(lambda: _stable_end(admin, snapshots))
    table = await _table(connector, admin, outages, snapshots)
    try:
        marker_start, marker_end = await outages.call(lambda: marker_bounds(admin, markers))
        machine = await asyncio.to_thread(  # a million aborted ids take a second
            SnapshotWriter,
            partition,
            table,
            marker_start,
            nonce=nonce,
            limits=limits,
            now_ms=now_ms(),
        )
        _check_reach(machine, partition, marker_end)
    except SnapshotError as error:
        # A writer that has fenced this one may have dropped parts and trimmed markers meanwhile.
        if await outages.call(lambda: _stable_end(admin, snapshots)) > end:
            raise FencedError("another snapshot writer has taken over", detail=str(error)) from None
        raise
    return machine


def _check_reach(machine: SnapshotWriter, partition: int, marker_end: EndOffset) -> None:
    """The log of markers reaches at least to the end of the markers that snapshots absorbed."""
    if machine.position > marker_end:
        raise MarkersTrimmedError(
            "the marker topic ends before the last marker that snapshots have absorbed",
            detail=f"it ends at {marker_end}, absorbed are markers below {machine.position}",
            hint="was txn-markers deleted and created again? delete txn-snapshots, too, only"
            " if no outcome of a transaction matters any more",
            topic=TXN_MARKERS,
            partition=partition,
            offset=marker_end,
        )


async def _stable_end(admin: LogAdmin, snapshots: TopicPartition) -> EndOffset:
    ends = await admin.end_offsets([snapshots], committed=True)
    if snapshots not in ends:
        raise missing_topic(TXN_SNAPSHOTS)
    return ends[snapshots]


async def _table(
    connector: Connector, admin: LogAdmin, outages: OutageGuard, snapshots: TopicPartition
) -> SnapshotTable:
    """The table of what is stored now."""
    table = SnapshotTable(snapshots.partition)

    def take(record: Record) -> None:
        table.record_read(record.offset, record.key, record.value)

    name = f"snapshots-{snapshots.partition}"
    await TopicFeed(connector, admin, name, [snapshots], take, outages=outages).once()
    return table
