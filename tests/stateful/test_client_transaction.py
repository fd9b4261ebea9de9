"""A client's transaction, while reports fail, topics change, answers are lost and calls cancelled.

*Source*: rules C3, C6, C12, C13, L1, L3. The coordinator is a model: open, prepared, committed or
aborted.
"""

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stilltide.pipeline.core.coordinator.client_transaction import (
    AbortFailed,
    AskDecision,
    AskEnd,
    AskEndAgain,
    AskOutcome,
    AskPrepare,
    ClientTransaction,
    Collect,
    DropRecords,
    EndEffect,
    Ending,
    LookAtTopics,
    PartitionWrites,
    ReadEndOffset,
    ToSettle,
)
from stilltide.pipeline.core.topic_table import KnownTopic, TopicRecreated
from stilltide.pipeline.errors import (
    DecidedOtherwiseError,
    OutcomeUnknownError,
    RefusedError,
    RequestTimeoutError,
    TopicRecreatedError,
    TransactionStateError,
)
from stilltide.schemas.coordinator.transactions import End, Prepare, Registered, Unknown
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.service.envelopes import Done
from stilltide.schemas.values import EndOffset, TopicPartition, TxnId
from tests.support.examples import examples

PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("bills", 0)]
TXN = TxnId(0, 7)
PICK = st.integers(0, 7)
SECRET = bytes(32)
SELDOM = st.sampled_from([False, False, False, True])
ANSWERS = st.sampled_from(["given", "given", "lost", "forgotten"])


@dataclass(eq=False)
class Call:
    """A `commit`, `prepare` or `abort` under way, and the effect that it waits for."""

    commits: bool
    prepares: bool
    ending: Ending
    effect: EndEffect


