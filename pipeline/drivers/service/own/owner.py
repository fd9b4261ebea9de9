"""Runs the owner of one log: the common part of coordinators and pending-ack stores.

*Source*: docs/protocols B4, C1, C8, C10. The owner appends the bytes of a request and answers when
it reads the entry back, so that no table of requests in flight is needed.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from stilltide.connectors.clock import Clock
from stilltide.connectors.errors import ConnectorError, FencedError, RecordRefusedError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import Record
from stilltide.connectors.ports.writers import LogWriter
from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits, FlushTrigger, WriteEntry
from stilltide.pipeline.core.machine import Machine
from stilltide.pipeline.drivers.buffered_log.owned_log import (
    Appended,
    EntryQueue,
    EntryWriter,
    LogCodec,
    OwnedLog,
)
from stilltide.pipeline.drivers.service.hindrances import Hindrances, Seldom
from stilltide.pipeline.drivers.service.own.direct_lines import LineServer
from stilltide.pipeline.drivers.service.own.replies import Replies
from stilltide.pipeline.drivers.shared.alarm import Alarm
from stilltide.pipeline.drivers.shared.passed_over import PassedOver
from stilltide.pipeline.logging import get_logger
from stilltide.pipeline.metrics.worker import OwnerMetrics
from stilltide.schemas.coordinator.transactions import CompactedTopic, ReportedEnd, TxnLogRecord
from stilltide.schemas.errors import DecodeError, StilltideError
from stilltide.schemas.framing import REQUESTS_MAX, decode_value
from stilltide.schemas.log_frames import FlushFigures, LogFigures, Noop, pieces
from stilltide.schemas.pending_ack.acknowledgements import PendingAckRecord
from stilltide.schemas.service.envelopes import Request
from stilltide.schemas.values import BatchPosition, EndOffset, Offset, TopicPartition

log = get_logger(__name__)

HELD_BATCHES_MAX = 1000
"""Batches of requests kept during a replay; the oldest is dropped first, and clients repeat it."""

HELD_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of these batches."""

SLICE_S = 0.002
"""Encoding yields to the event loop's other tasks after this time."""

NOBODYS = "neither a fence nor an entry of the owner at that time"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerDeps:
    """Dependencies that the owners of one worker share.

    Attributes:
        connector: the cluster.
        writer: appends entries to the logs.
        replies: sends answers to clients.
        admin: trims the logs.
        entries: writes the entries of the logs.
        foreign: counts and logs the foreign entries of the logs (B6).
        clock: the clocks.
        partition_count: number of partitions of each system topic, except those of coordinators.
        lines: takes direct lines of clients (J).
        ended_owners: the owners and links of the worker that an error has ended (B8).
        compacted_topics: the topics that compact, as the worker has seen them (C18).
        hindrances: what hinders the worker (C17).
        seldom: lets one line in a minute pass for each matter.
    """

    connector: Connector
    writer: LogWriter
    replies: Replies
    admin: LogAdmin
    clock: Clock
    partition_count: int
    entries: EntryWriter = field(default_factory=EntryQueue)
    foreign: PassedOver = field(default_factory=partial(PassedOver, "log_entry_passed_over"))
    lines: LineServer = field(default_factory=LineServer)
    ended_owners: Callable[[], tuple[ReportedEnd, ...]] = tuple
    compacted_topics: Callable[[], tuple[CompactedTopic, ...]] = tuple
    hindrances: Hindrances = field(default_factory=Hindrances)
    seldom: Seldom = field(default_factory=Seldom)


