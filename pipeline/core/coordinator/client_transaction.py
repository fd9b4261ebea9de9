"""One transaction as its client sees it: what it takes, what it has written, and how it ends.

*Source*: docs/protocols C3, C5, C6, C12, C13, L1, L2.

*Invariants*:
- a commit is asked for only when every record that was sent is reported as durable, and the commit
  counts every one of them (C6),
- a transaction that has used a topic that was created again never asks for a commit after it has
  learned of that (C13),
- a commit is called committed or aborted only if the coordinator has said so (C12),
- an abort and a commit exclude each other: what was given up by one is not committed by the other,
- a transaction is prepared only when a commit could be asked for, and the coordinator has said so;
  one whose preparation is not known for sure is given up, and nobody has its token (L1).

`commit`, `abort` and `prepare` are generators of effects: each effect is carried out, and its
result is sent, or its error thrown. A driver that stops early closes the generator.
"""

from collections.abc import Callable, Container, Generator, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from stilltide.pipeline.core.topic_table import KnownTopic, TopicRecreated
from stilltide.pipeline.errors import (
    DecidedOtherwiseError,
    OutcomeUnknownError,
    RefusedError,
    RequestTimeoutError,
    TopicRecreatedError,
    TransactionStateError,
    topic_recreated,
)
from stilltide.schemas.coordinator.prepared_tokens import hash_of
from stilltide.schemas.coordinator.transactions import (
    Answer,
    Description,
    End,
    EndPrepared,
    Prepare,
    Registered,
    Unknown,
    Written,
)
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.service.envelopes import Done
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition, TxnId

Outcome = Literal["open", "prepared", "committed", "aborted", "forgotten"]
"""How a transaction ended or is decided, or that it is open, or prepared and waits to be decided,
or that its coordinator does not know any more."""


class PartitionWrites:
    """One transaction's records of one registered partition, counted by delivery reports.

    Attributes:
        data: the partition.
        topic_id: the topic id with which the partition was registered (E8).
        start: the end offset from which the partition was registered (C2).
        sent: number of records handed to the producer.
        count: number of records known to be durable.
        first: the lowest offset of a durable record, -1 while none is known.
        end: the highest offset of a durable record + 1.
        unplaced: whether a record is durable at an unknown offset.
        error: why a record was not delivered; None if all were.
    """

    __slots__ = (
        "_reported",
        "count",
        "data",
        "end",
        "error",
        "first",
        "sent",
        "start",
        "topic_id",
        "unplaced",
    )

    def __init__(self, registered: Registered, reported: Callable[[], None]) -> None:
        self.data = registered.data
        self.start = registered.start_offset
        self.topic_id = registered.topic_id
        self.sent = 0
        self.count = 0
        self.first = -1
        self.end = 0
        self.unplaced = False
        self.error: StilltideError | None = None
        self._reported = reported

    def delivered(self, error: StilltideError | None, offset: int) -> None:
        """The producer's report on one record; the offset is -1 when a retry hid it (C3)."""
        if error is not None:
            self.error = error
        else:
            self.count += 1
            if offset < 0:
                self.unplaced = True
            else:
                if self.first < 0 or offset < self.first:  # reports come in any order
                    self.first = offset
                self.end = max(self.end, offset + 1)
        self._reported()


class ToSettle(NamedTuple):
    """The acknowledgements of a transaction.

    Attributes:
        acknowledged: whether anything was acknowledged.
        ended_in: the subscriptions to settle; None: all registered ones (C9).
    """

    acknowledged: bool
    ended_in: tuple[SubscriptionId, ...] | None


@dataclass(frozen=True, slots=True)
class Collect:
    """Effect: waits until every record is reported, and every acknowledgement stored.

    Comes back as `ToSettle`, or as the error of what can never be registered or stored. Records
    that were not delivered are no error of this effect: their reports were counted.
    """


