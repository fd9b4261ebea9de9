"""Runs one coordinator: takes requests, and writes log entries, markers and answers.

*Source*: docs/protocols C1, C2, C4, C15, C16, C18, E1, J2, L2.
*Invariants*: L2 no secret of a token is appended; C15 what operators ask for is taken from their
topic alone, and of clients everything else; C16 no request is appended that its client has no room
for.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple, assert_never

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.ports.writers import LogWriter
from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits
from stilltide.pipeline.core.buffered_log.bases import Liveness, Trim
from stilltide.pipeline.core.coordinator.admission import (
    Admission,
    ClientLimits,
    estimated_bytes,
    without_secret,
    wrong_values,
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
    preparations,
)
from stilltide.pipeline.core.coordinator.outcomes import OUTCOME_HISTORY
from stilltide.pipeline.core.coordinator.state import TxnState
from stilltide.pipeline.drivers.buffered_log.owned_log import LogCodec
from stilltide.pipeline.drivers.coordinator.end_offsets import EndOffsets, KnownEnds
from stilltide.pipeline.drivers.coordinator.known_topics import KnownTopics, Missing
from stilltide.pipeline.drivers.coordinator.marker_log import MarkerLog
from stilltide.pipeline.drivers.service.ask.requests import AckRequests
from stilltide.pipeline.drivers.service.ended import OwnerEnd
from stilltide.pipeline.drivers.service.hindrances import Hindrances
from stilltide.pipeline.drivers.service.own.owner import OwnerDeps, Received, ServiceOwner
from stilltide.pipeline.logging import get_logger
from stilltide.pipeline.metrics.worker import OwnerMetrics
from stilltide.schemas import topics
from stilltide.schemas.coordinator import requests, txn_log
from stilltide.schemas.coordinator.markers import UNASKED, encode_barrier, encode_barrier_key
from stilltide.schemas.coordinator.requests import encode_request
from stilltide.schemas.coordinator.transactions import (
    Abort,
    AddPartitions,
    AddSubscriptions,
    Answer,
    CoordinatorStats,
    Decide,
    Describe,
    DescribeCoordinator,
    End,
    EndPrepared,
    ForgetClients,
    Greeting,
    Hello,
    ListTransactions,
    LiveEntry,
    LogLiveness,
    Open,
    Prepare,
    Release,
    RequestBody,
    TxnLogRecord,
    TxnRequest,
    WriteBarrier,
)
from stilltide.schemas.coordinator.txn_log import encode_state
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.framing import decode_value, encode_request_record
from stilltide.schemas.pending_ack.acknowledgements import AckAnswer, AckQuestion, Settle
from stilltide.schemas.service.envelopes import (
    Done,
    RefusalCode,
    Refused,
    Request,
    Response,
    Unreadable,
)
from stilltide.schemas.topics import system_partition
from stilltide.schemas.values import BatchPosition, Offset, TopicPartition, TxnId

log = get_logger(__name__)


LIVE_ENTRIES_MAX = 1000
"""Entries with live records that an answer names; entries after them are only counted."""


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


class RequestIntake:
    """The requests that arrive at a coordinator, from one owner's fence to the next owner's.

    Args:
        machine: the coordinator.
        admission: what clients have room for.
        known_topics: looks up the topics of registrations.
        known_ends: proves the end offsets of commits.
        owner: the owner of the log.
    """

    def __init__(
        self,
        machine: Coordinator,
        admission: Admission,
        known_topics: KnownTopics,
        known_ends: KnownEnds,
        owner: "CoordinatorOwner",
    ) -> None:
        self._machine = machine
        self._admission = admission
        self._known_topics = known_topics
        self._known_ends = known_ends
        self._owner = owner
        self._over = False

    def take(self, requests: Sequence[tuple[bytes, TxnRequest]], *, operator: bool) -> None:
        """Takes requests and their bytes; `operator`: from the topic of operators (C15)."""
        take = self._operator_asked if operator else self._client_asked
        for data, request in requests:
            body = request.body
            if isinstance(body, Unreadable):
                self._refuse(request, body.refusal)
            else:
                take(data, request, body)

    def read_back(self, request: TxnRequest) -> None:
        """A request of this owner was read back, or will never be."""
        self._admission.ended(request)

    def close(self) -> None:
        """Another ownership has begun: topics that are still looked up lead to nothing."""
        self._over = True

    def _client_asked(self, data: bytes, request: TxnRequest, body: RequestBody) -> None:
        """Takes a request from a topic that applications may write."""
        match body:
            case Abort() | Decide() | ListTransactions() | DescribeCoordinator() | WriteBarrier():
                reason = f"{type(body).__name__} is taken from {topics.OPERATOR_REQUESTS} alone"
                self._refuse(request, Refused(reason, RefusalCode.OPERATORS_ONLY))
            case Describe():
                self._described(request)
            case Hello(nonce):
                greet = partial(self._owner.greet, request.client_id, nonce)
                self._owner.answer_after_noop(request, greet)
            case (
                Open()
                | AddPartitions()
                | AddSubscriptions()
                | End()
                | Prepare()
                | EndPrepared()
                | Release()
            ):
                if self._admission.in_flight(request):
                    return  # a repeat that came before the answer, which is on its way (C1b)
                refused = self._admission.take(request, body)
                if refused is not None:
                    self._refuse(request, refused)
                elif isinstance(body, Open | AddPartitions) and body.partitions:
                    self._register(data, request, body)
                elif isinstance(body, (End, Prepare)) and self._known_ends.unproved(body.written):
                    self._prove(data, request, body)
                elif isinstance(body, EndPrepared):
                    logged = without_secret(request, body)
                    self._owner.log_request(encode_request(logged), logged)
                else:
                    self._owner.log_request(data, request)
            case _:
                assert_never(body)

    def _operator_asked(self, data: bytes, request: TxnRequest, body: RequestBody) -> None:
        """Takes a request from the topic that only operators and workers may write (C15)."""
        match body:
            case Describe() | ListTransactions():
                self._owner.answer_after_noop(
                    request, lambda: self._machine.asked(request, operator=True)
                )
            case DescribeCoordinator():
                stats = partial(self._owner.stats, live_entries=True)
                self._owner.answer_after_noop(request, stats)
            case WriteBarrier():
                self._owner.barrier_asked(request, body)
            case Abort() | Decide():
                wrong = wrong_values(request, body)
                if wrong:
                    self._refuse(request, Refused(wrong, RefusalCode.MALFORMED))
                else:
                    if isinstance(body, Decide):
                        txn = TxnId(self._machine.coordinator, body.sequence)
                        log.info(
                            "operator_decides",
                            txn=str(txn),
                            committed=body.committed,
                            reason=body.reason,
                            decided_by=body.decided_by,
                        )
                    self._owner.log_request(data, request)
            case (
                Open()
                | AddPartitions()
                | AddSubscriptions()
                | End()
                | Prepare()
                | EndPrepared()
                | Release()
                | Hello()
            ):
                reason = f"{type(body).__name__} is taken from {topics.TXN_REQUESTS} alone"
                self._refuse(request, Refused(reason, RefusalCode.UNSUPPORTED))
            case _:
                assert_never(body)

    def _described(self, request: TxnRequest) -> None:
        admission = self._admission
        refused = admission.ask(request.client_id)
        if refused is not None:
            self._refuse(request, refused)
            return

        def answer() -> Answer:
            admission.answered(request.client_id)
            return self._machine.asked(request, operator=False)

        self._owner.answer_after_noop(
            request, answer, lambda: admission.answered(request.client_id)
        )

    def _register(self, data: bytes, request: TxnRequest, body: Open | AddPartitions) -> None:
        """Logs a registration, once it is known that its partitions may be registered (C16, C18).

        The client repeats a request that is lost with a look.
        """

        def looked(finding: Refused | Missing | None) -> None:
            if self._over or not self._owner.serving:
                return
            if finding is None:
                self._owner.log_request(data, request)
                return
            self._admission.ended(request)
            if isinstance(finding, Refused):
                self._refuse(request, finding)

        topics, allowed = self._known_topics, body.allow_compacted
        partitions = [named.data for named in body.partitions]
        if unknown := topics.unknown(partitions, allow_compacted=allowed):
            topics.look(unknown, looked, allow_compacted=allowed)
        else:
            self._owner.log_request(data, request)

    def _prove(self, data: bytes, request: TxnRequest, body: End | Prepare) -> None:
        """Logs a commit, or what is prepared for one, once its end offsets can be true (C16)."""

        def proved(wrong: str | None) -> None:
            if self._over or not self._owner.serving:
                return
            if wrong == "":
                self._owner.log_request(data, request)
                return
            self._admission.ended(request)
            if wrong is not None:  # else the client repeats its request
                self._refuse(request, Refused(wrong, RefusalCode.MALFORMED))

        self._known_ends.prove(body.written, proved)

    def _refuse(self, request: TxnRequest, refused: Refused) -> None:
        self._owner.answer_after_noop(request, lambda: refused)


class CoordinatorOwner(ServiceOwner[Coordinator, RequestBody | Unreadable]):
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

    @property
    def deciders(self) -> set[str]:
        """Who decides the transactions that are prepared, by what this owner has read (L6)."""
        return {it.decider for it in preparations(self._machine.state)} if self.serving else set()

    def stats(self, *, live_entries: bool = False) -> CoordinatorStats:
        """The coordinator's figures, only while it serves.

        Costs a walk over open transactions and clients; `live_entries` adds one over entries.
        """
        machine = self._machine
        state = machine.state
        count = Counter(txn.state for txn in state.transactions.values())
        return CoordinatorStats(
            log=self._log_figures(),
            next_sequence=state.next_sequence,
            low_watermark=state.low_watermark,
            open_count=count[TxnState.OPEN],
            committing_count=count[TxnState.COMMITTING],
            aborting_count=count[TxnState.ABORTING],
            has_served=self._figures.has_served,
            markers_pending=self._markers_pending,
            client_count=len(state.clients),
            answer_count=sum(len(client.answers) for client in state.clients.values()),
            liveness=_log_liveness(machine.bases.liveness, entries=live_entries),
            ends=self._deps.ended_owners(),
            compacted=self._deps.compacted_topics(),
            as_of=machine.read_to,
            changed_at=machine.changed_at,
            prepared_count=count[TxnState.PREPARED],
            oldest_prepared_ms=min((it.prepared_at_ms for it in preparations(state)), default=0),
            commit_count=state.outcomes.commit_count,
            abort_count=state.outcomes.abort_count,
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
            self,
        )
        return machine

    _decode_request = staticmethod(txn_log.decode_request)

    def _take(self, received: Received[RequestBody | Unreadable]) -> None:
        self._run(self._machine.appending())
        assert self._intake is not None
        _tell_hindrance(received, self._owned, self._deps.hindrances, self._reply)
        self._intake.take(received.requests, operator=received.operator)

    def _hold(self, received: Received[RequestBody | Unreadable]) -> None:
        _tell_hindrance(received, self._owned, self._deps.hindrances, self._reply)
        super()._hold(received)

    def applied(self, offset: Offset | None, records: Sequence[TxnLogRecord], *, own: bool) -> None:
        """Applies records; their clients have room again, also for those that are lost."""
        super().applied(offset, records, own=own)
        if own and self._intake is not None:
            for record in records:
                if isinstance(record.body, Request):
                    self._intake.read_back(record.body)  # or lost: a repeat is logged again

    def greet(self, client_id: bytes, nonce: bytes) -> Greeting:
        """Where the worker takes direct lines (J2)."""
        return self._deps.lines.greet(self._owned, client_id, nonce)

    def log_request(self, data: bytes, request: TxnRequest) -> None:
        """Appends a request's bytes to the log."""
        at_ms = self._deps.clock.now_ms()
        self.append(encode_request_record(data, at_ms), decoded=TxnLogRecord(request, at_ms))

    def answer_after_noop(
        self,
        request: TxnRequest,
        answer: Callable[[], Answer],
        lost: Callable[[], None] | None = None,
    ) -> None:
        """Answers after all appends up to now were read back; `lost`: as in `_after_noop`."""
        self._after_noop(lambda: self._reply(request, answer()), lost, asker=request.client_id)

    def barrier_asked(self, request: TxnRequest, asked: WriteBarrier) -> None:
        """Writes a barrier after all markers of ended transactions; answers once durable (E1).

        The snapshot writer asks again for a barrier that is lost.
        """
        count = self._markers.partition_count
        if asked.marker_partition >= count:
            reason = f"marker partition {asked.marker_partition}; there are {count}"
            refused = Refused(reason, RefusalCode.MALFORMED)
            self.answer_after_noop(request, lambda: refused)
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
                self._bases.write(as_of, encode_state(state))
            case Trim(offset):
                self._bases.trim(offset)

    def _propose(self, effect: Propose) -> None:
        body = effect.body
        log_now = self._log

        def appended(result: BatchPosition | ConnectorError) -> None:
            lost = isinstance(result, ConnectorError) and self._log is log_now
            if lost and self.serving and not isinstance(body, ForgetClients):
                self._lost(body.sequence, type(body).__name__)

        self.append(self.own(body), appended)

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
        """Writes the markers and settles the pending acknowledgements (C4, G Settling).

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

    def _reply(self, request: TxnRequest, answer: Answer) -> None:
        data = requests.encode_response(Response(request.number, self.coordinator, answer))
        self._respond(request.client_id, request.reply_partition, data)


def _tell_hindrance(
    received: Received[RequestBody | Unreadable],
    owned: TopicPartition,
    hindrances: Hindrances,
    reply: Callable[[Request, Answer], None],
) -> None:
    """Tells operators at once what keeps records from the log: any other answer waits (C17)."""
    why = hindrances.why(str(owned)) if received.operator else ""
    for _, request in received.requests if why else ():
        if isinstance(request.body, DescribeCoordinator):
            reply(request, Refused(why))


def _log_liveness(liveness: Liveness, *, entries: bool) -> LogLiveness:
    """The part of the log that is still needed; with `entries` also entries with live records."""
    live = islice(liveness.live_entries().items(), LIVE_ENTRIES_MAX) if entries else ()
    shown = tuple(LiveEntry(offset, bits) for offset, bits in live)
    first = liveness.first_live_offset
    return LogLiveness(first, liveness.live_count, liveness.dead_count, shown)


def _nobody_waits(_error: ConnectorError | None, _offset: int) -> None:
    """A snapshot writer that misses this barrier learns of the partition by its first outcome."""


CODEC = LogCodec(txn_log.encode_own, txn_log.decode)