@dataclass(slots=True)
class OwnerFigures:
    """Figures of one ownership of a log; each fence makes a new object.

    Attributes:
        began_s: start of the ownership, by the event loop's clock.
        recovery_ms: time from the start until the owner served.
        has_served: whether the owner has applied a client's request that it appended itself.
        entries_written: entries that the owner has written and read back.
        records_written: records in those entries.
        flushes: what made entries leave the buffer, by trigger.
    """

    began_s: float
    recovery_ms: int = 0
    has_served: bool = False
    entries_written: int = 0
    records_written: int = 0
    flushes: dict[FlushTrigger, FlushFigures] = field(
        default_factory=dict[FlushTrigger, FlushFigures]
    )

    def entry_made(self, entry: WriteEntry, size_bytes: int) -> None:
        """An entry is on its way; its value has `size_bytes`."""
        known = self.flushes.get(entry.trigger)
        waited_us = round(entry.waited_ms * 1000)
        if known is None:
            known = FlushFigures(entry.trigger.value, 0, 0, 0, 0, 0)
        self.flushes[entry.trigger] = FlushFigures(
            known.trigger,
            known.entries + 1,
            known.records + len(entry.records),
            known.bytes + size_bytes,
            known.waited_us + waited_us,
            max(known.waited_us_max, waited_us),
        )

    def read_back(self, records: Sequence[TxnLogRecord] | Sequence[PendingAckRecord]) -> None:
        """The owner has read back an entry that it wrote."""
        self.entries_written += 1
        self.records_written += len(records)
        if not self.has_served:
            self.has_served = any(isinstance(it.body, Request) for it in records)


class OwnerMachine(Machine[int, Any], Protocol):
    """The part of an ownership's machine that `ServiceOwner` calls.

    The types of records and effects are known to the subclass only.
    """

    def applied(
        self, offset: Offset, records: Sequence[Any], *, own: bool, now_ms: int
    ) -> Sequence[Any]:
        """Applies the records of the next effective entry."""
        ...

    def serve(self, epoch: Offset, now_ms: int) -> Sequence[Any]:
        """The replay has ended; the owner serves from now on."""
        ...

    def base_lost(self, as_of: EndOffset, now_ms: int) -> None:
        """A piece of a base will never be effective."""
        ...

    def trimmed(self, offset: Offset) -> None:
        """The log was trimmed and begins at `offset`."""
        ...

    def trim_failed(self, offset: Offset, now_ms: int) -> None:
        """Whether the log was trimmed is unknown."""
        ...


M = TypeVar("M", bound=OwnerMachine)
B = TypeVar("B")


class Received(NamedTuple, Generic[B]):
    """Requests of one record, each with its bytes.

    Attributes:
        requests: requests and their bytes.
        operator: whether they came by a topic that only operators and workers may write (C15).
        size_bytes: bytes of all requests.
    """

    requests: list[tuple[bytes, Request[B]]]
    operator: bool
    size_bytes: int


class LogBases:
    """Bases and trims of one ownership; at most one of each is under way.

    Args:
        log: the log.
        admin: deletes records; shared with other owners.
        owner: appends the records, and is told what becomes of them.
    """

    def __init__(
        self, log: TopicPartition, admin: LogAdmin, owner: "ServiceOwner[Any, Any]"
    ) -> None:
        self._log = log
        self._admin = admin
        self._owner = owner
        self._tasks: set[asyncio.Task[None]] = set()

    def write(self, as_of: EndOffset, parts: Iterable[bytes]) -> None:
        """Appends a base whose state is the joined `parts`, encoded in slices of `SLICE_S`."""
        self._start(self._write(as_of, parts))

    def trim(self, offset: Offset) -> None:
        """Deletes the records before an effective entry at `offset`."""
        self._start(self._trim(offset))

    def close(self) -> None:
        """Cancels a base and a trim under way; the broker may still trim, which does no harm."""
        for task in self._tasks:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, as_of: EndOffset, parts: Iterable[bytes]) -> None:
        now = asyncio.get_running_loop().time
        state, until = bytearray(), now() + SLICE_S
        for part in parts:
            state += part
            if now() >= until:
                await asyncio.sleep(0)
                until = now() + SLICE_S

        def appended(result: BatchPosition | ConnectorError) -> None:
            if isinstance(result, ConnectorError):
                self._owner.base_lost(as_of)

        try:
            for piece in pieces(as_of, bytes(state)):
                self._owner.append(self._owner.own(piece), appended)
        except ConnectorError:
            return  # the ownership has ended meanwhile

    async def _trim(self, offset: Offset) -> None:
        try:
            await self._admin.delete_records({self._log: offset})
        except ConnectorError as error:
            log.warning("log_not_trimmed", log=str(self._log), before=offset, why=str(error))
            self._owner.trimmed(offset, done=False)
        else:
            self._owner.trimmed(offset, done=True)