@dataclass(frozen=True, slots=True)
class DropRecords:
    """Effect: drops records that wait for their partition, and waits until no request registers.

    Comes back as `ToSettle`. No record is written and no partition registered afterwards.
    """


@dataclass(frozen=True, slots=True)
class ReadEndOffset:
    """Effect: reads the partition's end offset, after every report (C3); comes back with that."""

    data: TopicPartition


@dataclass(frozen=True, slots=True)
class LookAtTopics:
    """Effect: looks at the topics, if one that was created again may be the cause of the error.

    `topic_recreated` is called before this effect comes back, which it does without result.
    """

    after: StilltideError


@dataclass(frozen=True, slots=True)
class AskEnd:
    """Effect: asks the coordinator for the end; comes back as the answer, or an error.

    Every record of a commit is durable. With `opens_ahead`, the client's pool may open another
    transaction ahead, which is like this one (C9).
    """

    end: End
    opens_ahead: bool


@dataclass(frozen=True, slots=True)
class AskEndAgain:
    """Effect: asks again, within what is left of the time of the `AskEnd` before (C12)."""

    end: End


@dataclass(frozen=True, slots=True)
class AskOutcome:
    """Effect: asks how the transaction ended, within the time of the `AskEnd` before (C12).

    Comes back as `Outcome`.
    """


@dataclass(frozen=True, slots=True)
class AskPrepare:
    """Effect: asks the coordinator to prepare; comes back as the answer, or an error.

    Every record is durable. With `opens_ahead` as `AskEnd`: nothing else joins the transaction.
    """

    prepare: Prepare
    opens_ahead: bool


@dataclass(frozen=True, slots=True)
class AskDecision:
    """Effect: asks for the end of a prepared transaction, again if the answer is forgotten.

    Comes back without result once the decision stands (L3), or as an error.
    """

    end: EndPrepared


@dataclass(frozen=True, slots=True)
class AbortFailed:
    """Effect: tells the log that the coordinator aborts the transaction at its time-out only."""

    error: StilltideError


EndEffect = (
    Collect
    | DropRecords
    | ReadEndOffset
    | LookAtTopics
    | AskEnd
    | AskEndAgain
    | AskOutcome
    | AskPrepare
    | AskDecision
    | AbortFailed
)
Ending = Generator[EndEffect, Any, None]
"""The end of a transaction: yields effects, is sent their results, and raises as `commit` does."""

COLLECT, DROP_RECORDS, ASK_OUTCOME = Collect(), DropRecords(), AskOutcome()


