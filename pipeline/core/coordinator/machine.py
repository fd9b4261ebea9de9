"""The coordinator: answers requests, completes ending transactions, aborts timed-out ones.

*Source*: docs/protocols C0, C1, C2, C3, C4, C5, C7, C8, C11; E1; L1.
*Invariants*: C1 an answer is sent only after the request's own entry, or a no-op appended after
the request arrived, is effective; C3 on abort the end offset is read after ABORTING is effective;
C4 Ended is proposed only after every marker of the transaction is acknowledged and every
subscription settled; L1 no time-out ends a prepared transaction; C5 a commit that waits until its
outcome is visible is answered once, when every marker of its transaction is acknowledged. A failed
step is repeated after `STEP`, which is harmless: markers have keys, and settling or ending a
transaction twice changes nothing.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stilltide.pipeline.core.buffered_log.bases import BaseKeeper, BaseLimits, Entry, Recovery, Trim
from stilltide.pipeline.core.coordinator.barrier import Announced, barrier_of
from stilltide.pipeline.core.coordinator.base import (
    base_of,
    install,
    item_count,
    live_keys,
    state_of,
)
from stilltide.pipeline.core.coordinator.due import DueTransactions, TimingOut
from stilltide.pipeline.core.coordinator.outcomes import OUTCOME_HISTORY
from stilltide.pipeline.core.coordinator.state import CoordinatorState, OngoingTransaction, TxnState
from stilltide.schemas.coordinator.markers import Barrier, Marker
from stilltide.schemas.coordinator.transactions import (
    Abort,
    AddPartitions,
    Answer,
    BaseState,
    Decide,
    Describe,
    End,
    Ended,
    ForgetClients,
    ListTransactions,
    LogBody,
    Open,
    Opened,
    Preparation,
    Release,
    TimedOut,
    TxnLogRecord,
    TxnRequest,
    WriteBarrier,
)
from stilltide.schemas.coordinator.txn_log import decode_state
from stilltide.schemas.log_frames import Base, Noop
from stilltide.schemas.retry import STEP
from stilltide.schemas.service.envelopes import NO_CLIENT, Done, Request, client_key
from stilltide.schemas.topics import TXN_LOG
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition, TxnId


class Reply(NamedTuple):
    """Effect: send this answer to the client; its content is durable."""

    request: TxnRequest
    answer: Answer


class VisibilityWaits:
    """Commit requests that are answered when the transaction's outcome is visible (C5)."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[TxnRequest]] = {}

    def __len__(self) -> int:
        """How many transactions have a waiting request."""
        return len(self._waiting)

    def add(self, sequence: int, request: TxnRequest) -> None:
        """Keeps the request until the outcome of this transaction is visible."""
        self._waiting.setdefault(sequence, []).append(request)

    def visible(self, sequence: int) -> list[Reply]:
        """Readers can see the outcome: returns the answers to all requests that wait for it."""
        return [Reply(request, Done()) for request in self._waiting.pop(sequence, ())]


ENDED_DELAY_MS = 100
"""How long `Ended` waits for another entry to be appended with, since no client waits for it."""

TIMING_OUT_MAX = 1000
"""Transactions, and their partitions, whose time-outs are on their way at once (C16): others end as
fast as these do, and requests have their turn between the steps."""

FORGET_EVERY_MS = 60 * 1000
"""How often the coordinator looks for silent clients to forget."""


@dataclass(frozen=True, slots=True)
class Propose:
    """Effect: append this record; report `lost` if the record will never be effective."""

    body: TimedOut | Ended | ForgetClients


@dataclass(frozen=True, slots=True)
class ReadEnds:
    """Effect: read the partitions' end offsets, from now on; report `ends_read`.

    ABORTING is durable (C3).
    """

    sequence: int
    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True)
class EndParticipants:
    """Effect: write these markers and settle these subscriptions.

    COMMITTING or ABORTING is durable; report `participants_ended` when all are acknowledged (C4).
    `client_key` is the key of the transaction's client, whose acknowledgements alone count (C11).
    """

    sequence: int
    committed: bool
    markers: Sequence[Marker]
    subscriptions: Sequence[SubscriptionId] = ()
    client_key: bytes = NO_CLIENT


@dataclass(frozen=True, slots=True)
class AnnouncePartitions:
    """Effect: tell the snapshot writers that transactions have registered these data partitions.

    Each owner announces a data partition once. A lost announcement does no harm (E7).
    """

    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True)
class WriteBase:
    """Effect: append this state in pieces, in order; report `base_lost` if one is lost (C8)."""

    as_of: EndOffset
    state: BaseState


