"""Runs one pending-ack store: takes requests, and writes log entries and answers.

*Source*: docs/protocols G.
"""

from collections.abc import Sequence

from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits
from stilltide.pipeline.core.buffered_log.bases import Trim
from stilltide.pipeline.core.pending_ack.machine import (
    AckReply,
    PendingAckEffect,
    PendingAckStore,
    WriteAckBase,
)
from stilltide.pipeline.drivers.buffered_log.owned_log import log_codec
from stilltide.pipeline.drivers.pending_ack.stats import store_stats, with_subscriptions
from stilltide.pipeline.drivers.service.owner import OwnerDeps, OwnerDriver
from stilltide.pipeline.metrics.worker import OwnerMetrics
from stilltide.schemas import topics
from stilltide.schemas.framing import encode_request_record
from stilltide.schemas.log_frames import LogFrame
from stilltide.schemas.pending_ack import codec as pending_ack
from stilltide.schemas.pending_ack.acknowledgements import (
    AckAnswer,
    AckRequest,
    AckResponse,
    DescribeAcks,
    DescribeStore,
    PendingAckRecord,
    StoreStats,
)
from stilltide.schemas.pending_ack.log_base import encode_state
from stilltide.schemas.values import Offset, TopicPartition


class PendingAckDriver(OwnerDriver[PendingAckStore, AckRequest]):
    """One pending-ack store, for as long as its partition is assigned to this worker.

    Args:
        partition: number of the partition of pending-ack-log and ack-requests.
        deps: dependencies shared with other owners.
        limits: thresholds of the buffered writer.
        metrics: metrics of this store.
    """

    def __init__(
        self, partition: int, deps: OwnerDeps, *, limits: BatchLimits, metrics: OwnerMetrics
    ) -> None:
        self.partition = partition
        log_partition = TopicPartition(topics.PENDING_ACK_LOG, partition)
        super().__init__(log_partition, CODEC, deps, limits=limits, metrics=metrics)

    def stats(self) -> StoreStats:
        """The store's figures without those of single subscriptions, only while it serves."""
        assert self._log is not None
        return store_stats(self._machine, self._log, self._limits, self._ownership)

    def refuse(self, value: bytes | None, reason: str) -> None:
        """Answers nobody while this store has ended (B8): its answers have no general refusal."""

    def _new_machine(self, log_start: Offset) -> PendingAckStore:
        return PendingAckStore(self.partition, log_start)

    def _decode_request(self, data: bytes) -> AckRequest:
        return pending_ack.decode_request(data)

    def _own(self, body: LogFrame) -> bytes:
        return pending_ack.encode_own(body, self._deps.clock.now_ms())

    def _take(self, received: Sequence[tuple[bytes, AckRequest]]) -> None:
        for data, request in received:
            if isinstance(request.body, DescribeAcks | DescribeStore):
                self._answer_after_noop(request)
            else:
                at_ms = self._deps.clock.now_ms()
                logged = PendingAckRecord(request, at_ms)
                self._append(encode_request_record(data, at_ms), decoded=logged)

    def _answer_after_noop(self, request: AckRequest) -> None:
        self._after_noop(lambda: self._reply(request, self._answer(request)))

    def _answer(self, request: AckRequest) -> AckAnswer:
        if isinstance(request.body, DescribeStore):
            return with_subscriptions(self.stats(), self._machine, request.body)
        return self._machine.asked(request)

    def _carry_out(self, effect: PendingAckEffect) -> None:
        match effect:
            case AckReply(request, answer):
                self._reply(request, answer)
            case WriteAckBase(as_of, state):
                self._write_base(as_of, encode_state(state))
            case Trim(offset):
                self._trim(offset)

    def _reply(self, request: AckRequest, answer: AckAnswer) -> None:
        response = AckResponse(request.number, self.partition, answer)
        data = pending_ack.encode_response(response)
        self._respond(request.client_id, request.reply_partition, data)


CODEC = log_codec(pending_ack.encode_own, pending_ack.decode)