class ClientTransaction:
    """One transaction; see module docstring.

    Attributes:
        id: the transaction's identity; None until it has begun.
        takes_records: whether it is open, is not being committed, and has not failed.
        topics: the topics that it has used, as they were known at the first use.
        writes: what it has written, by registered partition.
        failure: the error of a topic that was created again; the transaction can only be aborted.
        over: whether its end was asked for, and nothing more is awaited.
    """

    __slots__ = (
        "_phase",
        "_secret",
        "_settles",
        "failure",
        "id",
        "over",
        "takes_records",
        "topics",
        "writes",
    )

    def __init__(self) -> None:
        self.id: TxnId | None = None
        self.takes_records = True
        self.topics: dict[str, KnownTopic] = {}
        self.writes: dict[TopicPartition, PartitionWrites] = {}
        self.failure: TopicRecreatedError | None = None
        self.over = False
        self._phase = "open"
        self._secret = b""
        self._settles = False

    @property
    def state(self) -> str:
        """`open`, `prepared`, `committed`, `aborted`, or `unknown` while a commit has no answer."""
        return "open" if self._phase == "committing" else self._phase

    def begun(self, txn: TxnId) -> None:
        """The transaction is open at its coordinator."""
        self.id = txn

    def registered(self, writes: PartitionWrites) -> None:
        """Records may be written to a partition; nothing is counted after the end was asked for."""
        if self._phase in {"open", "committing"}:
            self.writes[writes.data] = writes

    def topic_recreated(self, change: TopicRecreated, ahead: Container[str]) -> bool:
        """A topic was created again: whether the transaction fails for that reason (C13).

        Args:
            change: the topic.
            ahead: topics with which the transaction was registered when it was opened ahead (C9).
        """
        if change.topic not in self.topics and change.topic not in ahead:
            return False
        self.failure = topic_recreated(
            change.topic, change.before, change.now, hint="do the work again in a new transaction"
        )
        self.takes_records = False
        return True

    def check_open(self) -> None:
        """Passes while records, acknowledgements or the end may be asked for.

        Raises:
            TransactionStateError: the transaction has ended, or is being committed.
        """
        if self._phase == "committing":  # what is sent now would not be counted (C6)
            raise TransactionStateError("the transaction is being committed")
        if self._phase != "open":
            raise self._ended()

    def check_topics(self) -> None:
        """Passes unless the transaction can only be aborted; raises `TopicRecreatedError` (C13)."""
        if self.failure is not None:
            raise self.failure

    def check_delivered(self) -> None:
        """Passes unless a record was not delivered; raises the producer's error (C6)."""
        for writes in self.writes.values():
            if writes.error is not None:
                raise writes.error

    def commit(self, *, wait_visible: bool) -> Ending:
        """Commits; with `wait_visible` the answer comes when readers can know the outcome (C5).

        Raises:
            TransactionStateError: the transaction has ended, or is being committed.
            TopicRecreatedError: a topic was created again; the transaction is aborted (C13).
            RefusedError: the transaction was aborted.
            OutcomeUnknownError: whether the transaction was committed is not known (C12).
            StilltideError: what an effect raised before the commit was asked for; the transaction
                is aborted.
        """
        if self._phase == "prepared":
            yield from self._decide(committed=True, wait_visible=wait_visible)
            return
        to_settle, written = yield from self._collected()
        try:
            if self.id is not None:
                end = End(
                    self.id.sequence,
                    committed=True,
                    written=written,
                    wait_visible=wait_visible,
                    acknowledged_in=to_settle.ended_in,
                )
                yield from self._ask_commit(self.id, end)
            self._become("committed")
        finally:
            self.over = True

    def abort(self) -> Ending:
        """Aborts, also while a commit collects, which then fails; or decides a prepared one so.

        Raises:
            TransactionStateError: the transaction has ended.
            StilltideError: the coordinator did not take the request; it aborts at the time-out.
        """
        if self._phase == "prepared":
            yield from self._decide(committed=False, wait_visible=self._settles)
            return
        if self._phase != "committing":
            self.check_open()
        yield from self._abort()

    def prepare(self, secret: bytes, decider: str) -> Ending:
        """Makes the content final (L1); `commit` and `abort` then decide by the secret.

        Raises:
            TransactionStateError: the transaction has ended, is being committed, or is empty.
            RefusedError: the transaction was aborted, or too many are prepared (L7).
            OutcomeUnknownError: no answer in time. An abort was tried, since nobody has the token;
                not with a decider: its row may stand, so a resolver asks it (L4).
            TopicRecreatedError, StilltideError: as `commit` raises; the transaction is aborted.
        """
        to_settle, written = yield from self._collected()
        if self.id is None:
            self._become("open")
            raise nothing_to_prepare()
        prepare = Prepare(self.id.sequence, written, to_settle.ended_in, hash_of(secret), decider)
        try:
            answer: Answer = yield AskPrepare(prepare, opens_ahead=self.failure is None)
            if not isinstance(answer, Done):  # the answer is forgotten: the same changes nothing
                answer = yield AskPrepare(prepare, opens_ahead=False)
            if not isinstance(answer, Done):
                raise _not_prepared(self.id, "the coordinator has no answer any more", decider)
        except StilltideError as error:
            self.over = True
            if isinstance(error, RefusedError) or not decider:
                yield from _give_up(self.id, secret, error)
            if isinstance(error, RefusedError):
                self._become("aborted")
                if self.failure is not None:
                    raise self.failure from error
                raise
            raise _not_prepared(self.id, str(error), decider) from error
        self._secret, self._settles = secret, to_settle.acknowledged
        self._become("prepared")

    def _decide(self, *, committed: bool, wait_visible: bool) -> Ending:
        """Decides by the secret (L2); one that fails may be repeated, since the first stands."""
        assert self.id is not None, "an empty transaction is not prepared"
        otherwise: DecidedOtherwiseError | None = None
        try:
            yield AskDecision(EndPrepared(self.id.sequence, committed, self._secret, wait_visible))
        except DecidedOtherwiseError as error:
            committed, otherwise = error.committed, error
        self._become("committed" if committed else "aborted")
        self.over = True
        if otherwise is not None:
            raise otherwise

    def _collected(self) -> Generator[EndEffect, Any, tuple[ToSettle, tuple[Written, ...]]]:
        """What a commit names, all of it durable; nothing joins from then on (C6).

        The transaction is aborted if that fails, and open again if the call is cancelled.
        """
        self.check_open()
        self._become("committing")
        try:
            to_settle: ToSettle = yield COLLECT
            self._check_committing()
            self.check_delivered()
            written = yield from _counted(self.writes.values())
            self._check_committing()
            self.check_topics()
            self._become("unknown")
        except StilltideError as error:
            yield from self._abort_after(error)
            if self.failure is not None and self.failure is not error:
                raise self.failure from error
            raise
        finally:
            if self._phase == "committing":  # the commit was cancelled
                self._become("open")
        return to_settle, written

    def _abort(self) -> Ending:
        self._become("aborted")
        try:
            to_settle: ToSettle = yield DROP_RECORDS
            if self.id is not None:
                # With acknowledgements, the abort waits until their messages may come again.
                end = End(
                    self.id.sequence,
                    committed=False,
                    written=(),
                    wait_visible=to_settle.acknowledged,
                    acknowledged_in=to_settle.ended_in,
                )
                yield AskEnd(end, opens_ahead=self.failure is None)
        finally:
            self.over = True

    def _abort_after(self, error: StilltideError) -> Ending:
        """Aborts while the error is on its way to the application."""
        if self._phase == "committing":
            yield from _look_after(self, error)
        if self._phase == "committing":  # nobody else aborts
            try:
                yield from self._abort()
            except StilltideError as failure:
                yield AbortFailed(failure)

    def _ask_commit(self, txn: TxnId, end: End) -> Ending:
        """Returns when the transaction has committed; raises as `commit`."""
        try:
            answer: Answer = yield AskEnd(end, opens_ahead=self.failure is None)
            if not isinstance(answer, Done):
                yield from self._check_committed(txn, end)
        except RefusedError as error:
            self._become("aborted")
            yield from _look_after(self, error)
            if self.failure is None:
                raise
            try:
                abort = end._replace(committed=False, written=(), wait_visible=False)
                yield AskEnd(abort, opens_ahead=False)
            except StilltideError as failure:
                yield AbortFailed(failure)
            raise self.failure from error
        except OutcomeUnknownError:
            raise
        except StilltideError as error:
            raise outcome_unknown(txn, str(error)) from error

    def _check_committed(self, txn: TxnId, end: End) -> Ending:
        """Passes if a transaction has committed of whose end the coordinator has no answer (C12).

        The request is sent again: it commits an open transaction, and another one is not changed.

        Raises:
            RefusedError: the transaction was aborted.
            OutcomeUnknownError: the outcome is forgotten, or there was no answer in time.
        """
        try:
            try:
                answer: Answer = yield AskEndAgain(end)
            except RefusedError:  # the transaction is not open any more
                answer = Unknown()
            if isinstance(answer, Done):
                return
            outcome: Outcome = yield ASK_OUTCOME
        except RequestTimeoutError as error:
            raise outcome_unknown(txn, "the coordinator did not say in time") from error
        except RefusedError as error:  # a refused question is no outcome
            raise outcome_unknown(txn, error.primary) from error
        if outcome == "aborted":
            raise RefusedError(f"transaction {txn} was aborted")
        if outcome != "committed":
            raise outcome_unknown(txn, "the coordinator no longer remembers the transaction")

    def _check_committing(self) -> None:
        if self._phase != "committing":
            raise self._ended()

    def _become(self, phase: str) -> None:
        self._phase = phase
        self.takes_records = phase == "open" and self.failure is None

    def _ended(self) -> TransactionStateError:
        if self._phase == "prepared":
            return TransactionStateError(
                "the transaction is prepared, and its content is final",
                hint="commit or abort it; what else there is to send goes to another transaction",
            )
        return TransactionStateError(f"the transaction has ended: {self._phase}")


