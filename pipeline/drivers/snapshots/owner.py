"""Runs the snapshot writer of one marker partition: takes requests, writes snapshots, answers.

*Source*: docs/protocols E1, E3, E4, E7, B4 (a new ownership begins after a random delay).
*Invariants*: a snapshot holds only what the ownership has read since its fence; a write that failed
or has an unknown result ends the ownership, since the machine counts it as durable. A request is
held until a durable snapshot answers it, also a snapshot of a later ownership; a repetition of a
held request is ignored.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVarTuple

from stilltide.connectors.errors import (
    FencedError,
    OffsetOutOfRangeError,
    RecordRefusedError,
    RetriableError,
)
from stilltide.connectors.ports.connector import LogReader, closing
from stilltide.connectors.ports.readers import EndReached, Fetching, NewRecord, Record
from stilltide.connectors.ports.writers import TransactionalWriter
from stilltide.pipeline.core.snapshots.buffer import DataPosition
from stilltide.pipeline.core.snapshots.effects import (
    AskBarriers,
    FindYounger,
    ReadMarkerEnd,
    ReadPositions,
    SnapshotsTaken,
    SnapshotStats,
    TrimMarkers,
    WriterEffect,
    WriteSnapshots,
)
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits, SnapshotWriter
from stilltide.pipeline.drivers.service.ask.requests import CoordinatorRequests
from stilltide.pipeline.drivers.service.ended import OwnerEnd
from stilltide.pipeline.drivers.service.own.owner import OwnerDeps
from stilltide.pipeline.drivers.shared.alarm import Alarm
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.passed_over import foreign_records, pass_over
from stilltide.pipeline.drivers.snapshots.logs import (
    coordinator_log_ends,
    data_positions,
    marker_bounds,
    recovered_writer,
)
from stilltide.pipeline.errors import (
    RefusedError,
    RequestTimeoutError,
)
from stilltide.pipeline.logging import get_logger
from stilltide.pipeline.metrics.worker import SnapshotMetrics
from stilltide.schemas.coordinator import markers
from stilltide.schemas.coordinator.markers import Barrier, Marker, Probe
from stilltide.schemas.coordinator.transactions import WriteBarrier
from stilltide.schemas.errors import DecodeError, ForeignKeyError, StilltideError, placed_each
from stilltide.schemas.framing import decode_each
from stilltide.schemas.service.envelopes import Refused, Response, Unreadable
from stilltide.schemas.snapshots import requests as snapshot_requests
from stilltide.schemas.snapshots.requests import SnapshotAnswer, SnapshotRequest
from stilltide.schemas.topics import TXN_MARKERS, TXN_SNAPSHOTS, system_partition
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

log = get_logger(__name__)

REQUESTS_HELD_MAX = 10_000
"""Requests that wait for their snapshot; further ones are dropped, and clients repeat them."""


LOOK_MS = 1000
"""Longest time between two looks at the deadlines, since the wall clock may jump."""

Ts = TypeVarTuple("Ts")


class SnapshotOwnership:
    """One ownership, from its fence to its end.

    Args:
        owner: told of the end of the recovery, and of requests that durable snapshots answer.

    Attributes:
        machine: machine of the snapshot writer; None before the recovery and after the end.
        trimmed_to: offset below which markers were trimmed.
        positions: positions of data partitions as of the last probe.
    """

    def __init__(self, owner: "SnapshotOwner") -> None:
        self.machine: SnapshotWriter | None = None
        self.trimmed_to = Offset(0)
        self.positions: dict[TopicPartition, DataPosition] = {}
        self._owner = owner
        self._partition = owner.partition
        self._markers = TopicPartition(TXN_MARKERS, owner.partition)
        self._snapshots = TopicPartition(TXN_SNAPSHOTS, owner.partition)
        self._deps = owner.deps
        own_id = self._deps.connector.own_id(f"snapshots-{owner.partition}")
        self._writer = self._deps.connector.transactional_writer(own_id)
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
        for data, position in self.positions.items():
            buffer = machine.buffers.get(data)
            if buffer is not None and buffer.summary is not None:
                lags.append(position.end_offset - buffer.summary.max_read_position)
        return max(lags)

    def requested(self, request: int, data: TopicPartition) -> None:
        """Requests a snapshot; ignored before the recovery has ended and after `run` ends."""
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
            limits=self._owner.limits,
            clock=deps.clock,
        )
        async with closing(
            deps.connector.reader(
                f"snapshot-markers-{self._partition}", committed=False, fetching=Fetching.IN_BULK
            )
        ) as reader:
            _, self._markers_end = await outages.call(marker_bounds, deps.admin, self._markers)
            await reader.assign({self._markers: machine.position})
            async with self._tasks:
                self.machine = machine
                self._arm(machine)
                self._owner.serve()
                await self._follow(machine, reader, outages)

    async def _follow(
        self, machine: SnapshotWriter, reader: LogReader, outages: OutageGuard
    ) -> None:
        try:
            while True:
                await self._read(machine, await outages.read(reader.read))
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
                        decoded = markers.decode(item.key, item.value)
                    except DecodeError as error:
                        await self._not_decoded(item, error)
                    else:
                        batch.append((item.offset, decoded))
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
                self._owner.taken(requests)

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
            positions = await data_positions(admin, asked.partitions)
            log_ends = await coordinator_log_ends(admin)
        except RetriableError as error:
            _left(self._partition, "reading positions", error)
            return
        if len(log_ends) < machine.coordinators:
            _log_stale(self._partition, machine.coordinators, len(log_ends))
        self._owner.coordinators.grow(len(log_ends))
        self.positions = positions
        now_ms = self._deps.clock.monotonic_ms()
        self._carry_out(machine.positions_read(asked.counter, positions, log_ends, now_ms))

    async def _ask(self, coordinator: int, probe: Probe) -> None:
        body = WriteBarrier(self._partition, probe)
        try:
            answer = await self._owner.coordinators.ask(coordinator, body)
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
        self._owner.metrics.written(snapshots.records, seconds)
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


def _log_stale(partition: int, known: int, counted: int) -> None:
    """The machine does not take such an answer, and asks again (C14)."""
    log.warning(
        "coordinators_missing",
        partition=partition,
        known=known,
        found=counted,
        hint="the metadata of a broker lag behind; else a foreign record names a coordinator",
    )


def _left(partition: int, step: str, error: Exception) -> None:
    """The machine repeats the step."""
    log.warning("snapshot_step_failed", partition=partition, step=step, why=str(error))


class SnapshotOwner:
    """One snapshot writer, for as long as its partition is assigned to this worker.

    Args:
        partition: number of the partition of txn-markers, txn-snapshots and snapshot-requests.
        deps: dependencies shared with other owners.
        coordinators: asks coordinators for barriers.
        limits: times of snapshots and sizes of parts.
        metrics: metrics of this snapshot writer.
    """

    def __init__(
        self,
        partition: int,
        deps: OwnerDeps,
        *,
        coordinators: CoordinatorRequests,
        limits: SnapshotLimits,
        metrics: SnapshotMetrics,
    ) -> None:
        self.partition = partition
        self.deps = deps
        self.coordinators = coordinators
        self.limits = limits
        self.metrics = metrics
        self._owned: SnapshotOwnership | None = None
        self._requests = 0
        self._held: dict[int, tuple[SnapshotRequest, TopicPartition]] = {}
        self._numbers: dict[SnapshotRequest, int] = {}
        self._began_s = 0.0
        self._recovery_ms = 0

    @property
    def serving(self) -> bool:
        """Whether it writes snapshots now; until then it holds requests."""
        return self._owned is not None and self._owned.machine is not None

    @property
    def data_topics(self) -> set[str]:
        """The topics with records of coordinated transactions, as far as it knows them."""
        machine = None if self._owned is None else self._owned.machine
        return set() if machine is None else {data.topic for data in machine.buffers}

    async def run(self) -> None:
        """Writes snapshots until an error ends the ownership.

        Raises:
            MarkersTrimmedError, SnapshotPartError: the known outcomes have a gap; nothing is
                written.
            MarkerConflictError, DecodeError: a record that no coordinator or snapshot writer
                writes; names its place.
            FatalError: a topic cannot be read or written.
        """
        self._began_s = asyncio.get_running_loop().time()
        self._owned = SnapshotOwnership(self)
        await self._owned.run()

    def passes(self, error: StilltideError) -> bool:
        """Whether another writer has taken over, or a write failed."""
        if isinstance(error, FencedError):
            self.metrics.fenced.inc()
        elif isinstance(error, RecordRefusedError | RetriableError):
            self.metrics.failed.inc()
        else:
            return False
        return True

    def requests_received(self, value: bytes | None, *, operator: bool = False) -> None:
        """Takes one value of snapshot-requests: a framed batch of requests, or a bare request.

        Raises:
            DecodeError: the value, or a part of it, is no request; the other parts were taken.
        """
        del operator  # everybody who may ask for snapshots may ask for all of them
        for request in decode_each(value, snapshot_requests.decode_request):
            self.metrics.requests.inc()
            self._request_received(request)

    def refuse(self, value: bytes | None, end: OwnerEnd) -> None:
        """Refuses requests while this writer has ended (B8); none of them changes anything.

        Raises:
            DecodeError: the value, or a part of it, is no request.
        """
        reason = end.text(asyncio.get_running_loop().time())
        for request in decode_each(value, snapshot_requests.decode_request):
            body = request.body
            refusal = body.refusal if isinstance(body, Unreadable) else Refused(reason)
            self._answer(request, refusal)

    def stats(self) -> SnapshotStats:
        """The writer's figures, only while it serves; takes 1 us for each data partition."""
        owned = self._owned
        assert owned is not None
        machine = owned.machine
        assert machine is not None
        return SnapshotStats(
            len(machine.buffers),
            sum(len(it.aborted) for it in machine.buffers.values()),
            owned.lag(),
            len(self._held),
            machine.position,
            owned.trimmed_to,
            self._recovery_ms,
        )

    def _request_received(self, request: SnapshotRequest) -> None:
        data = request.body
        if isinstance(data, Unreadable):
            self._answer(request, data.refusal)
            return
        count = self.deps.partition_count
        if system_partition(data, count) != self.partition:
            owner = system_partition(data, count)
            reason = f"snapshot writer {owner} of {count} serves {data}"
            self._answer(request, Refused(f"{reason}, and this is writer {self.partition}"))
            return
        if request in self._numbers:
            return
        if len(self._held) >= REQUESTS_HELD_MAX:
            log.warning("snapshot_request_dropped", partition=self.partition, held=len(self._held))
            return
        self._requests += 1
        self._numbers[request] = self._requests
        self._held[self._requests] = request, data
        if self.serving:
            self._ask(self._requests, data)

    def _ask(self, number: int, data: TopicPartition) -> None:
        assert self._owned is not None
        self._owned.requested(number, data)

    def serve(self) -> None:
        """The recovery has ended: requests the snapshots that clients wait for."""
        replayed_ms = round((asyncio.get_running_loop().time() - self._began_s) * 1000)
        self._recovery_ms = replayed_ms
        log.info("snapshot_writer_serving", partition=self.partition, replayed_ms=replayed_ms)
        for number, (_, data) in list(self._held.items()):
            self._ask(number, data)

    def taken(self, requests: Sequence[int]) -> None:
        """Answers the requests with these numbers: durable snapshots are younger."""
        assert self._owned is not None
        machine = self._owned.machine
        assert machine is not None
        for number in requests:
            request, data = self._held.pop(number)
            del self._numbers[request]
            buffer = machine.buffers.get(data)
            summary = None if buffer is None else buffer.summary
            self._answer(request, summary or Refused(f"{data} does not exist"))

    def _answer(self, request: SnapshotRequest, answer: SnapshotAnswer) -> None:
        response = Response(request.number, self.partition, answer)
        data = snapshot_requests.encode_response(response)
        self.metrics.answers.inc()
        self.deps.replies.add(request.client_id, request.reply_partition, data)