class ClientTransactions(RuleBasedStateMachine):
    """One transaction; its records, their reports, its topics and its coordinator."""

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    @precondition(lambda self: (self.machine.over or self.given_up) and not self.calls)
    @rule()
    def begin(self):
        """The application's next transaction."""
        self.machine = ClientTransaction()
        self.sent = 0
        self.held: list[TopicPartition] = []
        self.unreported: list[PartitionWrites] = []
        self.ends = dict.fromkeys(PARTITIONS, 10)
        self.undelivered = False
        self.recreated = False
        self.coordinator = "open"
        self.remembers = True
        self.calls: list[Call] = []
        self.told: str | None = None
        self.has_token = self.given_up = False

    # -- the application

    @rule(data=st.sampled_from(PARTITIONS))
    def send(self, data: TopicPartition):
        """C13: a transaction that has failed takes no record; C6: nor does one that commits."""
        if not self.machine.takes_records:
            return
        self.machine.topics.setdefault(data.topic, KnownTopic(b"1", 2))
        self.sent += 1
        self.held.append(data)

    @precondition(lambda self: self.sent)
    @rule()
    def commit(self):
        """An application commits, also twice and after an abort."""
        self.call(self.machine.commit(wait_visible=False), commits=True)

    @precondition(lambda self: self.sent)
    @rule()
    def prepare(self):
        """An application prepares, also twice and after an abort."""
        self.call(self.machine.prepare(SECRET, "db"), commits=False, prepares=True)

    @precondition(lambda self: self.has_token and self.coordinator == "prepared")
    @rule(committed=st.booleans(), seldom=SELDOM)
    def resume(self, *, committed: bool, seldom: bool):
        """L2: another process has the token, and decides."""
        if seldom:
            self.coordinator = "committed" if committed else "aborted"

    @rule(seldom=SELDOM)
    def abort(self, *, seldom: bool):
        """An application aborts, also while it commits."""
        if seldom:
            self.call(self.machine.abort(), commits=False)

    def call(self, ending: Ending, *, commits: bool, prepares: bool = False):
        """A call begins, or is refused because of an earlier one."""
        try:
            self.calls.append(Call(commits, prepares, ending, next(ending)))
        except TransactionStateError:
            final = self.machine.state == "prepared" and prepares
            assert self.calls or self.machine.over or self.given_up or final

    @precondition(lambda self: self.calls)
    @rule(pick=PICK, seldom=SELDOM)
    def cancel(self, pick: int, *, seldom: bool):
        """A call is cancelled, wherever it is."""
        if not seldom:
            return
        call = self.calls.pop(pick % len(self.calls))
        call.ending.close()
        if call.prepares and self.machine.state == "unknown":  # L1: nobody has the token
            self.given_up = True
            if self.coordinator in {"open", "prepared"}:  # what the driver asks for
                self.coordinator = "aborted"

    # -- the cluster

    @rule()
    def register(self):
        """Partitions are registered, and the records that waited for that are sent."""
        if self.held:
            self.machine.begun(TXN)
        for data in self.held:
            writes = self.machine.writes.get(data)
            if writes is None:
                registered = Registered(data, EndOffset(self.ends[data]), b"1")
                writes = PartitionWrites(registered, lambda: None)
                self.machine.registered(writes)
            writes.sent += 1
            self.unreported.append(writes)
        self.held.clear()

    @rule(placed=st.booleans(), lost=SELDOM)
    def deliver(self, *, placed: bool, lost: bool):
        """Everything is registered and reported, maybe but for one record that is lost."""
        self.register()
        while self.unreported:
            self.report(0, placed=placed, lost=lost and len(self.unreported) == 1)

    @precondition(lambda self: self.unreported)
    @rule(pick=PICK, placed=st.booleans(), lost=SELDOM)
    def report(self, pick: int, *, placed: bool, lost: bool):
        """A record is durable, at an offset that is known or not; or it is lost."""
        writes = self.unreported.pop(pick % len(self.unreported))
        if lost:
            self.undelivered = True
            writes.delivered(StilltideError("not delivered"), -1)
            return
        offset = self.ends[writes.data]
        self.ends[writes.data] += 1
        writes.delivered(None, offset if placed else -1)

    @rule(topic=st.sampled_from(["orders", "bills"]), seldom=SELDOM)
    def recreate(self, topic: str, *, seldom: bool):
        """C13: a topic is created again."""
        if not seldom:
            return
        used = topic in self.machine.topics
        assert self.machine.topic_recreated(TopicRecreated(topic, b"1", b"2"), ()) == used
        self.recreated |= used

    @rule(seldom=SELDOM)
    def time_out(self, *, seldom: bool):
        """The coordinator aborts what is open."""
        if seldom and self.coordinator == "open":
            self.coordinator = "aborted"

    @rule()
    def forget(self):
        """The history of outcomes does not hold the transaction any more (C12)."""
        self.remembers = self.coordinator == "open"

    # -- the driver

    @precondition(lambda self: self.calls)
    @rule(pick=PICK, answers=st.lists(ANSWERS, min_size=1, max_size=4))
    def carry_out(self, pick: int, answers: list[str]):
        """Effects of a call are carried out, and their results come back."""
        call = self.calls[pick % len(self.calls)]
        for answer in answers:
            if call in self.calls:
                self.carry_out_next(call, answer)

    def carry_out_next(self, call: Call, answer: str):  # noqa: C901 - one for each effect
        """One effect."""
        match call.effect:
            case Collect():
                if not self.held and not self.unreported:
                    self.back(call, ToSettle(acknowledged=False, ended_in=None))
            case DropRecords():
                self.held.clear()
                self.back(call, ToSettle(acknowledged=False, ended_in=None))
            case ReadEndOffset(data):
                self.back(call, EndOffset(self.ends[data]))
            case LookAtTopics() | AbortFailed():
                self.back(call, None)
            case AskPrepare(prepare, _):
                self.asked_to_prepare(call, prepare, answer)
            case AskDecision(end):
                self.asked_to_decide(call, answer, committed=end.committed)
            case AskEnd(end) | AskEndAgain(end):
                self.asked(call, end, answer)
            case AskOutcome():
                if answer == "lost":
                    self.back(call, RequestTimeoutError("no answer"))
                else:
                    self.back(call, self.coordinator if self.remembers else "forgotten")

    def asked(self, call: Call, end: End, answer: str):
        """The coordinator takes the request; its answer may be lost, or forgotten."""
        if end.committed and isinstance(call.effect, AskEnd):
            self.is_whole(end)
        is_open = self.coordinator == "open"
        if is_open:
            self.coordinator = "committed" if end.committed else "aborted"
        if answer == "lost":
            self.back(call, RequestTimeoutError("no answer"))
        elif answer == "forgotten":
            self.back(call, Unknown())
        elif is_open:
            self.back(call, Done())
        else:
            self.back(call, RefusedError("the transaction is not open"))

    def asked_to_prepare(self, call: Call, prepare: Prepare, answer: str):
        """L1: the same request again is answered alike."""
        self.is_whole(prepare)
        if self.coordinator == "open":
            self.coordinator = "prepared"
        if answer == "lost":
            self.back(call, RequestTimeoutError("no answer"))
        elif answer == "forgotten":
            self.back(call, Unknown())
        elif self.coordinator == "prepared":
            self.back(call, Done())
        else:
            self.back(call, RefusedError("the transaction is not open"))

    def asked_to_decide(self, call: Call, answer: str, *, committed: bool):
        """L3: the first decision stands."""
        decision = "committed" if committed else "aborted"
        if self.coordinator == "prepared":
            self.coordinator = decision
        if answer != "given":
            self.back(call, RequestTimeoutError("no answer"))
        elif self.coordinator == decision:
            self.back(call, None)
        elif self.coordinator == "open":
            self.back(call, RefusedError("the transaction is not prepared"))
        else:
            error = DecidedOtherwiseError("the first decision stands")
            error.committed = not committed
            self.back(call, error)

    def is_whole(self, end: End | Prepare):
        """C6: what is asked to commit counts every record, all durable."""
        assert not self.held
        assert not self.unreported
        assert not self.undelivered
        assert sum(it.record_count for it in end.written) == self.sent
        for written in end.written:  # C3
            assert 10 <= written.first_offset < written.end_offset <= self.ends[written.data]
            assert written.record_count <= written.end_offset - written.first_offset

    def names_known_topics(self, effect: EndEffect):
        """C13: at the moment of the request, no topic is known to be another one."""
        if isinstance(effect, AskPrepare) or (isinstance(effect, AskEnd) and effect.end.committed):
            assert not self.recreated

    def back(self, call: Call, result: object):  # noqa: C901, PLR0912 - one for each end
        """An effect's result comes back; C12: what the application is told is what was decided."""
        ending = call.ending
        try:
            if isinstance(result, StilltideError):
                call.effect = ending.throw(result)
            else:
                call.effect = ending.send(result)
                if isinstance(result, ToSettle):
                    self.names_known_topics(call.effect)
        except StopIteration:
            self.calls.remove(call)
            if call.commits:
                assert self.coordinator == "committed" or not self.sent
                self.tell("committed")
            if call.prepares:  # L1
                assert self.machine.state == self.coordinator == "prepared"
                self.has_token = True
        except OutcomeUnknownError:
            self.calls.remove(call)
            assert call.commits or call.prepares
            assert self.machine.state == "unknown"
            assert not call.prepares or self.coordinator != "committed"
        except DecidedOtherwiseError:
            self.calls.remove(call)
            assert self.has_token
            assert self.machine.state == self.coordinator
        except RequestTimeoutError:  # L3: a decision may be asked for again
            self.calls.remove(call)
            assert self.machine.state in {"prepared", self.coordinator} or not call.commits
        except StilltideError as error:
            self.calls.remove(call)
            if not call.commits and not call.prepares:
                return
            if isinstance(error, TransactionStateError) or self.calls:  # it was aborted meanwhile
                assert self.machine.state == "aborted"
            else:
                told_why = isinstance(error, TopicRecreatedError)
                assert told_why or not self.recreated
                self.tell("aborted")

    def tell(self, state: str):
        """The application is told the outcome."""
        assert self.machine.state == state
        assert self.machine.over
        self.told = state

    # -- what must hold

    @invariant()
    def is_told_the_truth(self):
        """C12: an outcome that the application was told never turns into the other one."""
        if self.told == "aborted":
            assert self.coordinator != "committed"
        if self.machine.state == "aborted" and self.machine.over:
            assert self.coordinator != "committed"
        if self.machine.state == "prepared":  # L1: what ends it was asked for
            assert self.has_token
            assert self.coordinator != "open"

    @invariant()
    def refuses_calls(self):
        """C13: a transaction that has failed takes no record; C6: nor does one that commits."""
        try:
            self.machine.check_open()
            self.machine.check_topics()
        except (TransactionStateError, TopicRecreatedError):
            assert not self.machine.takes_records
        else:
            assert self.machine.takes_records

    @invariant()
    def takes_records_only_while_they_count(self):
        """C6, C13: no record is taken that a commit under way, or a failure, leaves out."""
        if self.recreated or self.machine.over or any(it.commits for it in self.calls):
            assert not self.machine.takes_records

    @invariant()
    def can_be_ended(self):
        """A transaction without a call under way is over, or an application may end it."""
        if self.calls or self.machine.over or self.given_up or self.machine.state == "prepared":
            return
        assert self.machine.state == "open"
        self.machine.check_open()


ClientTransactions.TestCase.settings = settings(max_examples=examples(400), stateful_step_count=40)
TestClientTransaction = ClientTransactions.TestCase