def _look_after(machine: ClientTransaction, error: StilltideError) -> Ending:
    if machine.failure is None:
        yield LookAtTopics(error)


def _counted(
    all_writes: Iterable[PartitionWrites],
) -> Generator[EndEffect, EndOffset, tuple[Written, ...]]:
    """What the commit reports for each partition, all of it durable (C6)."""
    written: list[Written] = []
    for writes in all_writes:
        assert writes.count == writes.sent, "a delivery report is missing"
        first, end = writes.first, writes.end
        if writes.unplaced:  # wider bounds that surely include the record are allowed (C3)
            first, end = writes.start, (yield ReadEndOffset(writes.data))
        written.append(Written(writes.data, Offset(first), EndOffset(end), writes.count))
    return tuple(written)


def _give_up(txn: TxnId, secret: bytes, error: StilltideError) -> Ending:
    """Aborts what may be prepared, or open, and whose token nobody has."""
    end = End(txn.sequence, committed=False, written=(), wait_visible=False)
    decision = AskDecision(EndPrepared(txn.sequence, False, secret, wait_visible=False))
    try:
        if not isinstance(error, RefusedError):
            try:
                yield decision
            except RefusedError:  # it is not prepared
                yield AskEnd(end, opens_ahead=False)
        else:
            yield AskEnd(end, opens_ahead=False)
    except StilltideError as failure:
        yield AbortFailed(failure)


