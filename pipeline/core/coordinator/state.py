"""A coordinator's state after the effective records of its log, in log order.

*Source*: docs/protocols C0, C1b, C2, C6, C7, C11, L1, L2, L3, L7; states as in Pulsar's PIP-31.
*Invariants*: the same records give the same state and the same answers in every process; an
illegal request changes nothing; a repeated request has no second effect; only the client that
opened a transaction, or an operator, changes the transaction; a prepared one changes only by the
first decision of an operator or of a client that has shown its secret.
Settings have no influence: limits that a user sets are checked before a request is appended.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from stilltide.pipeline.core.coordinator.outcomes import (
    OUTCOME_HISTORY,
    AbortCauses,
    OutcomeHistory,
)
from stilltide.schemas.coordinator.transactions import (
    Abort,
    AbortCause,
    AddPartitions,
    AddSubscriptions,
    Answer,
    BaseOutcomes,
    Decide,
    Description,
    End,
    Ended,
    ForgetClients,
    Listed,
    Open,
    Opened,
    OperatorDecision,
    Preparation,
    Prepare,
    RecentAborts,
    Registered,
    Release,
    TimedOut,
    TxnLogRecord,
    TxnRequest,
    Unknown,
    Written,
)
from stilltide.schemas.service.envelopes import (
    NO_CLIENT,
    Done,
    RefusalCode,
    Refused,
    Request,
    client_key,
)
from stilltide.schemas.values import SubscriptionId, TopicPartition

FORGET_AFTER_MS = 60 * 60 * 1000
"""A client that has sent nothing for this long is forgotten, with its answers (C1b)."""

ANSWERS_PER_CLIENT_MAX = 65_536
"""Answers remembered for one client, far more than a client has open requests."""

LISTED_MAX, LISTED_REGISTRATIONS_MAX = 1000, 10_000
"""A page of transactions ends with that many of them, or when they have that many registrations."""

TRANSACTIONS_PER_OPEN_MAX = 1000

PREPARED_PER_CLIENT_MAX = 1000
"""Prepared transactions of one client; beyond, none can be prepared (L7)."""

DECISIONS_MAX = 100
"""Decisions of operators that are remembered; the oldest are forgotten first."""


class TxnState(Enum):
    """OPEN becomes PREPARED (L1); both become COMMITTING or ABORTING. Ended ones are not kept."""

    OPEN = "OPEN"
    PREPARED = "PREPARED"
    COMMITTING = "COMMITTING"
    ABORTING = "ABORTING"


@dataclass(slots=True)
class OngoingTransaction:
    """A transaction that has not ended; `client_key` is that of its owner (C11)."""

    sequence: int
    opened_at_ms: int
    timeout_ms: int
    partitions: dict[TopicPartition, Registered]
    subscriptions: tuple[SubscriptionId, ...] = ()
    state: TxnState = TxnState.OPEN
    written: tuple[Written, ...] = ()
    client_key: bytes = NO_CLIENT
    client_name: str = ""
    preparation: Preparation | None = None

    @property
    def registrations(self) -> int:
        """Number of registered partitions and subscriptions."""
        return len(self.partitions) + len(self.subscriptions)


@dataclass(slots=True)
class ClientMemory:
    """The answers that a client may still ask for again (C1b).

    Attributes:
        last_seen_ms: when the client's last request was appended.
        acked_through: number of the last request up to which the client has every answer.
        unknown_through: number up to which requests may have taken effect and been forgotten.
        answers: answers by the number of their request, above `acked_through`.
    """

    last_seen_ms: int = 0
    acked_through: int = 0
    unknown_through: int = 0
    answers: dict[int, Answer] = field(default_factory=dict[int, Answer])

    def silent(self, now_ms: int) -> bool:
        """Whether the client may be forgotten."""
        return self.last_seen_ms + FORGET_AFTER_MS <= now_ms

    def acked(self, through: int) -> int:
        """The client has every answer up to `through`; returns how many are forgotten."""
        before = len(self.answers)
        if through - self.acked_through > len(self.answers):
            self.answers = {n: answer for n, answer in self.answers.items() if n > through}
        else:
            for number in range(self.acked_through + 1, through + 1):
                self.answers.pop(number, None)
        self.acked_through = max(self.acked_through, through)
        return before - len(self.answers)


@dataclass(slots=True)
class Held:
    """What a client holds in its open and prepared transactions (C16).

    Attributes:
        transactions: number of them.
        registrations: number of their registered partitions and subscriptions.
        prepared: number of those that are prepared (L7).
    """

    transactions: int = 0
    registrations: int = 0
    prepared: int = 0


class CoordinatorState:
    """The transactions and clients of one coordinator; `apply` takes each effective record.

    Args:
        outcome_history: how many sequences' outcomes are remembered (C12).

    Attributes:
        next_sequence: sequence of the next transaction.
        outcomes: how the last transactions ended.
        causes: why the last aborted transactions were aborted.
        decisions: the last decisions of operators about prepared transactions (L3).
        transactions: transactions that have not ended, by sequence.
        clients: what is remembered of clients, by their keys (C15).
        held: what clients with open and prepared transactions hold, by their keys (C16).
        registration_count: registered partitions and subscriptions of all transactions.
        answer_count: answers that are remembered of all clients.
    """

    def __init__(self, outcome_history: int = OUTCOME_HISTORY) -> None:
        self.next_sequence = 0
        self.outcomes = OutcomeHistory(outcome_history)
        self.causes = AbortCauses()
        self.decisions: tuple[OperatorDecision, ...] = ()
        self.transactions: dict[int, OngoingTransaction] = {}
        self.clients: dict[bytes, ClientMemory] = {}
        self.held: dict[bytes, Held] = {}
        self.registration_count = 0
        self.answer_count = 0

    @property
    def low_watermark(self) -> int:
        """Every sequence below it has ended (C7)."""
        return next(iter(self.transactions), self.next_sequence)

    def apply(self, record: TxnLogRecord) -> Answer | None:
        """Applies one record; returns the answer if the record holds a request that needs one."""
        body = record.body
        if isinstance(body, Request):
            return self._request(body, record.at_ms)
        if isinstance(body, Ended):
            self._ended(body.sequence)
        elif isinstance(body, TimedOut):
            txn = self.transactions.get(body.sequence)
            if txn is not None and txn.state is TxnState.OPEN:  # C7: else it came too late
                self._leave_open(txn, TxnState.ABORTING)
                self.causes.aborted(body.sequence, AbortCause.TIMED_OUT)
        elif isinstance(body, ForgetClients):
            self._forget(body.client_keys, record.at_ms)
        return None

    def describe(self, sequence: int, owner: bytes | None, secret_hash: bytes = b"") -> Answer:
        """One transaction of the client `owner`, or of any client if that is None.

        Refused if it was never opened, or is another client's and the secret's hash is wrong (L2).
        """
        txn = self.transactions.get(sequence)
        if txn is not None:
            known = txn.preparation is not None and secret_hash == txn.preparation.secret_hash
            shown = known or owner in {None, txn.client_key}
            return _description(self, txn) if shown else _not_owner(txn)
        if sequence < self.next_sequence:
            committed = self.outcomes.has_committed(sequence)
            cause = self.causes.of(sequence) if committed is False else None
            return Description(sequence, "ENDED", 0, 0, (), committed=committed, cause=cause)
        return Refused(f"transaction {sequence} was never opened")

    def list_transactions(self, owner: bytes | None, first_sequence: int = 0) -> Listed:
        """A page of the transactions of the client `owner` (None: all) that have not ended.

        A page is bounded (`LISTED_MAX`, `LISTED_REGISTRATIONS_MAX`), so that no question keeps the
        coordinator from its other work (C16).
        """
        page: list[Description] = []
        registrations = 0
        for txn in self.transactions.values():
            if txn.sequence < first_sequence or owner not in {None, txn.client_key}:
                continue
            if len(page) == LISTED_MAX or registrations >= LISTED_REGISTRATIONS_MAX:
                return Listed(tuple(page), self.low_watermark, txn.sequence)
            page.append(_description(self, txn))
            registrations += txn.registrations
        return Listed(tuple(page), self.low_watermark)

    def _ended(self, sequence: int) -> None:
        txn = self.transactions.get(sequence)
        if txn is None or txn.state is TxnState.OPEN or txn.state is TxnState.PREPARED:
            return
        del self.transactions[sequence]
        self.registration_count -= txn.registrations
        self.outcomes.ended(sequence, committed=txn.state is TxnState.COMMITTING)

    def replace(
        self,
        next_sequence: int,
        transactions: Iterable[OngoingTransaction],
        clients: dict[bytes, ClientMemory],
        outcomes: BaseOutcomes,
        aborts: RecentAborts,
        *,
        decisions: tuple[OperatorDecision, ...] = (),
    ) -> None:
        """Takes over a base's content (C8)."""
        self.next_sequence = next_sequence
        self.causes.replace(aborts)
        self.decisions = decisions
        self.outcomes.replace(outcomes, next_sequence)
        self.transactions = {txn.sequence: txn for txn in transactions}
        self.clients = clients
        self.held = {}
        for txn in self.transactions.values():
            if txn.state is TxnState.OPEN:
                self._hold(txn.client_key, 1, txn.registrations)
            elif txn.state is TxnState.PREPARED:
                self._hold(txn.client_key, 1, txn.registrations).prepared += 1
        self.registration_count = sum(it.registrations for it in self.transactions.values())
        self.answer_count = sum(len(client.answers) for client in clients.values())

    def _hold(self, key: bytes, transactions: int, registrations: int) -> Held:
        """Counts, and returns, what a client holds more, or less, in undecided transactions."""
        share = self.held.get(key)
        if share is None:
            share = self.held[key] = Held()
        share.transactions += transactions
        share.registrations += registrations
        if not share.transactions:
            del self.held[key]
        return share

    def _leave_open(self, txn: OngoingTransaction, state: TxnState | None) -> None:
        """An open or prepared transaction is decided, or is released (None)."""
        share = self._hold(txn.client_key, -1, -txn.registrations)
        if txn.state is TxnState.PREPARED:
            share.prepared -= 1
        if state is None:
            del self.transactions[txn.sequence]
            self.registration_count -= txn.registrations
        else:
            txn.state = state

    def silent_clients(self) -> tuple[bytes, ...]:
        """Keys of the clients that may be forgotten, as far as the log tells the time.

        The last request of all tells it, since no clock of one owner is that of the others.
        """
        now_ms = max((client.last_seen_ms for client in self.clients.values()), default=0)
        return tuple(key for key, client in self.clients.items() if client.silent(now_ms))

    def _forget(self, client_keys: tuple[bytes, ...], at_ms: int) -> None:
        for key in client_keys:
            client = self.clients.get(key)
            # A request of the client may precede this record in the log (C0).
            if client is not None and client.silent(at_ms):
                del self.clients[key]
                self.answer_count -= len(client.answers)

    def _request(self, request: TxnRequest, at_ms: int) -> Answer | None:
        key = client_key(request.client_id)
        client = self.clients.get(key)
        if client is None:
            client = self.clients[key] = ClientMemory()
            if request.acked_through:  # the client was answered before, and then forgotten
                client.unknown_through = request.number
        client.last_seen_ms = max(client.last_seen_ms, at_ms)
        if request.acked_through > client.acked_through:
            self.answer_count -= client.acked(request.acked_through)
        if request.number <= client.acked_through:
            return None
        if request.number <= client.unknown_through:
            return Unknown()
        answer = client.answers.get(request.number)
        if answer is None:
            if len(client.answers) >= ANSWERS_PER_CLIENT_MAX:
                reason = f"more than {ANSWERS_PER_CLIENT_MAX} answers not acknowledged"
                return Refused(reason, RefusalCode.LIMIT)
            answer = client.answers[request.number] = self._change(request, key, at_ms)
            self.answer_count += 1
        return answer

    def _change(  # noqa: PLR0911 - one for each kind
        self, request: TxnRequest, key: bytes, at_ms: int
    ) -> Answer:
        body = request.body
        if isinstance(body, Open):
            return self._open(body, key, at_ms)
        if isinstance(body, Abort):
            return self._abort(body.sequence)
        if isinstance(body, End):
            return self._end(body, key)
        if isinstance(body, AddPartitions | AddSubscriptions):
            return self._register(body, key)
        if isinstance(body, Release):
            return self._release(body, key)
        if isinstance(body, Prepare):
            return self._prepare(body, key, at_ms)
        if isinstance(body, Decide):
            return self._decide(body, at_ms)
        raise AssertionError(f"{type(body).__name__} changes nothing and is never logged")

    def _open(self, body: Open, key: bytes, at_ms: int) -> Answer:
        if not 1 <= body.transaction_count <= TRANSACTIONS_PER_OPEN_MAX:
            return Refused(f"open of {body.transaction_count} transactions at once")
        first = self.next_sequence
        self.next_sequence = first + body.transaction_count
        self.outcomes.opened(self.next_sequence)
        subscriptions = _each_once(body.subscriptions)
        for sequence in range(first, self.next_sequence):
            partitions = _first_registrations({}, body.partitions)
            txn = self.transactions[sequence] = OngoingTransaction(
                sequence,
                at_ms,
                body.timeout_ms,
                partitions,
                subscriptions,
                client_key=key,
                client_name=body.client_name,
            )
            self._hold(key, 1, txn.registrations)
            self.registration_count += txn.registrations
        return Opened(first, body.transaction_count)

    def _register(self, body: AddPartitions | AddSubscriptions, owner: bytes) -> Answer:
        txn = self.transactions.get(body.sequence)
        if txn is not None and owner != txn.client_key:
            return _not_owner(txn)
        if txn is None or txn.state is not TxnState.OPEN:
            return _not_open(self, body.sequence, txn)
        before = txn.registrations
        if isinstance(body, AddPartitions):
            _first_registrations(txn.partitions, body.partitions)
        else:
            txn.subscriptions = _each_once(txn.subscriptions + body.subscriptions)
        self._hold(txn.client_key, 0, txn.registrations - before)
        self.registration_count += txn.registrations - before
        return Done()

    def _abort(self, sequence: int) -> Answer:
        """An operator's request; it was taken from a topic that only operators may write (C15)."""
        txn = self.transactions.get(sequence)
        if txn is not None and txn.state is TxnState.ABORTING:
            return Done()
        if txn is None or txn.state is not TxnState.OPEN:
            return _not_open(self, sequence, txn)
        self._leave_open(txn, TxnState.ABORTING)
        self.causes.aborted(sequence, AbortCause.OPERATOR)
        return Done()

    def _end(self, body: End, owner: bytes) -> Answer:
        txn = self.transactions.get(body.sequence)
        if txn is not None and owner != txn.client_key:
            return _not_owner(txn)
        target = TxnState.COMMITTING if body.committed else TxnState.ABORTING
        if txn is not None and txn.state is target:
            return Done()
        if txn is None or txn.state is not TxnState.OPEN:
            return _not_open(self, body.sequence, txn)
        wrong = _wrong_counts(txn, body.written) if body.committed else ""
        wrong = wrong or _wrong_subscriptions(txn, body.acknowledged_in)
        if wrong:
            return Refused(wrong)
        self._leave_open(txn, target)
        if body.committed:
            txn.written = body.written
        else:
            self.causes.aborted(body.sequence, AbortCause.CLIENT)
        if body.acknowledged_in is not None:  # other subscriptions were registered ahead (C9)
            self.registration_count -= len(txn.subscriptions)
            txn.subscriptions = _each_once(body.acknowledged_in)
            self.registration_count += len(txn.subscriptions)
        return Done()

    def _prepare(self, body: Prepare, owner: bytes, at_ms: int) -> Answer:
        """Makes the content of an open transaction final; no time-out ends it any more (L1)."""
        txn = self.transactions.get(body.sequence)
        if txn is not None and owner != txn.client_key:
            return _not_owner(txn)
        if txn is not None and txn.state is TxnState.PREPARED and _is_content(body, txn):
            return Done()
        if txn is None or txn.state is not TxnState.OPEN:
            return _not_open(self, body.sequence, txn)
        wrong = _wrong_counts(txn, body.written)
        wrong = wrong or _wrong_subscriptions(txn, body.acknowledged_in)
        if wrong:
            return Refused(wrong)
        if self.held[owner].prepared >= PREPARED_PER_CLIENT_MAX:
            reason = f"too many prepared transactions: the most is {PREPARED_PER_CLIENT_MAX}"
            return Refused(reason, RefusalCode.LIMIT)
        before = txn.registrations
        txn.state, txn.written = TxnState.PREPARED, body.written
        txn.preparation = Preparation(at_ms, body.secret_hash, body.decider)
        if body.acknowledged_in is not None:  # other subscriptions were registered ahead (C9)
            txn.subscriptions = _each_once(body.acknowledged_in)
        self._hold(owner, 0, txn.registrations - before).prepared += 1
        self.registration_count += txn.registrations - before
        return Done()

    def _decide(self, body: Decide, at_ms: int) -> Answer:
        """The first decision about a prepared transaction stands (L3).

        The request is an operator's, or a secret was shown whose hash must be the right one (L2).
        """
        txn = self.transactions.get(body.sequence)
        if txn is None:
            return _decided(self, body)
        if txn.preparation is None:
            return Refused(f"transaction {txn.sequence} is not prepared: it is {txn.state.value}")
        if body.secret_hash and body.secret_hash != txn.preparation.secret_hash:
            return Refused(f"not the secret of transaction {txn.sequence}", RefusalCode.NOT_OWNER)
        if txn.state is not TxnState.PREPARED:
            return _second_decision(body, committed=txn.state is TxnState.COMMITTING)
        self._leave_open(txn, TxnState.COMMITTING if body.committed else TxnState.ABORTING)
        if not body.committed:
            cause = AbortCause.TOKEN if body.secret_hash else AbortCause.OPERATOR
            self.causes.aborted(body.sequence, cause)
        if not body.secret_hash:
            about = (body.committed, at_ms, body.reason, body.decided_by)
            decision = OperatorDecision(body.sequence, *about)
            self.decisions = (*self.decisions, decision)[-DECISIONS_MAX:]
        return Done()

    def _release(self, body: Release, owner: bytes) -> Answer:
        """Drops open transactions in which, as their client states, nothing was written (C9)."""
        if len(body.sequences) > TRANSACTIONS_PER_OPEN_MAX:
            return Refused(f"release of {len(body.sequences)} transactions at once")
        unopened = [sequence for sequence in body.sequences if sequence >= self.next_sequence]
        if unopened:
            return _not_open(self, unopened[0], None)
        named = [self.transactions[it] for it in body.sequences if it in self.transactions]
        for txn in named:
            if owner != txn.client_key:
                return _not_owner(txn)
            if txn.state is TxnState.PREPARED:
                return _not_open(self, txn.sequence, txn)
        for txn in named:
            if txn.state is TxnState.OPEN and txn.sequence in self.transactions:
                self._leave_open(txn, None)  # a request may name a sequence twice
        return Done()


