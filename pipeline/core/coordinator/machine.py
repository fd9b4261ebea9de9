"""One owner's coordinator: answers, drives ending transactions to their end, times out.

*Source*: protocols.md C0-C5, C7.
*Invariants*: C1 an answer leaves only after the request's own entry, or a no-op appended after
it arrived, is effective; C3 on abort the end offset is read after ABORTING is effective; C4 Ended
is proposed only after every marker of the transaction is acknowledged and every subscription
settled. What is lost on the way is done again after `RETRY_MS`; markers have keys, settling and
Ended repeat harmlessly.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.core.coordinator.state import CoordinatorState, Transaction, TxnState
from schemas.markers import Marker
from schemas.transactions import (
    Answer,
    Describe,
    Done,
    End,
    Ended,
    ForgetClients,
    ListTransactions,
    Opened,
    Request,
    TimedOut,
    TxnLogRecord,
)
from schemas.values import EndOffset, SubscriptionId, TopicPartition, TxnId

RETRY_MS = 1000

ENDED_DELAY_MS = 100
"""Nobody waits for `Ended`, so it joins the next entry; this long it waits for one."""

FORGET_EVERY_MS = 60 * 1000


@dataclass(frozen=True, slots=True)
class Reply:
    """Effect: send this answer; what it says is durable."""

    request: Request
    answer: Answer


@dataclass(frozen=True, slots=True)
class Propose:
    """Effect: append this record; report `proposal_lost` if it will never be effective."""

    body: TimedOut | Ended | ForgetClients


@dataclass(frozen=True, slots=True)
class ReadEnds:
    """Effect: read the partitions' end offsets, from now on; ABORTING is durable (C3)."""

    sequence: int
    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True)
class EndParticipants:
    """Effect: write these markers and settle these subscriptions.

    COMMITTING or ABORTING is durable; report `participants_ended` when all are acknowledged (C4).
    """

    sequence: int
    committed: bool
    markers: Sequence[Marker]
    subscriptions: Sequence[SubscriptionId] = ()


CoordinatorEffect = Reply | Propose | ReadEnds | EndParticipants