def nothing_to_prepare() -> TransactionStateError:
    """The error of an empty transaction, which has no identity and no token."""
    return TransactionStateError(
        "there is nothing to prepare",
        hint="send a record, or acknowledge a message, before the transaction is prepared",
    )


def _not_prepared(txn: TxnId, detail: str, decider: str) -> OutcomeUnknownError:
    hint = f"nobody has the token; `stilltide txn describe {txn}` says if it waits for an operator"
    if decider:
        hint = f"let the database transaction fail; a resolver asks {decider} if it was prepared"
    return OutcomeUnknownError(
        f"whether transaction {txn} was prepared is unknown",
        detail=detail,
        hint=f"do the work again in a new transaction; {hint}",
    )


def outcome_of(answer: Description) -> Outcome:
    """How a coordinator describes that a transaction ended (C12)."""
    if answer.state == "OPEN":
        return "open"
    if answer.state == "PREPARED":
        return "prepared"
    if answer.state == "COMMITTING" or answer.committed:
        return "committed"
    return "aborted" if answer.state == "ABORTING" or answer.committed is False else "forgotten"


def outcome_unknown(txn: TxnId | None, detail: str) -> OutcomeUnknownError:
    """The error of a transaction of which it is unknown whether it committed."""
    return OutcomeUnknownError(
        f"whether transaction {txn} was committed is unknown",
        detail=detail,
        hint="ask later, before you do the work again: `await client.outcome(txn.id)`, or "
        f"`stilltide txn describe {txn}`",
    )
