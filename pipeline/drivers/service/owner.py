"""Runs the owner of one log: the common part of coordinators and pending-ack stores.

*Source*: docs/protocols B4, C1, C8. The owner appends the bytes of a request and answers when it
reads the entry back, so that no table of requests in flight is needed.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from stilltide.connectors.clock import Clock
from stilltide.connectors.errors import ConnectorError, FencedError, RecordRefusedError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.writers import LogWriter
from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits, WriteEntry
from stilltide.pipeline.core.machine import Machine
from stilltide.pipeline.drivers.buffered_log.owned_log import Appended, LogCodec, OwnedLog
from stilltide.pipeline.drivers.service.hindrances import Hindrances, Seldom
from stilltide.pipeline.drivers.service.lines.server import LineServer
from stilltide.pipeline.drivers.service.log_bases import LogBases
from stilltide.pipeline.drivers.service.ownership import Ownership
from stilltide.pipeline.drivers.service.replies import Answerable, Replies
from stilltide.pipeline.drivers.shared.alarm import Alarm
from stilltide.pipeline.drivers.shared.passed_over import PassedOver
from stilltide.pipeline.logging import get_logger
from stilltide.pipeline.metrics.worker import OwnerMetrics
from stilltide.schemas.coordinator.transactions import CompactedTopic, ReportedEnd
from stilltide.schemas.errors import DecodeError, StilltideError
from stilltide.schemas.framing import REQUESTS_MAX, decode_value
from stilltide.schemas.log_frames import Base, Noop
from stilltide.schemas.values import BatchPosition, EndOffset, Offset, TopicPartition

log = get_logger(__name__)

HELD_BATCHES_MAX = 1000
"""Batches of requests kept during a replay; the oldest is dropped first, and clients repeat it."""

HELD_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of these batches."""

NOBODYS = "neither a fence nor an entry of the owner at that time"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerDeps:
    """Dependencies that the owners of one worker share.

    Attributes:
        connector: the cluster.
        writer: appends entries to the logs.
        replies: sends answers to clients.
        admin: trims the logs.
        submit: hands log entries to the buffered-writer agent.
        foreign: counts and logs the foreign entries of the logs (B6).
        clock: the clocks.
        reply_partitions: number of partitions of txn-responses.
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
    submit: Callable[[OwnedLog, WriteEntry], None]
    foreign: PassedOver
    clock: Clock
    reply_partitions: int
    lines: LineServer = field(default_factory=LineServer)
    ended_owners: Callable[[], tuple[ReportedEnd, ...]] = tuple
    compacted_topics: Callable[[], tuple[CompactedTopic, ...]] = tuple
    hindrances: Hindrances = field(default_factory=Hindrances)
    seldom: Seldom = field(default_factory=Seldom)


class OwnerMachine(Machine[int, Any], Protocol):
    """The part of an ownership's machine that `OwnerDriver` calls.

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
R = TypeVar("R", bound=Answerable)


class Received(NamedTuple, Generic[R]):
    """Requests of one record, each with its bytes.

    Attributes:
        requests: requests and their bytes.
        operator: whether they came by a topic that only operators and workers may write (C15).
        size_bytes: bytes of all requests.
    """

    requests: list[tuple[bytes, R]]
    operator: bool
    size_bytes: int


