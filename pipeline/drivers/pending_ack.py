"""Runs one pending-ack store: requests in, log and answers out.

*Source*: protocols.md G, B4, C1, C8. Requests are appended as they arrived and answered from the
entry read back, so no request is held in memory on its way through the log.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from connectors.base import Clock, Connector, LogAdmin, LogWriter
from connectors.errors import ConnectorError, FencedError
from pipeline.core.buffered_log.accumulator import BatchLimits, WriteEntry
from pipeline.core.buffered_log.bases import Trim
from pipeline.core.pending_ack.machine import PendingAckEffect, PendingAckStore, Reply, WriteBase
from pipeline.drivers.log_bases import LogBases
from pipeline.drivers.owned_log import LogCodec, OwnedLog
from pipeline.drivers.ownership import Ownership
from pipeline.drivers.pending_ack_stats import store_stats, with_subscriptions
from pipeline.drivers.replies import Replies
from pipeline.metrics import OwnerMetrics
from schemas import pending_ack, topics
from schemas.acknowledgements import (
    AckAnswer,
    AckRequest,
    AckResponse,
    DescribeAcks,
    DescribeStore,
    StoreStats,
)
from schemas.errors import DecodeError
from schemas.framing import decode_value
from schemas.pending_ack_base import encode_state
from schemas.transactions import Fence, Noop
from schemas.values import BatchPosition, EndOffset, Offset, TopicPartition

log = structlog.get_logger(__name__)

HELD_BATCHES_MAX = 1000
"""Batches of requests kept while the log is replayed; clients repeat what is dropped."""

FENCED_DELAY_S_MAX = 1.0


class PendingAckDriver:
    """One pending-ack store, for as long as its partition is assigned to this worker.

    Args:
        partition: of pending-ack-log and ack-requests.
        connector: the cluster.
        writer: appends entries and answers; shared with others.
        admin: trims the log; shared with others.
        submit: hands log entries to the buffered-writer agent.
        limits: of the buffered writer.
        clock: wall clock.
        metrics: where it counts.
        broker_away_s_max: how long the broker may be away before `run` gives up.
    """

    def __init__(
        self,
        partition: int,
        connector: Connector,
        *,
        writer: LogWriter,
        admin: LogAdmin,
        submit: Callable[[OwnedLog, WriteEntry], None],
        limits: BatchLimits,
        clock: Clock,
        metrics: OwnerMetrics,
        broker_away_s_max: float = 60.0,
    ) -> None:
        self.partition = partition
        self.assigned = True
        self._connector = connector
        self._writer = writer
        self._admin = admin
        self._submit = submit
        self._limits = limits
        self._clock = clock
        self._metrics = metrics
        self._broker_away_s_max = broker_away_s_max
        self._held: deque[list[tuple[bytes, AckRequest]]] = deque(maxlen=HELD_BATCHES_MAX)
        self._machine = PendingAckStore(partition)
        self._replies = Replies(writer, sent=metrics.answers.inc)
        self._log: OwnedLog | None = None
        self._bases: LogBases | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ownership = Ownership(0)

    @property
    def serving(self) -> bool:
        """Whether it owns its log just now; what arrives before is held, for a while."""
        return self._log is not None and self._log.epoch is not None

    def stats(self) -> StoreStats:
        """Its figures without those of subscriptions, only while it serves."""
        assert self._log is not None
        return store_stats(self._machine, self._log, self._limits, self._ownership)

    def limits_changed(self, limits: BatchLimits) -> None:
        """Other thresholds of the buffered writer, from now on (A7)."""
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
                TopicPartition(topics.PENDING_ACK_LOG, self.partition),
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
                encode=lambda piece: pending_ack.encode_own(piece, 0),
                lost=self._base_lost,
                trimmed=self._trimmed,
            )
            try:
                await self._log.run()
            except FencedError as error:
                self._metrics.fenced.inc()
                log.warning("pending_acks_fenced", partition=self.partition, why=error.detail)
            finally:
                self._stop_serving()
            if not self.assigned:
                return
            await asyncio.sleep(random.uniform(0, FENCED_DELAY_S_MAX))  # noqa: S311 - B4, no secret

    def requests_received(self, value: bytes | None) -> None:
        """One value of ack-requests: a framed batch of requests, or a bare one.

        Raises:
            DecodeError: not requests; nothing of the value was appended.
        """
        received = [(data, pending_ack.decode_request(data)) for data in decode_value(value)]
        self._metrics.requests.inc(len(received))
        if self.serving:
            self._take(received)
        else:
            self._held.append(received)

    def _take(self, received: list[tuple[bytes, AckRequest]]) -> None:
        for data, request in received:
            if isinstance(request.body, DescribeAcks | DescribeStore):
                self._answer_after_noop(request)
            else:
                self._append(pending_ack.encode_request_record(data, self._clock.now_ms()))

    def _append(
        self, record: bytes, settled: Callable[[BatchPosition | ConnectorError], None] | None = None
    ) -> None:
        assert self._log is not None
        self._log.append(record, settled)

    def _answer_after_noop(self, request: AckRequest) -> None:
        def settled(result: BatchPosition | ConnectorError) -> None:
            if not isinstance(result, ConnectorError):
                self._reply(request, self._answer(request))

        self._append(pending_ack.encode_own(Noop(), self._clock.now_ms()), settled)

    def _answer(self, request: AckRequest) -> AckAnswer:
        if isinstance(request.body, DescribeStore):
            return with_subscriptions(self.stats(), self._machine, request.body)
        return self._machine.asked(request)

    def _replaying(self, log_start: Offset) -> None:
        self._machine = PendingAckStore(self.partition, log_start)

    def _serve(self) -> None:
        assert self._log is not None
        assert self._log.epoch is not None
        self._machine.serve(self._log.epoch, self._clock.now_ms())
        replayed_ms = round((asyncio.get_running_loop().time() - self._ownership.began_s) * 1000)
        self._ownership.recovery_ms = replayed_ms
        log.info("pending_acks_serving", partition=self.partition, replayed_ms=replayed_ms)
        self._arm()
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
        decoded = [pending_ack.decode(record) for record in records]
        if own:
            self._ownership.wrote(decoded)
        self._run(self._machine.applied(offset, decoded, own=own, now_ms=self._clock.now_ms()))

    def _run(self, effects: Sequence[PendingAckEffect]) -> None:
        assert self._bases is not None
        for effect in effects:
            match effect:
                case Reply(request, answer):
                    self._reply(request, answer)
                case WriteBase(as_of, state):
                    self._bases.write(as_of, encode_state(state))
                case Trim(offset):
                    self._bases.trim(offset)
        self._arm()

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

    def _arm(self) -> None:
        """Sees to a tick at the machine's deadline; one that comes too early does no harm."""
        deadline_ms = self._machine.deadline_ms
        if deadline_ms is not None and self._timer is None:
            delay_s = max(0, deadline_ms - self._clock.now_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._ticked)

    def _ticked(self) -> None:
        self._timer = None
        if self.serving:
            self._run(self._machine.tick(self._clock.now_ms()))

    def _reply(self, request: AckRequest, answer: AckAnswer) -> None:
        response = AckResponse(request.number, self.partition, answer)
        data = pending_ack.encode_response(response)
        self._replies.add(request.client_id, request.reply_partition, data)


def _nonce_of(record: bytes) -> bytes:
    body = pending_ack.decode(record).body
    if not isinstance(body, Fence):
        raise DecodeError(
            f"an entry without epoch and serial that is no fence, but {type(body).__name__}",
            hint="something else writes to this topic",
        )
    return body.nonce


# Nothing hangs on when a fence or no-op was appended, so they carry no time.
CODEC = LogCodec(
    fence=lambda nonce: pending_ack.encode_own(Fence(nonce), 0),
    noop=lambda: pending_ack.encode_own(Noop(), 0),
    nonce_of=_nonce_of,
)
"""What every owner of a partition of pending-ack-log says in it."""
