"""Runs one pending-ack store: requests in, log and answers out.

*Source*: protocols.md G, B4, C1. Requests are appended as they arrived and answered from the entry
read back, so no request is held in memory on its way through the log.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from connectors.base import Clock, Connector, LogWriter
from connectors.errors import ConnectorError, FencedError
from pipeline.core.buffered_log.accumulator import BatchLimits, WriteEntry
from pipeline.core.pending_ack.machine import PendingAckStore
from pipeline.drivers.owned_log import LogCodec, OwnedLog
from pipeline.drivers.replies import Replies
from schemas import pending_ack, topics
from schemas.acknowledgements import AckAnswer, AckRequest, AckResponse, DescribeAcks
from schemas.errors import DecodeError
from schemas.framing import decode_value
from schemas.transactions import Fence, Noop
from schemas.values import BatchPosition, TopicPartition

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
        submit: hands log entries to the buffered-writer agent.
        limits: of the buffered writer.
        clock: wall clock.
        broker_away_s_max: how long the broker may be away before `run` gives up.
    """

    def __init__(
        self,
        partition: int,
        connector: Connector,
        *,
        writer: LogWriter,
        submit: Callable[[OwnedLog, WriteEntry], None],
        limits: BatchLimits,
        clock: Clock,
        broker_away_s_max: float = 60.0,
    ) -> None:
        self.partition = partition
        self.assigned = True
        self._connector = connector
        self._writer = writer
        self._submit = submit
        self._limits = limits
        self._clock = clock
        self._broker_away_s_max = broker_away_s_max
        self._held: deque[list[tuple[bytes, AckRequest]]] = deque(maxlen=HELD_BATCHES_MAX)
        self._machine = PendingAckStore()
        self._replies = Replies(writer)
        self._log: OwnedLog | None = None

    @property
    def serving(self) -> bool:
        """Whether it owns its log just now; what arrives before is held, for a while."""
        return self._log is not None and self._log.epoch is not None

    async def run(self) -> None:
        """Owns the log until cancelled, or fenced and not assigned any more.

        Fenced while still assigned, it begins again after a random delay: the fence may be the
        late one of a dead process (B4).
        """
        while True:
            self._machine = PendingAckStore()
            self._log = OwnedLog(
                self._connector,
                TopicPartition(topics.PENDING_ACK_LOG, self.partition),
                CODEC,
                self._limits,
                writer=self._writer,
                submit=self._submit,
                applied=self._applied,
                serving=self._serve,
                patience_s=self._broker_away_s_max,
            )
            try:
                await self._log.run()
            except FencedError as error:
                log.warning("pending_acks_fenced", partition=self.partition, why=error.detail)
            finally:
                self._replies.drop()
            if not self.assigned:
                return
            await asyncio.sleep(random.uniform(0, FENCED_DELAY_S_MAX))  # noqa: S311 - B4, no secret

    def requests_received(self, value: bytes | None) -> None:
        """One value of ack-requests: a framed batch of requests, or a bare one.

        Raises:
            DecodeError: not requests; nothing of the value was appended.
        """
        received = [(data, pending_ack.decode_request(data)) for data in decode_value(value)]
        if self.serving:
            self._take(received)
        else:
            self._held.append(received)

    def _take(self, received: list[tuple[bytes, AckRequest]]) -> None:
        for data, request in received:
            if isinstance(request.body, DescribeAcks):
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
                self._reply(request, self._machine.asked(request))

        self._append(pending_ack.encode_own(Noop(), self._clock.now_ms()), settled)

    def _serve(self) -> None:
        log.info("pending_acks_serving", partition=self.partition)
        self._machine.serve()
        while self._held:
            self._take(self._held.popleft())

    def _applied(self, records: Sequence[bytes], own: bool) -> None:  # noqa: FBT001 - OwnedLog's call
        decoded = [pending_ack.decode(record) for record in records]
        for effect in self._machine.applied(decoded, own=own):
            self._reply(effect.request, effect.answer)

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