CoordinatorEffect = (
    Reply | Propose | ReadEnds | EndParticipants | AnnouncePartitions | WriteBase | Trim
)


class Coordinator:
    """The coordinator of one txn-log partition, from one owner's fence to the next owner's.

    The owner applies the log's records from the log start on. Before `serve` the coordinator
    answers no request and completes no transaction.

    Args:
        coordinator: number of the coordinator, which is its partition of txn-log.
        log_start: offset of the first entry that will be applied, or lower; above 0 the log was
            trimmed, and the state comes from its first base (C8).
        base_limits: when a base is due.
        outcome_history: how many sequences' outcomes are remembered (C12).
        wall_ahead_ms: wall time less the time of `now_ms`; the time at which an earlier owner's
            transaction was opened is wall time (C7).

    Attributes:
        read_to: end of the entries that were applied.
        changed_at: offset of the last of them that may have changed the state.
    """

    def __init__(
        self,
        coordinator: int,
        log_start: Offset = Offset(0),  # noqa: B008 - an int with a type's name
        *,
        base_limits: BaseLimits | None = None,
        outcome_history: int = OUTCOME_HISTORY,
        wall_ahead_ms: int = 0,
    ) -> None:
        self.coordinator = coordinator
        self.state = CoordinatorState(outcome_history)
        self.bases = BaseKeeper(log_start, base_limits or BaseLimits())
        partition = TopicPartition(TXN_LOG, coordinator)
        self._recovery = Recovery(partition, log_start, base_of)
        self._serving = False
        self._due = DueTransactions(wall_ahead_ms)
        self._driving: set[int] = set()  # sequences whose next step is on its way
        self._timing_out = TimingOut()
        self._waiting = VisibilityWaits()
        self._ending: dict[int, None] = {}  # sequences whose `Ended` waits for an entry to join
        self._ending_ms = 0
        self._forget_ms = 0
        self._announced = Announced()
        self.read_to = EndOffset(log_start)
        self.changed_at = log_start

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` is due next; None before `serve`."""
        if not self._serving:
            return None
        times = [self._forget_ms]
        if self._due.first_ms is not None and self._timing_out.total < TIMING_OUT_MAX:
            times.append(self._due.first_ms)
        if self._ending:
            times.append(self._ending_ms)
        base_ms = self.bases.next_due_ms(idle=not self.state.transactions)
        if base_ms is not None:
            times.append(base_ms)
        return min(times)

    def applied(
        self, offset: Offset, records: Sequence[TxnLogRecord], *, own: bool, now_ms: int
    ) -> list[CoordinatorEffect]:
        """The records of the next effective entry, in order; `own`: appended by this owner.

        Answers come before other effects, so that no client waits until those are carried out.

        Raises:
            DecodeError: the base of a trimmed log cannot be understood.
            LogTrimmedError: no base is among the first records of a trimmed log.
        """
        effects: list[CoordinatorEffect] = []
        self.read_to = EndOffset(offset + 1)
        base, entries = self._recovery.entry_read(Entry(offset, records))
        if base is not None:
            install(decode_state(base), self.state)
        for entry in entries:
            self.bases.entry_read(entry.offset, len(entry.records))
            for index, record in enumerate(entry.records):
                self._apply(index, record, own=own, now_ms=now_ms, effects=effects)
        effects.sort(key=lambda it: not isinstance(it, Reply))
        return effects

    def serve(self, epoch: Offset, now_ms: int) -> list[CoordinatorEffect]:
        """Replay is over: sets time-outs of open transactions (C7), completes ending ones (C4).

        Raises:
            LogTrimmedError: the log was trimmed, and no base was found in it.
        """
        self._recovery.check_complete()
        self._serving = True
        self.state.outcomes.count_from_here()
        self.bases.served(epoch, now_ms)
        self._forget_ms = now_ms + FORGET_EVERY_MS
        effects: list[CoordinatorEffect] = []
        for txn in self.state.transactions.values():
            if txn.state is TxnState.OPEN:
                when_ms = self._due.opened_ms(txn.opened_at_ms, now_ms) + txn.timeout_ms
                self._due.add(when_ms, txn.sequence, self.state.transactions)
            else:  # nothing is due of a prepared one (L1)
                self._drive(txn.sequence, effects)
        return effects

    def asked(self, request: TxnRequest, *, operator: bool) -> Answer:
        """The answer to a question, once a no-op appended after the question is read back (C1).

        Only operators (C15) and holders of a token (L2) are told of transactions of others.
        """
        owner = None if operator else client_key(request.client_id)
        if isinstance(request.body, Describe):
            sequence, secret_hash = request.body
            return self.state.describe(sequence, owner, secret_hash)
        assert isinstance(request.body, ListTransactions)
        page = self.state.list_transactions(owner, request.body.first_sequence)
        if request.body.first_sequence:
            return page
        states = Counter(txn.state for txn in self.state.transactions.values())
        return page._replace(
            as_of=self.read_to,
            aborts=self.state.causes.told(),
            open_count=states[TxnState.OPEN],
            committing_count=states[TxnState.COMMITTING],
            aborting_count=states[TxnState.ABORTING],
            prepared_count=states[TxnState.PREPARED],
            decisions=self.state.decisions,
        )

    def barrier(self, asked: WriteBarrier, partition_count: int) -> Barrier:
        """The answer to a probe, once a no-op appended after the probe is read back (E1).

        The driver writes the barrier at once.
        """
        assert self._serving
        return barrier_of(self.state, self.coordinator, asked, partition_count)

    def ends_read(
        self, sequence: int, ends: Mapping[TopicPartition, EndOffset]
    ) -> list[CoordinatorEffect]:
        """Takes end offsets for an aborting transaction; `ends` omits deleted partitions (E8)."""
        txn = self.state.transactions.get(sequence)
        if txn is None or txn.state is not TxnState.ABORTING:
            return []
        found = {data: (ends.get(data), 0) for data in txn.partitions}
        return [_participants(self.coordinator, txn, found)]

    def participants_ended(self, sequence: int, now_ms: int) -> list[CoordinatorEffect]:
        """Takes note that every marker is durable and every subscription settled (C4)."""
        if sequence not in self.state.transactions:
            return []
        if sequence in self._timing_out:  # others wait for it to end
            self._ending_ms = now_ms
        elif not self._ending:
            self._ending_ms = now_ms + ENDED_DELAY_MS
        self._ending[sequence] = None
        return [*self._waiting.visible(sequence)]

    def appending(self) -> list[CoordinatorEffect]:
        """Records are about to be appended: returns the proposals that waited for an entry."""
        ending, self._ending = self._ending, {}
        return [Propose(Ended(sequence)) for sequence in ending]

    def lost(self, sequence: int, now_ms: int) -> None:
        """A step of this transaction's end failed; it is repeated after `STEP`."""
        self._driving.discard(sequence)
        self._timing_out.remove(sequence)
        self._due.add(now_ms + STEP.wait_ms(), sequence, self.state.transactions)

    def tick(self, now_ms: int) -> list[CoordinatorEffect]:
        """Does what is due: time-outs, repeated steps, clients to forget, bases and trims."""
        effects: list[CoordinatorEffect] = []
        while self._timing_out.total < TIMING_OUT_MAX:
            sequence = self._due.take(now_ms)
            if sequence is None:
                break
            self._drive(sequence, effects, due=True)
        if self._ending and self._ending_ms <= now_ms:
            effects += self.appending()
        if self._serving and self._forget_ms <= now_ms:
            self._forget_ms = now_ms + FORGET_EVERY_MS
            silent = self.state.silent_clients()
            if silent:
                effects.append(Propose(ForgetClients(silent)))
        effects += self.bases.trims_due(now_ms)
        idle = not self.state.transactions
        as_of = self.bases.due(now_ms, idle=idle, live_count=lambda: item_count(self.state))
        if as_of is not None:
            effects.append(WriteBase(as_of, state_of(self.state)))
        return effects

    def base_lost(self, as_of: EndOffset, now_ms: int) -> None:
        """A piece of a base will never be effective; another base follows."""
        self.bases.lost(as_of, now_ms)

    def trimmed(self, offset: Offset) -> None:
        """The log begins at `offset` now."""
        self.bases.trimmed(offset)

    def trim_failed(self, offset: Offset, now_ms: int) -> None:
        """Whether the log was trimmed is unknown; untrimmed records only take space."""
        self.bases.trim_failed(offset, now_ms)

    def _apply(
        self,
        index: int,
        record: TxnLogRecord,
        *,
        own: bool,
        now_ms: int,
        effects: list[CoordinatorEffect],
    ) -> None:
        """Applies one record of the entry just read."""
        answer = self.state.apply(record)
        body = record.body
        if isinstance(body, Request):
            self.bases.liveness.record_live(index, live_keys(body, answer, self.state))
            if isinstance(body.body, Release):
                self._released(body.body)
        elif isinstance(body, Ended):
            if body.sequence not in self.state.transactions:
                self.bases.liveness.ended(body.sequence)
        elif isinstance(body, Base):
            effects += self.bases.piece_read(body)
            return
        elif isinstance(body, Noop):
            return
        self.bases.changed(now_ms)
        self.changed_at = Offset(self.read_to - 1)
        if self._serving:
            self._follow(record.body, answer, own=own, now_ms=now_ms, effects=effects)

    def _released(self, body: Release) -> None:
        for sequence in body.sequences:
            if sequence not in self.state.transactions:
                self.bases.liveness.ended(sequence)
                self._timing_out.remove(sequence)

    def _follow(
        self,
        body: LogBody,
        answer: Answer | None,
        *,
        own: bool,
        now_ms: int,
        effects: list[CoordinatorEffect],
    ) -> None:
        """Adds the effects that an applied record has once the coordinator serves."""
        if isinstance(body, Request):
            if answer is not None and own:
                self._answer(body, answer, effects)
            if isinstance(body.body, (Open, AddPartitions)) and isinstance(answer, (Opened, Done)):
                new = self._announced.new_among(body.body.partitions)
                if new:
                    effects.append(AnnouncePartitions(new))
            if isinstance(answer, Opened):
                self._opened(answer, now_ms)
            elif isinstance(body.body, (End, Abort, Decide)):
                self._drive(body.body.sequence, effects)
        elif isinstance(body, TimedOut):
            txn = self.state.transactions.get(body.sequence)
            if txn is not None and txn.state is TxnState.PREPARED:  # the time-out came too late
                self._timing_out.remove(body.sequence)
            self._drive(body.sequence, effects)
        elif isinstance(body, Ended):
            self._driving.discard(body.sequence)
            self._timing_out.remove(body.sequence)
            effects += self._waiting.visible(body.sequence)

    def _opened(self, opened: Opened, now_ms: int) -> None:
        for sequence in range(
            opened.first_sequence, opened.first_sequence + opened.transaction_count
        ):
            txn = self.state.transactions.get(sequence)
            if txn is not None:  # a repeated answer may name transactions that have ended since
                # C7: not by the time in the record, since the wall clock may have jumped.
                self._due.add(now_ms + txn.timeout_ms, sequence, self.state.transactions)

    def _answer(
        self, request: TxnRequest, answer: Answer, effects: list[CoordinatorEffect]
    ) -> None:
        body = request.body
        if (
            isinstance(body, (End, Decide))
            and body.wait_visible
            and isinstance(answer, Done)
            and body.sequence in self.state.transactions
        ):
            self._waiting.add(body.sequence, request)
        else:
            effects.append(Reply(request, answer))

    def _drive(self, sequence: int, effects: list[CoordinatorEffect], *, due: bool = False) -> None:
        """Takes the next step towards the transaction's end, unless a step is under way.

        The first step of an open transaction is its time-out, once that is `due` (C7).
        """
        txn = self.state.transactions.get(sequence)
        if txn is None or sequence in self._driving:
            return
        if txn.state is TxnState.OPEN:
            if due and sequence not in self._timing_out:
                self._timing_out.add(sequence, 1 + txn.registrations)
                effects.append(Propose(TimedOut(sequence)))
            return
        if txn.state is TxnState.PREPARED:
            return  # L1
        self._driving.add(sequence)
        if txn.state is TxnState.ABORTING and txn.partitions:
            effects.append(ReadEnds(sequence, tuple(txn.partitions)))  # C3
            return
        # A registered partition in which the commit counts no record (C6) needs no marker.
        written = {one.data: (one.end_offset, one.record_count) for one in txn.written}
        effects.append(_participants(self.coordinator, txn, written))


def preparations(state: CoordinatorState) -> Iterator[Preparation]:
    """Of the transactions that wait for a decision; walks over open ones if there are any."""
    if any(share.prepared for share in state.held.values()):
        for txn in state.transactions.values():
            if txn.state is TxnState.PREPARED and txn.preparation is not None:
                yield txn.preparation


def _participants(
    coordinator: int,
    txn: OngoingTransaction,
    ends: Mapping[TopicPartition, tuple[EndOffset | None, int]],
) -> EndParticipants:
    """The effect that ends a transaction everywhere, with end offset and count by partition."""
    txn_id = TxnId(coordinator, txn.sequence)
    committed = txn.state is TxnState.COMMITTING
    return EndParticipants(
        txn.sequence,
        committed,
        [
            Marker(data, txn_id, committed, one.start_offset, *end, one.topic_id)
            for data, end in ends.items()
            for one in (txn.partitions[data],)
        ],
        txn.subscriptions,
        txn.client_key,
    )