def _decided(state: CoordinatorState, body: Decide) -> Answer:
    """The answer to a decision about a transaction that has ended, or was never opened."""
    if body.sequence >= state.next_sequence:
        return _not_open(state, body.sequence, None)
    committed = state.outcomes.has_committed(body.sequence)
    if committed is None:
        return Refused(f"transaction {body.sequence} has ended, and its outcome is forgotten")
    return _second_decision(body, committed=committed)


def _description(state: CoordinatorState, txn: OngoingTransaction) -> Description:
    return Description(
        txn.sequence,
        txn.state.value,
        txn.opened_at_ms,
        txn.timeout_ms,
        tuple(txn.partitions.values()),
        txn.subscriptions,
        txn.client_key,
        txn.client_name,
        cause=state.causes.of(txn.sequence) if txn.state is TxnState.ABORTING else None,
        preparation=txn.preparation,
    )


def _not_open(state: CoordinatorState, sequence: int, txn: OngoingTransaction | None) -> Refused:
    cause = state.causes.of(sequence)
    if cause is not None:
        return Refused(f"transaction {sequence} {_ABORTED[cause]}")
    if txn is not None and txn.state is TxnState.PREPARED:
        ends = "its token ends it, or `stilltide txn commit|abort --prepared`"
        return Refused(f"transaction {sequence} is prepared: {ends}", RefusalCode.PREPARED)
    if txn is not None:
        return Refused(f"transaction {sequence} is {txn.state.value}")
    if sequence < state.next_sequence:
        return Refused(f"transaction {sequence} has ended")
    return Refused(f"transaction {sequence} was never opened")


