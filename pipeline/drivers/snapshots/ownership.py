"""One ownership of one partition of txn-snapshots: fence, recover, tail the markers, write.

*Source*: docs/protocols E1-E5.
*Invariants*: a snapshot holds only what this ownership has read since its fence; a write that
failed or has an unknown result ends the ownership, since the machine counts it as durable.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVarTuple

from stilltide.connectors.clock import Clock
from stilltide.connectors.errors import FencedError, OffsetOutOfRangeError, RetriableError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.records import EndReached, Fetching, NewRecord, Record
from stilltide.connectors.ports.writers import TransactionalWriter
from stilltide.pipeline.core.snapshots.buffer import DataPosition
from stilltide.pipeline.core.snapshots.effects import (
    AskBarriers,
    FindYounger,
    ReadMarkerEnd,
    ReadPositions,
    SnapshotsTaken,
    TrimMarkers,
    WriterEffect,
    WriteSnapshots,
)
from stilltide.pipeline.core.snapshots.recovery import SnapshotTable
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits, SnapshotWriter
from stilltide.pipeline.drivers.service.hindrances import Hindrances
from stilltide.pipeline.drivers.service.replies import Replies
from stilltide.pipeline.drivers.service.requests import CoordinatorRequests
from stilltide.pipeline.drivers.shared.alarm import Alarm
from stilltide.pipeline.drivers.shared.feed import TopicFeed
from stilltide.pipeline.drivers.shared.named_partitions import missing_topic
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.passed_over import foreign_records, pass_over
from stilltide.pipeline.drivers.snapshots.data_positions import coordinator_log_ends, data_positions
from stilltide.pipeline.errors import (
    MarkersTrimmedError,
    RefusedError,
    RequestTimeoutError,
    SnapshotError,
)
from stilltide.pipeline.logging import get_logger
from stilltide.pipeline.metrics.snapshots import SnapshotMetrics
from stilltide.schemas.coordinator import markers
from stilltide.schemas.coordinator.markers import Barrier, Marker, Probe
from stilltide.schemas.coordinator.transactions import Refused, WriteBarrier
from stilltide.schemas.errors import DecodeError, ForeignKeyError, placed_each
from stilltide.schemas.topics import TXN_MARKERS, TXN_SNAPSHOTS
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

log = get_logger(__name__)

LOOK_MS = 1000
"""Longest time between two looks at the deadlines, since the wall clock may jump."""

Ts = TypeVarTuple("Ts")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDeps:
    """Dependencies that the snapshot writers of one worker share.

    Attributes:
        connector: the cluster.
        admin: reads positions, and trims txn-markers.
        replies: sends answers to clients.
        coordinators: asks coordinators for barriers.
        clock: the clocks.
        limits: times of snapshots and sizes of parts.
        partition_count: number of partitions of txn-markers and of txn-snapshots.
        hindrances: what hinders the worker (C17).
    """

    connector: Connector
    admin: LogAdmin
    replies: Replies
    coordinators: CoordinatorRequests
    clock: Clock
    limits: SnapshotLimits
    partition_count: int
    hindrances: Hindrances = field(default_factory=Hindrances)


class OwnedSnapshots:
    """One ownership, from its fence to its end.

    Args:
        partition: number of the partition of txn-markers and txn-snapshots.
        deps: dependencies shared with other snapshot writers.
        metrics: metrics of this snapshot writer.
        serving: called once, after the recovery.
        taken: called with the numbers of requests that durable snapshots answer.

    Attributes:
        machine: machine of the snapshot writer; None before the recovery and after the end.
        trimmed_to: offset below which markers were trimmed.
        found: positions of data partitions as of the last probe.
    """

    def __init__(
        self,
        partition: int,
        deps: SnapshotDeps,
        *,
        metrics: SnapshotMetrics,
        serving: Callable[[], None],
        taken: Callable[[Sequence[int]], None],
    ) -> None:
        self.machine: SnapshotWriter | None = None
        self.trimmed_to = Offset(0)
        self.found: dict[TopicPartition, DataPosition] = {}
        self._partition = partition
        self._markers = TopicPartition(TXN_MARKERS, partition)
        self._snapshots = TopicPartition(TXN_SNAPSHOTS, partition)
        self._deps = deps
        self._metrics = metrics
        self._serving = serving
        self._taken = taken
        own_id = deps.connector.own_id(f"snapshots-{partition}")
        self._writer = deps.connector.transactional_writer(own_id)
        self._tasks = asyncio.TaskGroup()
        self._busy: set[object] = set()
        self._markers_end = EndOffset(0)  # as of the beginning of the ownership
        self._alarm = Alarm(self._due)

    async def run(self) -> None:
        """Fences, recovers, then serves until an error ends it; always raises.

        Raises:
            FencedError: another writer has taken over.
            RetriableError: a write failed, or its result is unknown.
            MarkersTrimmedError, SnapshotPartError: the known outcomes have a gap (E4).
            MarkerConflictError: two outcomes of one transaction; names the later marker's place.
            DecodeError: a record cannot be decoded; names its place.
            FatalError: a topic cannot be read or written.
        """
        deps = self._deps
        outages = OutageGuard(deps.admin)
        try:
            await self._run(self._writer, outages)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self.machine = None
            self._alarm.cancel()
            await self._writer.close()

    def lag(self) -> int:
        """The largest distance of an M to its partition's end, as of the last probe."""
        machine = self.machine
        if machine is None:
            return 0
        lags = [0]
        for data, found in self.found.items():
            buffer = machine.buffers.get(data)
            if buffer is not None and buffer.summary is not None:
                lags.append(found.end_offset - buffer.summary.max_read_position)
        return max(lags)

    def requested(self, request: int, data: TopicPartition) -> None:
        """Requests a snapshot; ignored before `serving` is called and after `run` ends."""
        if self.machine is not None:
            self._carry_out(self.machine.requested(request, data, self._deps.clock.monotonic_ms()))

    async def _run(self, writer: TransactionalWriter, outages: OutageGuard) -> None:
        deps = self._deps
        await outages.call(writer.fence)
        machine = await recovered_writer(
            deps.connector,
            deps.admin,
            outages,
            self._partition,
            nonce=deps.connector.chance.token(16),
            limits=deps.limits,
            now_ms=deps.clock.monotonic_ms,
        )
        reader = deps.connector.reader(
            f"snapshot-markers-{self._partition}", committed=False, fetching=Fetching.IN_BULK
        )
        try:
            _, self._markers_end = await outages.call(
                lambda: marker_bounds(deps.admin, self._markers)
            )
            await reader.assign({self._markers: machine.position})
            async with self._tasks:
                self.machine = machine
                self._arm(machine)
                self._serving()
                await self._follow(machine, lambda: outages.call(reader.read, may_rest=True))
        finally:
            await reader.close()

    async def _follow(
        self,
        machine: SnapshotWriter,
        read: Callable[[], Awaitable[Sequence[Record | EndReached]]],
    ) -> None:
        try:
            while True:
                await self._read(machine, await read())
                await asyncio.sleep(0)  # the worker's other tasks run during a long replay
        except OffsetOutOfRangeError as error:
            raise FencedError(  # the next recovery finds out whether snapshots have absorbed them
                "the markers to be read next were trimmed", detail=str(error)
            ) from error
        finally:
            self.machine = None

    async def _read(self, machine: SnapshotWriter, items: Sequence[Record | EndReached]) -> None:
        """Takes the records that were read; 9 us for each marker, 2 of them in the machine."""
        batch: list[tuple[Offset, Marker | Barrier | None]] = []
        now_ms = self._deps.clock.monotonic_ms()
        with placed_each(items) as each:
            for item in each:
                if isinstance(item, Record):
                    try:
                        found = markers.decode(item.key, item.value)
                    except DecodeError as error:
                        await self._not_decoded(item, error)
                    else:
                        batch.append((item.offset, found))
                    continue
                self._carry_out(machine.markers_read(batch, now_ms))
                self._carry_out(machine.end_reached(item.end_offset, now_ms))
                batch = []
        if batch:
            self._carry_out(machine.markers_read(batch, now_ms))

    async def _not_decoded(self, record: Record, error: DecodeError) -> None:
        """Passes over a record that changes no outcome (B10).

        A marker that was written again after this ownership began does not count: a barrier in
        front of the later marker may answer a probe of this ownership, and says that the
        transaction has ended. Without a barrier there is no snapshot, so a damaged one is missed
        safely.
        """
        if markers.is_barrier(record.key) and not isinstance(error, ForeignKeyError):
            foreign_records(self._deps.connector).add(
                record.data, record.offset, record.value, error.primary
            )
            return
        await pass_over(self._deps.connector, record, error, before=self._markers_end)

    def _arm(self, machine: SnapshotWriter) -> None:
        now_ms = self._deps.clock.monotonic_ms()
        self._alarm.arm(min(machine.deadline_ms, now_ms + LOOK_MS), now_ms)

    def _due(self) -> None:
        if self.machine is not None:
            self._start("tick", self._tick, self.machine)

    async def _tick(self, machine: SnapshotWriter) -> None:
        """Runs as a task of the ownership, so that a failure ends it."""
        self._carry_out(machine.tick(self._deps.clock.monotonic_ms()))

    def _carry_out(self, effects: Sequence[WriterEffect]) -> None:
        machine = self.machine
        if machine is None:
            return  # this ownership is ending
        for effect in effects:
            self._carry_out_one(machine, effect)
        self._arm(machine)

    def _carry_out_one(self, machine: SnapshotWriter, effect: WriterEffect) -> None:
        match effect:
            case ReadPositions(counter):
                self._start(("positions", counter), self._read_positions, machine, effect)
            case AskBarriers(probe, coordinators):
                for coordinator in coordinators:
                    self._start((coordinator, probe), self._ask, coordinator, probe)
            case ReadMarkerEnd(counter):
                self._start(("end", counter), self._read_end, machine, counter)
            case WriteSnapshots(counter):
                self._start(("write", counter), self._write, machine, effect)
            case FindYounger(age_ms):
                since_ms = self._deps.clock.now_ms() - age_ms
                self._start("younger", self._find_younger, machine, since_ms)
            case TrimMarkers(before):
                self._start(("trim", before), self._trim, before)
            case SnapshotsTaken(requests):
                self._taken(requests)

    def _start(self, key: object, work: Callable[[*Ts], Awaitable[None]], *given: *Ts) -> None:
        """Starts a task for a step, unless one runs already: the machine repeats a slow step.

        A step that fails because the broker is away is dropped; the machine repeats it (E1).
        """
        if key in self._busy:
            return
        self._busy.add(key)

        async def done() -> None:
            try:
                await work(*given)
            except BaseException:
                self.machine = None
                raise
            self._busy.discard(key)

        self._tasks.create_task(done())

    async def _read_positions(self, machine: SnapshotWriter, asked: ReadPositions) -> None:
        admin = self._deps.admin
        try:
            found = await data_positions(admin, asked.partitions)
            log_ends = await coordinator_log_ends(admin)
        except RetriableError as error:
            _left(self._partition, "reading positions", error)
            return
        if len(log_ends) < machine.coordinators:
            _log_stale(self._partition, machine.coordinators, len(log_ends))
        self._deps.coordinators.grow(len(log_ends))
        self.found = found
        now_ms = self._deps.clock.monotonic_ms()
        self._carry_out(machine.positions_read(asked.counter, found, log_ends, now_ms))

    async def _ask(self, coordinator: int, probe: Probe) -> None:
        body = WriteBarrier(self._partition, probe)
        try:
            answer = await self._deps.coordinators.ask(coordinator, body)
        except RequestTimeoutError as error:
            _left(self._partition, f"asking coordinator {coordinator} for a barrier", error)
            return
        if isinstance(answer, Refused):
            raise RefusedError(
                f"coordinator {coordinator} refused to write a barrier: {answer.reason}",
                hint="do all workers of the cluster have the same settings?",
            )

    async def _read_end(self, machine: SnapshotWriter, counter: int) -> None:
        try:
            _, end = await marker_bounds(self._deps.admin, self._markers)
        except RetriableError as error:
            _left(self._partition, "reading the end of the markers", error)
            return
        self._carry_out(machine.marker_end_read(counter, end, self._deps.clock.monotonic_ms()))

    async def _write(self, machine: SnapshotWriter, snapshots: WriteSnapshots) -> None:
        began_s = asyncio.get_running_loop().time()
        records = [NewRecord(self._snapshots, key, value) for key, value in snapshots.records]
        with self._deps.hindrances.trying("snapshots", str(self._snapshots)):
            await self._writer.write(records)
        seconds = asyncio.get_running_loop().time() - began_s
        self._metrics.written(snapshots.records, seconds)
        log.debug("snapshots_written", partition=self._partition, records=len(records))
        now_ms = self._deps.clock.monotonic_ms()
        self._carry_out(machine.snapshots_written(snapshots.counter, now_ms))

    async def _find_younger(self, machine: SnapshotWriter, since_ms: int) -> None:
        try:
            starts = await self._deps.admin.start_offsets([self._markers], since_ms=since_ms)
        except RetriableError as error:
            _left(self._partition, "looking for markers that are old enough to be trimmed", error)
            return
        if self._markers in starts:
            self._carry_out(machine.trimming.younger_found(starts[self._markers]))

    async def _trim(self, before: Offset) -> None:
        try:
            await self._deps.admin.delete_records({self._markers: before})
        except RetriableError as error:  # the next trim includes this one
            _left(self._partition, "trimming the markers", error)
        else:
            self.trimmed_to = max(self.trimmed_to, before)


def _log_stale(partition: int, known: int, found: int) -> None:
    """The machine does not take such an answer, and asks again (C14)."""
    log.warning(
        "coordinators_missing",
        partition=partition,
        known=known,
        found=found,
        hint="the metadata of a broker lag behind; else a foreign record names a coordinator",
    )


def _left(partition: int, step: str, error: Exception) -> None:
    """The machine repeats the step."""
    log.warning("snapshot_step_failed", partition=partition, step=step, why=str(error))


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
