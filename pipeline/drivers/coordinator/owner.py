"""Runs one coordinator: takes requests, and writes log entries, markers and answers.

*Source*: docs/protocols C, E1.
*Invariants*: C15 what operators ask for is taken from their topic alone, and of clients everything
else; C16 no request is appended that its client has no room for.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.ports.writers import LogWriter
from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits
from stilltide.pipeline.core.buffered_log.bases import Trim
from stilltide.pipeline.core.coordinator.admission import (
    Admission,
    ClientLimits,
    estimated_bytes,
)
from stilltide.pipeline.core.coordinator.machine import (
    AnnouncePartitions,
    Coordinator,
    CoordinatorEffect,
    EndParticipants,
    Propose,
    ReadEnds,
    Reply,
    WriteBase,
)
from stilltide.pipeline.core.coordinator.outcomes import OUTCOME_HISTORY
from stilltide.pipeline.drivers.buffered_log.owned_log import log_codec
from stilltide.pipeline.drivers.coordinator.end_offsets import EndOffsets, KnownEnds
from stilltide.pipeline.drivers.coordinator.intake import RequestIntake, RequestIntakeCalls
from stilltide.pipeline.drivers.coordinator.known_topics import KnownTopics
from stilltide.pipeline.drivers.coordinator.marker_log import MarkerLog
from stilltide.pipeline.drivers.coordinator.stats import coordinator_stats, log_liveness
from stilltide.pipeline.drivers.service.ended import OwnerEnd
from stilltide.pipeline.drivers.service.hindrances import Hindrances
from stilltide.pipeline.drivers.service.kinds.pending_ack import AckRequests
from stilltide.pipeline.drivers.service.owner import OwnerDeps, OwnerDriver, Received
from stilltide.pipeline.logging import get_logger
from stilltide.pipeline.metrics.worker import OwnerMetrics
from stilltide.schemas import topics
from stilltide.schemas.coordinator import requests, txn_log
from stilltide.schemas.coordinator.markers import UNASKED, encode_barrier, encode_barrier_key
from stilltide.schemas.coordinator.transactions import (
    Answer,
    CoordinatorStats,
    DescribeCoordinator,
    Done,
    ForgetClients,
    RefusalCode,
    Refused,
    Request,
    Response,
    TxnLogRecord,
    WriteBarrier,
)
from stilltide.schemas.coordinator.txn_log import encode_state
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.framing import decode_value, encode_request_record
from stilltide.schemas.pending_ack.acknowledgements import AckAnswer, AckQuestion, Settle
from stilltide.schemas.topics import system_partition
from stilltide.schemas.values import BatchPosition, Offset, TopicPartition, TxnId

log = get_logger(__name__)


class Shares(NamedTuple):
    """What clients may hold at the coordinators of a worker (C16).

    Attributes:
        limits: bounds of each client.
        known_topics: looks up the topics of registrations.
        state_bytes: bytes of the states of all coordinators, by estimate.
    """

    limits: ClientLimits
    known_topics: KnownTopics
    state_bytes: Callable[[], int]


class CoordinatorDriver(OwnerDriver[Coordinator, Request]):
    """One coordinator, for as long as its partition is assigned to this worker.

    Args:
        coordinator: number of the coordinator: its partition of txn-log and txn-requests.
        deps: dependencies shared with other owners.
        marker_writer: appends markers; shared with other coordinators.
        ends: reads end offsets; shared with other coordinators.
        acks: asks the pending-ack stores; shared with other coordinators.
        limits: thresholds of the buffered writer.
        partition_count: number of partitions of txn-markers and ack-requests.
        metrics: metrics of this coordinator.
        shares: what clients may hold (C16); shared with other coordinators.
        outcome_history: how many sequences' outcomes are remembered (C12).
    """

    def __init__(
        self,
        coordinator: int,
        deps: OwnerDeps,
        *,
        marker_writer: LogWriter,
        ends: EndOffsets,
        acks: AckRequests,
        limits: BatchLimits,
        partition_count: int,
        metrics: OwnerMetrics,
        shares: Shares,
        outcome_history: int = OUTCOME_HISTORY,
    ) -> None:
        self.coordinator = coordinator
        self._shares = shares
        self._outcome_history = outcome_history
        self._intake: RequestIntake | None = None
        self._known_ends = KnownEnds(ends)
        log_partition = TopicPartition(topics.TXN_LOG, coordinator)
        super().__init__(log_partition, CODEC, deps, limits=limits, metrics=metrics)
        self._markers = MarkerLog(marker_writer, partition_count)
        self._ends = ends
        self._acks = acks
        self._markers_pending = 0

    @property
    def state_bytes(self) -> int:
        """About how many bytes the coordinator's state takes."""
        return estimated_bytes(self._machine.state)

    def stats(self, *, live_entries: bool = False) -> CoordinatorStats:
        """The coordinator's figures, only while it serves; `live_entries` adds a walk over them."""
        assert self._log is not None
        figures = coordinator_stats(
            self._machine.state, self._log, self._limits, self._ownership, self._markers_pending
        )
        liveness = log_liveness(self._machine.bases.liveness, entries=live_entries)
        return figures._replace(
            liveness=liveness,
            ends=self._deps.ended_owners(),
            compacted=self._deps.compacted_topics(),
            as_of=self._machine.read_to,
            changed_at=self._machine.changed_at,
        )

    def refuse(self, value: bytes | None, end: OwnerEnd) -> None:
        """Refuses requests for figures while it has ended; other clients are told of the end (B8).

        Raises:
            DecodeError: the value holds no requests.
        """
        received = [self._decode_request(data) for data in decode_value(value)]
        figures = [it for it in received if isinstance(it.body, DescribeCoordinator)]
        for request in figures:
            self._reply(request, Refused(end.text(asyncio.get_running_loop().time())))
        others = [it for it in received if it not in figures]
        self._deps.replies.tell(others, end.notice(self.coordinator))

    def _new_machine(self, log_start: Offset) -> Coordinator:
        clock = self._deps.clock
        machine = Coordinator(
            self.coordinator,
            log_start,
            outcome_history=self._outcome_history,
            wall_ahead_ms=clock.now_ms() - clock.monotonic_ms(),
        )
        if self._intake is not None:
            self._intake.close()
        self._intake = RequestIntake(
            machine,
            Admission(machine.state, self._shares.limits, self._shares.state_bytes),
            self._shares.known_topics,
            self._known_ends,
            RequestIntakeCalls(
                lambda: self.serving,
                self._log_request,
                self._answer_after_noop,
                partial(self._deps.lines.greet, self._owned),
                self._barrier_asked,
                lambda: self.stats(live_entries=True),
            ),
        )
        return machine

    def _decode_request(self, data: bytes) -> Request:
        return txn_log.decode_request(data)

    def _own(self, body: txn_log.OwnBody) -> bytes:
        return txn_log.encode_own(body, self._deps.clock.now_ms())

    def _take(self, received: Received[Request]) -> None:
        self._run(self._machine.appending())
        assert self._intake is not None
        _tell_hindrance(received, self._owned, self._deps.hindrances, self._reply)
        self._intake.take(received.requests, operator=received.operator)

    def _hold(self, received: Received[Request]) -> None:
        _tell_hindrance(received, self._owned, self._deps.hindrances, self._reply)
        super()._hold(received)

    def _applied(self, offset: Offset | None, records: Sequence[TxnLogRecord], own: bool) -> None:  # noqa: FBT001 - OwnedLog's call
        super()._applied(offset, records, own)
        if own and self._intake is not None:
            for record in records:
                if isinstance(record.body, Request):
                    self._intake.read_back(record.body)  # or lost: a repeat is logged again

    def _log_request(self, data: bytes, request: Request) -> None:
        at_ms = self._deps.clock.now_ms()
        self._append(encode_request_record(data, at_ms), decoded=TxnLogRecord(request, at_ms))

    def _answer_after_noop(
        self, request: Request, answer: Callable[[], Answer], lost: Callable[[], None] | None = None
    ) -> None:
        self._after_noop(lambda: self._reply(request, answer()), lost, asker=request.client_id)

    def _barrier_asked(self, request: Request, asked: WriteBarrier) -> None:
        """Writes a barrier after all markers of ended transactions; answers once durable (E1).

        The snapshot writer asks again for a barrier that is lost.
        """
        count = self._markers.partition_count
        if asked.marker_partition >= count:
            reason = f"marker partition {asked.marker_partition}; there are {count}"
            refused = Refused(reason, RefusalCode.MALFORMED)
            self._answer_after_noop(request, lambda: refused)
            return

        def written(error: ConnectorError | None, _offset: int) -> None:
            if error is None:
                self._reply(request, Done())

        def write() -> None:
            value = encode_barrier(self._machine.barrier(asked, count))
            key = encode_barrier_key(self.coordinator)
            self._markers.append(asked.marker_partition, key, value, written)

        self._after_noop(write)

    def _announce(self, partitions: Sequence[TopicPartition]) -> None:
        """Writes a barrier without a probe to each marker partition of these data partitions."""
        count = self._markers.partition_count
        key = encode_barrier_key(self.coordinator)
        for marker_partition in {system_partition(data, count) for data in partitions}:
            asked = WriteBarrier(marker_partition, UNASKED)
            value = encode_barrier(self._machine.barrier(asked, count))
            self._markers.append(marker_partition, key, value, _nobody_waits)

    def _carry_out(self, effect: CoordinatorEffect) -> None:
        match effect:
            case Reply(request, answer):
                self._reply(request, answer)
            case EndParticipants():
                self._end_participants(effect)
            case ReadEnds(sequence, partitions):
                self._ends.read(partitions, self._ends_reader(sequence))
            case Propose():
                self._propose(effect)
            case AnnouncePartitions(partitions):
                self._announce(partitions)
            case WriteBase(as_of, state):
                self._write_base(as_of, encode_state(state))
            case Trim(offset):
                self._trim(offset)

    def _propose(self, effect: Propose) -> None:
        body = effect.body
        log_now = self._log

        def appended(result: BatchPosition | ConnectorError) -> None:
            lost = isinstance(result, ConnectorError) and self._log is log_now
            if lost and self.serving and not isinstance(body, ForgetClients):
                self._lost(body.sequence, type(body).__name__)

        self._append(self._own(body), appended)

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
        """Writes the markers and settles the pending acknowledgements (C4).

        The end of the transaction is proposed once all of them are acknowledged. The answers of the
        same entry are sent first: clients work on while a hundred transactions' markers are made.
        """
        self._deps.replies.send()
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
                self._run(machine.participants_ended(sequence, self._deps.clock.monotonic_ms()))

        def marked(error: ConnectorError | None, _offset: int) -> None:
            self._markers_pending -= 1
            acknowledged(done=error is None)

        def settled(answer: AckAnswer | StilltideError) -> None:
            acknowledged(done=answer == Done())

        if not missing:
            self._run(machine.participants_ended(sequence, self._deps.clock.monotonic_ms()))
        for marker in effect.markers:
            self._markers.write(marker, marked)
        if not effect.subscriptions:
            return
        txn = TxnId(self.coordinator, sequence)
        low_watermark = machine.state.low_watermark
        body = Settle(txn, effect.committed, low_watermark, effect.client_key)
        for subscription in effect.subscriptions:
            store = system_partition(subscription.data, self._markers.partition_count)
            self._acks.tell(store, AckQuestion(subscription, body), settled)

    def _lost(self, sequence: int, step: str) -> None:
        """A step towards a transaction's end failed; the machine repeats it later."""
        tell = log.warning if self._deps.seldom.due(step) else log.debug
        tell("step_failed", coordinator=self.coordinator, sequence=sequence, step=step)
        self._machine.lost(sequence, self._deps.clock.monotonic_ms())
        self._arm()

    def _reply(self, request: Request, answer: Answer) -> None:
        data = requests.encode_response(Response(request.number, self.coordinator, answer))
        self._respond(request.client_id, request.reply_partition, data)


def _tell_hindrance(
    received: Received[Request],
    owned: TopicPartition,
    hindrances: Hindrances,
    reply: Callable[[Request, Answer], None],
) -> None:
    """Tells operators at once what keeps records from the log: any other answer waits (C17)."""
    why = hindrances.why(str(owned)) if received.operator else ""
    for _, request in received.requests if why else ():
        if isinstance(request.body, DescribeCoordinator):
            reply(request, Refused(why))


def _nobody_waits(_error: ConnectorError | None, _offset: int) -> None:
    """A snapshot writer that misses this barrier learns of the partition by its first outcome."""


CODEC = log_codec(txn_log.encode_own, txn_log.decode)