_ABORTED = MappingProxyType(
    {
        AbortCause.CLIENT: "was aborted by its client",
        AbortCause.TIMED_OUT: "was aborted at its time-out",
        AbortCause.OPERATOR: "was aborted by an operator",
        AbortCause.TOKEN: "was aborted by the holder of its token",
    }
)
"""How the refusal of a request names the cause of an abort (C12)."""


def _not_owner(txn: OngoingTransaction) -> Refused:
    reason = f"transaction {txn.sequence} belongs to another client"
    return Refused(reason, RefusalCode.NOT_OWNER)


def _is_content(body: Prepare, txn: OngoingTransaction) -> bool:
    """Whether a prepared transaction was prepared by a request with this content (L1)."""
    asked, known = body.acknowledged_in, txn.preparation
    subscriptions = txn.subscriptions if asked is None else _each_once(asked)
    return (subscriptions, body.written) == (txn.subscriptions, txn.written) and (
        known is not None and (body.secret_hash, body.decider) == known[1:]
    )


def _second_decision(body: Decide, *, committed: bool) -> Answer:
    """The answer to a decision when another one stands already (L3)."""
    if body.committed is committed:
        return Done()
    code = RefusalCode.COMMITTED if committed else RefusalCode.ABORTED
    return Refused(f"transaction {body.sequence} is decided: {code.value}", code)


