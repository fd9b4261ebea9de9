"""Runs one coordinator: requests in, log, markers and answers out.

*Source*: protocols.md B4, C. Requests are appended as they arrived and answered from the entry
read back, so no request is held in memory on its way through the log.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from connectors.base import Clock, Connector, Delivered, LogAdmin, LogWriter
from connectors.errors import ConnectorError, FencedError, RetriableError
from pipeline.core.buffered_log.accumulator import BatchLimits, WriteEntry
from pipeline.core.buffered_log.bases import Trim
from pipeline.core.coordinator.machine import (
    Coordinator,
    CoordinatorEffect,
    EndParticipants,
    Propose,
    ReadEnds,
    Reply,
    WriteBase,
)
from pipeline.drivers.coordinator_stats import coordinator_stats, log_liveness
from pipeline.drivers.end_offsets import EndOffsets
from pipeline.drivers.log_bases import LogBases
from pipeline.drivers.owned_log import LogCodec, OwnedLog
from pipeline.drivers.ownership import Ownership
from pipeline.drivers.replies import Replies
from pipeline.drivers.requests import AckRequests
from pipeline.metrics import OwnerMetrics
from schemas import markers, requests, topics, txn_log
from schemas.acknowledgements import AckAnswer, AckQuestion, Settle
from schemas.errors import DecodeError, StilltideError
from schemas.framing import decode_value
from schemas.placement import system_partition
from schemas.transactions import (
    Answer,
    CoordinatorStats,
    Describe,
    DescribeCoordinator,
    Done,
    Fence,
    ForgetClients,
    ListTransactions,
    Noop,
    Open,
    Refused,
    Request,
    Response,
)
from schemas.txn_log_base import encode_state
from schemas.values import (
    BatchPosition,
    EndOffset,
    Offset,
    SubscriptionId,
    TopicPartition,
    TxnId,
)

log = structlog.get_logger(__name__)

HELD_BATCHES_MAX = 1000
"""Batches of requests kept while the log is replayed; clients repeat what is dropped."""

FENCED_DELAY_S_MAX = 1.0

Submit = Callable[[OwnedLog, WriteEntry], None]


class CoordinatorDriver:
    """One coordinator, for as long as its partition is assigned to this worker.

    Args:
        coordinator: partition of txn-log and txn-requests.
        connector: the cluster.
        writer: appends entries, markers and answers; shared with other coordinators.
        ends: reads end offsets; shared with other coordinators.
        admin: trims the log; shared with other coordinators.
        acks: asks the owners of pending acknowledgements; shared with other coordinators.
        submit: hands log entries to the buffered-writer agent.
        limits: of the buffered writer.
        partition_count: partitions of txn-markers and ack-requests.
        clock: wall clock.
        metrics: where it counts.
        txn_timeout_ms_max: longest time-out a client may ask for.
        broker_away_s_max: how long the broker may be away before `run` gives up.
    """

    def __init__(
        self,
        coordinator: int,
        connector: Connector,
        *,
        writer: LogWriter,
        ends: EndOffsets,
        admin: LogAdmin,
        acks: AckRequests,
        submit: Submit,
        limits: BatchLimits,
        partition_count: int,
        clock: Clock,
        metrics: OwnerMetrics,
        txn_timeout_ms_max: int,
        broker_away_s_max: float = 60.0,
    ) -> None:
        self.coordinator = coordinator
        self.assigned = True
        self._connector = connector
        self._writer = writer
        self._ends = ends
        self._admin = admin
        self._acks = acks
        self._submit = submit
        self._limits = limits
        self._partition_count = partition_count
        self._clock = clock
        self._metrics = metrics
        self._txn_timeout_ms_max = txn_timeout_ms_max
        self._broker_away_s_max = broker_away_s_max
        self._held: deque[list[tuple[bytes, Request]]] = deque(maxlen=HELD_BATCHES_MAX)
        self._machine = Coordinator(coordinator)
        self._log: OwnedLog | None = None
        self._bases: LogBases | None = None
        self._replies = Replies(writer, sent=metrics.answers.inc)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._ownership = Ownership(0)
        self._markers_pending = 0

    @property
    def serving(self) -> bool:
        """Whether it owns its log just now; what arrives before is held, for a while."""
        return self._log is not None and self._log.epoch is not None

    def stats(self, *, live_entries: bool = False) -> CoordinatorStats:
        """Its figures, only while it serves; entries with live records cost a walk over them."""
        assert self._log is not None
        figures = coordinator_stats(
            self._machine.state, self._log, self._limits, self._ownership, self._markers_pending
        )
        liveness = log_liveness(self._machine.bases.liveness, entries=live_entries)
        return figures._replace(liveness=liveness)

    def limits_changed(self, limits: BatchLimits) -> None:
        """Other thresholds from now on; what is buffered leaves under the old ones (A7)."""
        if limits == self._limits:
            return
        self._limits = limits
        if self._log is not None:
            self._log.limits_changed(limits)

    async def run(self) -> None:
        """Owns the log until cancelled, or fenced and not assigned any more.

        Fenced while still assigned, it begins again after a random delay: the fence may be the
        late one of a dead process (B4).
        """
        while True:
            self._ownership = Ownership(asyncio.get_running_loop().time())
            self._log = OwnedLog(
                self._connector,
                TopicPartition(topics.TXN_LOG, self.coordinator),
                CODEC,
                self._limits,
                writer=self._writer,
                submit=self._submit,
                replaying=self._replaying,
                applied=self._applied,
                serving=self._serve,
                wrote=self._metrics.log.entry_written,
                patience_s=self._broker_away_s_max,
            )
            self._bases = LogBases(
                self._log,
                self._admin,
                encode=self._own,
                lost=self._base_lost,
                trimmed=self._trimmed,
            )
            try:
                await self._log.run()
            except FencedError as error:
                self._metrics.fenced.inc()
                log.warning("coordinator_fenced", coordinator=self.coordinator, why=error.detail)
            finally:
                self._stop_serving()
            if not self.assigned:
                return
            await asyncio.sleep(random.uniform(0, FENCED_DELAY_S_MAX))  # noqa: S311 - B4, no secret

    def requests_received(self, value: bytes | None) -> None:
        """One value of txn-requests: a framed batch of requests, or a bare one.

        Raises:
            DecodeError: not requests; nothing of the value was appended.
        """
        received = [(data, requests.decode_request(data)) for data in decode_value(value)]
        self._metrics.requests.inc(len(received))
        if self.serving:
            self._take(received)
        else:
            self._held.append(received)

    def _take(self, received: list[tuple[bytes, Request]]) -> None:
        self._run(self._machine.appending())
        for data, request in received:
            self._request_received(data, request)

    def _request_received(self, data: bytes, request: Request) -> None:
        assert self._log is not None
        body = request.body
        if isinstance(body, Describe | ListTransactions):
            self._answer_after_noop(request, lambda: self._machine.asked(request))
            return
        if isinstance(body, DescribeCoordinator):
            self._answer_after_noop(request, lambda: self.stats(live_entries=True))
            return
        if isinstance(body, Open) and not 1 <= body.timeout_ms <= self._txn_timeout_ms_max:
            reason = f"time-out of {body.timeout_ms} ms; allowed are 1..{self._txn_timeout_ms_max}"
            self._answer_after_noop(request, lambda: Refused(reason))
            return
        self._log.append(txn_log.encode_request_record(data, self._clock.now_ms()))

    def _answer_after_noop(self, request: Request, answer: Callable[[], Answer]) -> None:
        def settled(result: BatchPosition | ConnectorError) -> None:
            if not isinstance(result, ConnectorError):
                self._reply(request, answer())

        assert self._log is not None
        self._log.append(self._own(Noop()), settled)

    def _own(self, body: txn_log.OwnBody) -> bytes:
        return txn_log.encode_own(body, self._clock.now_ms())

    def _replaying(self, log_start: Offset) -> None:
        self._machine = Coordinator(self.coordinator, log_start)

    def _serve(self) -> None:
        assert self._log is not None
        assert self._log.epoch is not None
        effects = self._machine.serve(self._log.epoch, self._clock.now_ms())
        replayed_ms = round((asyncio.get_running_loop().time() - self._ownership.began_s) * 1000)
        self._ownership.recovery_ms = replayed_ms
        log.info("coordinator_serving", coordinator=self.coordinator, replayed_ms=replayed_ms)
        self._run(effects)
        while self._held:
            self._take(self._held.popleft())

    def _stop_serving(self) -> None:
        assert self._bases is not None
        self._bases.close()
        self._replies.drop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _applied(self, offset: Offset, records: Sequence[bytes], own: bool) -> None:  # noqa: FBT001 - OwnedLog's call
        decoded = [txn_log.decode(record) for record in records]
        if own:
            self._ownership.wrote(decoded)
        self._run(self._machine.applied(offset, decoded, own=own, now_ms=self._clock.now_ms()))

    def _run(self, effects: Sequence[CoordinatorEffect]) -> None:
        for effect in effects:
            match effect:
                case Reply(request, answer):
                    self._reply(request, answer)
                case EndParticipants():
                    self._end_participants(effect)
                case ReadEnds(sequence, partitions):
                    self._ends.read(partitions, self._ends_reader(sequence))
                case Propose():
                    self._propose(effect)
                case WriteBase(as_of, state):
                    assert self._bases is not None
                    self._bases.write(as_of, encode_state(state))
                case Trim(offset):
                    assert self._bases is not None
                    self._bases.trim(offset)
        self._arm()

    def _propose(self, effect: Propose) -> None:
        body = effect.body
        log_now = self._log

        def settled(result: BatchPosition | ConnectorError) -> None:
            lost = isinstance(result, ConnectorError) and self._log is log_now
            if lost and self.serving and not isinstance(body, ForgetClients):
                self._lost(body.sequence, type(body).__name__)

        assert log_now is not None
        log_now.append(self._own(body), settled)

    def _base_lost(self, as_of: EndOffset) -> None:
        if self.serving:
            self._machine.base_lost(as_of, self._clock.now_ms())
            self._arm()

    def _trimmed(self, offset: Offset, done: bool) -> None:  # noqa: FBT001 - LogBases' call
        if done:
            self._machine.trimmed(offset)
        else:
            self._machine.trim_failed(offset, self._clock.now_ms())
            self._arm()

    def _ends_reader(self, sequence: int) -> Callable[..., None]:
        machine = self._machine

        def ends_read(ends: dict[TopicPartition, int] | None) -> None:
            if self._machine is not machine or not self.serving:
                return
            if ends is None:
                self._lost(sequence, "reading end offsets")
            else:
                self._run(machine.ends_read(sequence, ends))  # type: ignore[arg-type]

        return ends_read

    def _end_participants(self, effect: EndParticipants) -> None:
        """Writes the markers and settles the subscriptions (C4).

        Ended is proposed once all of them are acknowledged.
        """
        machine, sequence = self._machine, effect.sequence
        missing = len(effect.markers) + len(effect.subscriptions)
        self._markers_pending += len(effect.markers)
        failed = False

        def acknowledged(*, done: bool) -> None:
            nonlocal missing, failed
            missing -= 1
            failed = failed or not done
            if missing or self._machine is not machine or not self.serving:
                return
            if failed:
                self._lost(sequence, "telling its participants")
            else:
                self._run(machine.participants_ended(sequence, self._clock.now_ms()))

        def marked(error: ConnectorError | None, _offset: int) -> None:
            self._markers_pending -= 1
            acknowledged(done=error is None)

        if not missing:
            self._run(machine.participants_ended(sequence, self._clock.now_ms()))
        for marker in effect.markers:
            self._write_marker(marker, marked)
        txn = TxnId(self.coordinator, sequence)
        body = Settle(txn, effect.committed, machine.state.low_watermark)
        for subscription in effect.subscriptions:
            self._settle(subscription, body, lambda answer: acknowledged(done=answer == Done()))

    def _write_marker(self, marker: markers.Marker, delivered: Delivered) -> None:
        partition = system_partition(marker.data, self._partition_count)
        try:
            self._writer.append(
                TopicPartition(topics.TXN_MARKERS, partition),
                markers.encode_value(marker),
                delivered,
                key=markers.encode_key(marker.data, marker.txn),
            )
        except RetriableError as error:  # queue full: the whole set is written again later
            delivered(error, -1)

    def _settle(
        self,
        subscription: SubscriptionId,
        body: Settle,
        answered: Callable[[AckAnswer | StilltideError], None],
    ) -> None:
        partition = system_partition(subscription.data, self._partition_count)
        self._acks.tell(partition, AckQuestion(subscription, body), answered)

    def _lost(self, sequence: int, step: str) -> None:
        """A step towards a transaction's end failed; the machine takes it again."""
        log.warning("step_failed", coordinator=self.coordinator, sequence=sequence, step=step)
        self._machine.lost(sequence, self._clock.now_ms())
        self._arm()

    def _arm(self) -> None:
        """Sees to a tick at the machine's deadline; one that comes too early does no harm."""
        deadline_ms = self._machine.deadline_ms
        if deadline_ms is None:
            return
        if self._timer is not None:
            if self._timer_ms <= deadline_ms:
                return
            self._timer.cancel()
        delay_s = max(0, deadline_ms - self._clock.now_ms()) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._ticked)
        self._timer_ms = deadline_ms

    def _ticked(self) -> None:
        self._timer = None
        if self.serving:
            self._run(self._machine.tick(self._clock.now_ms()))

    def _reply(self, request: Request, answer: Answer) -> None:
        data = requests.encode_response(Response(request.number, self.coordinator, answer))
        self._replies.add(request.client_id, request.reply_partition, data)


def _nonce_of(record: bytes) -> bytes:
    body = txn_log.decode(record).body
    if not isinstance(body, Fence):
        raise DecodeError(
            f"an entry without epoch and serial that is no fence, but {type(body).__name__}",
            hint="something else writes to this topic",
        )
    return body.nonce


# Nobody's time-out hangs on when a fence or no-op was appended, so they carry no time.
CODEC = LogCodec(
    fence=lambda nonce: txn_log.encode_own(Fence(nonce), 0),
    noop=lambda: txn_log.encode_own(Noop(), 0),
    nonce_of=_nonce_of,
)
"""What every owner of a partition of txn-log says in it."""