class Coordinator:
    """The owner's side of C for one ownership of coordinator `coordinator`.

    Records are applied from the log start on; nothing is answered or driven before `serve`.
    """

    def __init__(self, coordinator: int) -> None:
        self.coordinator = coordinator
        self.state = CoordinatorState()
        self._serving = False
        self._due: list[tuple[int, int]] = []  # (when_ms, sequence), a heap
        self._driving: set[int] = set()  # sequences whose participants are being told
        self._waiting: dict[int, list[Request]] = {}
        self._ending: dict[int, None] = {}  # sequences whose `Ended` waits for an entry to join
        self._ending_ms = 0
        self._forget_ms = 0

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` is due next; None before `serve`."""
        if not self._serving:
            return None
        due_ms = min(self._due[0][0], self._forget_ms) if self._due else self._forget_ms
        return min(due_ms, self._ending_ms) if self._ending else due_ms

    def applied(
        self, records: Sequence[TxnLogRecord], *, own: bool, now_ms: int
    ) -> list[CoordinatorEffect]:
        """The records of one effective entry, in order; `own`: appended by this owner."""
        effects: list[CoordinatorEffect] = []
        for record in records:
            answer = self.state.apply(record)
            if not self._serving:
                continue
            body = record.body
            if isinstance(body, Request):
                if answer is not None and own:
                    self._answer(body, answer, effects)
                if isinstance(answer, Opened):
                    self._opened(answer)
                elif isinstance(body.body, End):
                    self._drive(body.body.sequence, now_ms, effects)
            elif isinstance(body, TimedOut):
                self._drive(body.sequence, now_ms, effects)
            elif isinstance(body, Ended):
                self._driving.discard(body.sequence)
                effects += self._visible(body.sequence)
        return effects

    def serve(self, now_ms: int) -> list[CoordinatorEffect]:
        """Replay is over: arms every open transaction, drives every ending one (C4)."""
        self._serving = True
        self._forget_ms = now_ms + FORGET_EVERY_MS
        effects: list[CoordinatorEffect] = []
        for txn in self.state.transactions.values():
            if txn.state is TxnState.OPEN:
                self._arm(txn.opened_at_ms + txn.timeout_ms, txn.sequence)
            else:
                self._drive(txn.sequence, now_ms, effects)
        return effects

    def asked(self, request: Request) -> Answer:
        """Answer to a request that changes nothing, once a no-op appended after it is read (C1)."""
        if isinstance(request.body, Describe):
            return self.state.describe(request.body.sequence)
        assert isinstance(request.body, ListTransactions)
        return self.state.list_transactions()

    def ends_read(
        self, sequence: int, ends: Mapping[TopicPartition, EndOffset]
    ) -> list[CoordinatorEffect]:
        """End offsets for an aborting transaction; a partition that is gone is missing (E8)."""
        txn = self.state.transactions.get(sequence)
        if txn is None or txn.state is not TxnState.ABORTING:
            return []
        return [self._participants(txn, {data: (ends.get(data), 0) for data in txn.partitions})]

    def participants_ended(self, sequence: int, now_ms: int) -> list[CoordinatorEffect]:
        """Every marker is durable, every subscription settled; the transaction may end (C4)."""
        if sequence not in self.state.transactions:
            return []
        if not self._ending:
            self._ending_ms = now_ms + ENDED_DELAY_MS
        self._ending[sequence] = None
        return self._visible(sequence)

    def appending(self) -> list[CoordinatorEffect]:
        """Records are about to be appended: what waits for an entry to join goes first."""
        ending, self._ending = self._ending, {}
        return [Propose(Ended(sequence)) for sequence in ending]

    def lost(self, sequence: int, now_ms: int) -> None:
        """Something on the way to this transaction's end failed; it is done again later."""
        self._driving.discard(sequence)
        self._arm(now_ms + RETRY_MS, sequence)

    def tick(self, now_ms: int) -> list[CoordinatorEffect]:
        """Proposes what is due: time-outs, another try, clients to forget."""
        effects: list[CoordinatorEffect] = []
        while self._due and self._due[0][0] <= now_ms:
            _, sequence = heapq.heappop(self._due)
            self._drive(sequence, now_ms, effects)
        if self._ending and self._ending_ms <= now_ms:
            effects += self.appending()
        if self._serving and self._forget_ms <= now_ms:
            self._forget_ms = now_ms + FORGET_EVERY_MS
            silent = tuple(
                client_id
                for client_id, client in self.state.clients.items()
                if client.silent(now_ms)
            )
            if silent:
                effects.append(Propose(ForgetClients(silent)))
        return effects

    def _opened(self, opened: Opened) -> None:
        for sequence in range(
            opened.first_sequence, opened.first_sequence + opened.transaction_count
        ):
            txn = self.state.transactions.get(sequence)
            if txn is not None:  # a repeated answer may name what has ended since
                self._arm(txn.opened_at_ms + txn.timeout_ms, sequence)

    def _answer(self, request: Request, answer: Answer, effects: list[CoordinatorEffect]) -> None:
        body = request.body
        if (
            isinstance(body, End)
            and body.wait_visible
            and isinstance(answer, Done)
            and body.sequence in self.state.transactions
        ):
            self._waiting.setdefault(body.sequence, []).append(request)
        else:
            effects.append(Reply(request, answer))

    def _visible(self, sequence: int) -> list[CoordinatorEffect]:
        """Readers can know the outcome: answers those who wait for that (C5)."""
        return [Reply(request, Done()) for request in self._waiting.pop(sequence, ())]

    def _arm(self, when_ms: int, sequence: int) -> None:
        held = self.state.transactions
        if len(self._due) > 2 * len(held) + 1000:  # most of them ended long before their time
            self._due = [due for due in self._due if due[1] in held]
            heapq.heapify(self._due)
        heapq.heappush(self._due, (when_ms, sequence))

    def _drive(self, sequence: int, now_ms: int, effects: list[CoordinatorEffect]) -> None:
        """Takes the next step that the transaction's state asks for, unless it is under way."""
        txn = self.state.transactions.get(sequence)
        if txn is None or sequence in self._driving:
            return
        if txn.state is TxnState.OPEN:
            if txn.opened_at_ms + txn.timeout_ms <= now_ms:
                effects.append(Propose(TimedOut(sequence)))
            return
        self._driving.add(sequence)
        if txn.state is TxnState.ABORTING and txn.partitions:
            effects.append(ReadEnds(sequence, tuple(txn.partitions)))
            return
        # No record lies where a commit counts none (C6), so nobody waits for an outcome there.
        written = {one.data: (one.end_offset, one.record_count) for one in txn.written}
        effects.append(self._participants(txn, written))

    def _participants(
        self, txn: Transaction, ends: Mapping[TopicPartition, tuple[EndOffset | None, int]]
    ) -> EndParticipants:
        txn_id = TxnId(self.coordinator, txn.sequence)
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
        )