def _first_registrations(
    known: dict[TopicPartition, Registered], new: tuple[Registered, ...]
) -> dict[TopicPartition, Registered]:
    """The first registration of a partition wins: a repeat never raises the start offset (C2)."""
    for one in new:
        known.setdefault(one.data, one)
    return known


def _each_once(subscriptions: tuple[SubscriptionId, ...]) -> tuple[SubscriptionId, ...]:
    return tuple(dict.fromkeys(subscriptions))


def _wrong_counts(txn: OngoingTransaction, written: tuple[Written, ...]) -> str:
    """Why a commit's record counts cannot be true (C6); empty when they can."""
    named = {one.data for one in written}
    if len(named) < len(written):
        return "a partition is named twice"
    unregistered = named - txn.partitions.keys()
    if unregistered:
        return f"{min(unregistered)} is not registered with transaction {txn.sequence}"
    for data, first_offset, end_offset, record_count in written:
        start_offset = txn.partitions[data].start_offset
        if first_offset < start_offset or not 1 <= record_count <= end_offset - first_offset:
            return (
                f"{record_count} records in [{first_offset}, {end_offset}) of {data}, "
                f"registered from {start_offset}"
            )
    return ""


def _wrong_subscriptions(
    txn: OngoingTransaction, acknowledged_in: tuple[SubscriptionId, ...] | None
) -> str:
    """Why a transaction cannot have acknowledged in these subscriptions (G); empty if it can."""
    wrong = set(acknowledged_in or ()).difference(txn.subscriptions)
    return f"{min(wrong)} is not registered with transaction {txn.sequence}" if wrong else ""