class ServiceOwner(ABC, Generic[M, B]):
    """The owner of one log, for as long as the partition is assigned to this worker.

    Args:
        owned: the log.
        codec: makes and reads the records of the log.
        deps: dependencies shared with other owners.
        limits: thresholds of the buffered writer.
        metrics: metrics of this owner.
    """

    def __init__(
        self,
        owned: TopicPartition,
        codec: LogCodec,
        deps: OwnerDeps,
        *,
        limits: BatchLimits,
        metrics: OwnerMetrics,
    ) -> None:
        self._owned = owned
        self._codec = codec
        self._deps = deps
        self._limits = limits
        self._metrics = metrics
        self._held: deque[Received[B]] = deque()
        self._held_bytes = 0
        self._machine = self._new_machine(Offset(0))
        self._log: OwnedLog | None = None
        self._bases = LogBases(owned, deps.admin, self)
        self._alarm = Alarm(self._ticked)
        self._figures = OwnerFigures(0)

    @abstractmethod
    def _new_machine(self, log_start: Offset) -> M:
        """The machine of a replay that begins at `log_start`."""

    @staticmethod
    @abstractmethod
    def _decode_request(data: bytes) -> Request[B]:
        """One request; raises `DecodeError`."""

    @abstractmethod
    def _take(self, received: Received[B]) -> None:
        """Takes requests and their bytes; called only while the owner serves."""

    @abstractmethod
    def _carry_out(self, effect: Any) -> None:
        """Carries out one effect of the machine."""

    @property
    def serving(self) -> bool:
        """Whether it owns its log now; until then it holds up to `HELD_BATCHES_MAX` batches."""
        return self._log is not None and self._log.epoch is not None

    def limits_changed(self, limits: BatchLimits) -> None:
        """Sets the thresholds; records in the buffer are written under the old ones (A7)."""
        if limits == self._limits:
            return
        self._limits = limits
        if self._log is not None:
            self._log.limits_changed(limits)

    def passes(self, error: StilltideError) -> bool:
        """Whether another owner has taken over, or the cluster refuses entries (C17)."""
        if isinstance(error, FencedError):
            self._metrics.fenced.inc()
        return isinstance(error, FencedError | RecordRefusedError)

    def requests_received(self, value: bytes | None, *, operator: bool = False) -> None:
        """Takes one value of a requests topic: a framed batch of requests, or a bare request.

        Args:
            value: value of the record.
            operator: whether only operators and workers may write to the topic (C15).

        Raises:
            DecodeError: the value, or a part of it, is no request; the other parts were taken.
        """
        requests: list[tuple[bytes, Request[B]]] = []
        failed: DecodeError | None = None
        size_bytes = 0
        for data in decode_value(value, records_max=REQUESTS_MAX):
            try:
                request = self._decode_request(data)
            except DecodeError as error:
                failed = error
                continue
            if request.reply_partition >= self._deps.partition_count:
                failed = DecodeError("a request to be answered where no client reads")
                continue
            requests.append((data, request))
            size_bytes += len(data)
        if requests:
            self._metrics.requests.inc(len(requests))
            received = Received(requests, operator, size_bytes)
            if self.serving:
                self._take(received)
            else:
                self._hold(received)
        if failed is not None:
            raise failed

    def _hold(self, received: Received[B]) -> None:
        """Keeps requests until the owner serves."""
        self._held.append(received)
        self._held_bytes += received.size_bytes
        while len(self._held) > HELD_BATCHES_MAX or self._held_bytes > HELD_BYTES_MAX:
            self._held_bytes -= self._held.popleft().size_bytes

    async def run(self) -> None:
        """Owns the log until an error ends the ownership; raises as `OwnedLog.run`."""
        self._figures = OwnerFigures(asyncio.get_running_loop().time())
        self._log = OwnedLog(
            self._deps.connector,
            self._owned,
            self._codec,
            self._limits,
            writer=self._deps.writer,
            entries=self._deps.entries,
            listener=self,
        )
        try:
            await self._log.run()
        finally:
            self._bases.close()
            self._alarm.cancel()
            self._deps.lines.owner_ended(self._owned)

    def append(self, record: bytes, appended: Appended | None = None, decoded: Any = None) -> None:
        """Appends a record; see `OwnedLog.append`."""
        assert self._log is not None
        self._log.append(record, appended, decoded)

    def own(self, body: Any) -> bytes:
        """Bytes of a record that does not come from a request."""
        return self._codec.encode(body, self._deps.clock.now_ms())

    def _after_noop(
        self,
        call: Callable[[], None],
        lost: Callable[[], None] | None = None,
        *,
        asker: bytes | None = None,
    ) -> None:
        """Calls after all appends up to now were read back (C1), or `lost` if the no-op is lost.

        With an `asker`, the id of the client that `call` answers, `lost` is called without room for
        the answer, which may be much larger than the question (C16); the client asks again.
        """

        def appended(result: BatchPosition | ConnectorError) -> None:
            answered = asker is None or self._deps.replies.room(asker)
            if answered and not isinstance(result, ConnectorError):
                call()
            elif lost is not None:
                lost()

        self.append(self.own(Noop()), appended)

    def _respond(self, client_id: bytes, reply_partition: int, answer: bytes) -> None:
        self._metrics.answers.inc()
        self._deps.replies.add(client_id, reply_partition, answer)

    def _run(self, effects: Sequence[Any]) -> None:
        for effect in effects:
            self._carry_out(effect)
        self._arm()

    def replaying(self, log_start: Offset) -> None:
        """A replay begins; see `LogListener`."""
        self._machine = self._new_machine(log_start)

    def applied(self, offset: Offset | None, records: Sequence[Any], *, own: bool) -> None:
        """Applies the records of an entry; see `LogListener`."""
        if offset is None:
            return  # those who wait for an answer ask again
        if own:
            self._figures.read_back(records)
        now_ms = self._deps.clock.monotonic_ms()
        self._run(self._machine.applied(offset, records, own=own, now_ms=now_ms))

    def serve(self) -> None:
        """The replay has ended: takes the requests that wait."""
        assert self._log is not None
        assert self._log.epoch is not None
        effects = self._machine.serve(self._log.epoch, self._deps.clock.monotonic_ms())
        replayed_ms = round((asyncio.get_running_loop().time() - self._figures.began_s) * 1000)
        self._figures.recovery_ms = replayed_ms
        log.info("owner_serving", log=str(self._owned), replayed_ms=replayed_ms)
        self._run(effects)
        self._held_bytes = 0
        while self._held:
            self._take(self._held.popleft())

    def wrote(self, entry: WriteEntry, size_bytes: int) -> None:
        """An entry is on its way: counted for good, and for the present ownership."""
        self._metrics.log.entry_written(entry, size_bytes)
        self._figures.entry_made(entry, size_bytes)

    def foreign(self, entry: Record) -> None:
        """Counts and logs a foreign entry (B6)."""
        self._deps.foreign.add(entry.data, entry.offset, entry.value, NOBODYS)

    def base_lost(self, as_of: EndOffset) -> None:
        """A piece of a base will never be effective."""
        if self.serving:
            self._machine.base_lost(as_of, self._deps.clock.monotonic_ms())
            self._arm()

    def trimmed(self, offset: Offset, *, done: bool) -> None:
        """Whether the log begins at an offset now."""
        if done:
            self._machine.trimmed(offset)
        else:
            self._machine.trim_failed(offset, self._deps.clock.monotonic_ms())
            self._arm()

    def _arm(self) -> None:
        self._alarm.arm(self._machine.deadline_ms, self._deps.clock.monotonic_ms())

    def _ticked(self) -> None:
        if self.serving:
            self._run(self._machine.tick(self._deps.clock.monotonic_ms()))

    def _log_figures(self) -> LogFigures:
        """The thresholds of a serving owner, and the figures of what the owner has written."""
        log_now, limits, figures = self._log, self._limits, self._figures
        assert log_now is not None
        assert log_now.epoch is not None, "asked of an owner that does not serve"
        return LogFigures(
            epoch=log_now.epoch,
            batching_enabled=limits.batching,
            batch_records_max=limits.records_max,
            batch_bytes_max=limits.bytes_max,
            batch_delay_us_max=round(limits.delay_ms_max * 1000),
            flush_eager=limits.eager,
            entries_written=figures.entries_written,
            records_written=figures.records_written,
            appends_in_flight=log_now.in_flight,
            recovery_ms=figures.recovery_ms,
            flushes=tuple(figures.flushes.values()),
        )