class OwnerDriver(ABC, Generic[M, R]):
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
        self._held: deque[Received[R]] = deque()
        self._held_bytes = 0
        self._machine = self._new_machine(Offset(0))
        self._log: OwnedLog | None = None
        self._bases: LogBases | None = None
        self._alarm = Alarm(self._ticked)
        self._ownership = Ownership(0)

    @abstractmethod
    def _new_machine(self, log_start: Offset) -> M:
        """The machine of a replay that begins at `log_start`."""

    @abstractmethod
    def _decode_request(self, data: bytes) -> R:
        """One request; raises `DecodeError`."""

    @abstractmethod
    def _take(self, received: Received[R]) -> None:
        """Takes requests and their bytes; called only while the owner serves."""

    @abstractmethod
    def _own(self, body: Base | Noop) -> bytes:
        """Bytes of a record that does not come from a request."""

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
        requests: list[tuple[bytes, R]] = []
        failed: DecodeError | None = None
        size_bytes = 0
        for data in decode_value(value, records_max=REQUESTS_MAX):
            try:
                request = self._decode_request(data)
            except DecodeError as error:
                failed = error
                continue
            if request.reply_partition >= self._deps.reply_partitions:
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

    def _hold(self, received: Received[R]) -> None:
        """Keeps requests until the owner serves."""
        self._held.append(received)
        self._held_bytes += received.size_bytes
        while len(self._held) > HELD_BATCHES_MAX or self._held_bytes > HELD_BYTES_MAX:
            self._held_bytes -= self._held.popleft().size_bytes

    async def run(self) -> None:
        """Owns the log until an error ends the ownership; raises as `OwnedLog.run`."""
        self._ownership = Ownership(asyncio.get_running_loop().time())
        foreign = self._deps.foreign
        self._log = OwnedLog(
            self._deps.connector,
            self._owned,
            self._codec,
            self._limits,
            writer=self._deps.writer,
            submit=self._deps.submit,
            replaying=self._replaying,
            applied=self._applied,
            serving=self._serve,
            wrote=partial(_entry_made, self._metrics, self._ownership),
            foreign=lambda it: foreign.add(it.data, it.offset, it.value, NOBODYS),
        )
        self._bases = LogBases(
            self._log,
            self._deps.admin,
            encode=self._own,
            lost=self._base_lost,
            trimmed=self._trimmed,
        )
        try:
            await self._log.run()
        finally:
            self._bases.close()
            self._alarm.cancel()
            self._deps.lines.owner_ended(self._owned)

    def _append(
        self,
        record: bytes,
        appended: Appended | None = None,
        decoded: Any = None,
    ) -> None:
        assert self._log is not None
        self._log.append(record, appended, decoded)

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

        self._append(self._own(Noop()), appended)

    def _respond(self, client_id: bytes, reply_partition: int, answer: bytes) -> None:
        self._metrics.answers.inc()
        self._deps.replies.add(client_id, reply_partition, answer)

    def _write_base(self, as_of: EndOffset, state: Iterable[bytes]) -> None:
        assert self._bases is not None
        self._bases.write(as_of, state)

    def _trim(self, offset: Offset) -> None:
        assert self._bases is not None
        self._bases.trim(offset)

    def _run(self, effects: Sequence[Any]) -> None:
        for effect in effects:
            self._carry_out(effect)
        self._arm()

    def _replaying(self, log_start: Offset) -> None:
        self._machine = self._new_machine(log_start)

    def _applied(self, offset: Offset | None, records: Sequence[Any], own: bool) -> None:  # noqa: FBT001 - OwnedLog's call
        if offset is None:
            return  # those who wait for an answer ask again
        if own:
            self._ownership.wrote(records)
        now_ms = self._deps.clock.monotonic_ms()
        self._run(self._machine.applied(offset, records, own=own, now_ms=now_ms))

    def _serve(self) -> None:
        assert self._log is not None
        assert self._log.epoch is not None
        effects = self._machine.serve(self._log.epoch, self._deps.clock.monotonic_ms())
        replayed_ms = round((asyncio.get_running_loop().time() - self._ownership.began_s) * 1000)
        self._ownership.recovery_ms = replayed_ms
        log.info("owner_serving", log=str(self._owned), replayed_ms=replayed_ms)
        self._run(effects)
        self._held_bytes = 0
        while self._held:
            self._take(self._held.popleft())

    def _base_lost(self, as_of: EndOffset) -> None:
        if self.serving:
            self._machine.base_lost(as_of, self._deps.clock.monotonic_ms())
            self._arm()

    def _trimmed(self, offset: Offset, done: bool) -> None:  # noqa: FBT001 - LogBases' call
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


def _entry_made(
    metrics: OwnerMetrics, ownership: Ownership, entry: WriteEntry, size_bytes: int
) -> None:
    """An entry is on its way: counted for good, and for the present ownership."""
    metrics.log.entry_written(entry, size_bytes)
    ownership.entry_made(entry, size_bytes)
