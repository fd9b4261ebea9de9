"""Resolvers, applications that are slow or die, and databases with unique keys, in any order."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stilltide.pipeline.core.decisions.resolver import (
    AskDatabase,
    DeleteRows,
    EndTransaction,
    ListUnended,
    LiveTransaction,
    ReadRows,
    Resolver,
    ResolverEffect,
)
from stilltide.schemas.values import TxnId
from tests.support.examples import examples

DECIDERS = ("orders-db", "stock-db")
DATABASES = (*DECIDERS, "a test environment")
ADDRESSES = (*zip(DECIDERS, DECIDERS, strict=True), *zip(DECIDERS, DATABASES[1:], strict=True))
"""The decider of each resolver, and the database to which its address leads; some are wrong."""
COORDINATORS = 2
AFTER_MS = 1_000
STEPS_MAX = 1_000
"""More effects than a round has."""

INDEX = st.integers(0, 10**6)
STEP = st.tuples(INDEX, st.sampled_from((False, False, False, False, True)))
"""Which effect of a resolver is next, and whether it fails."""


@dataclass
class Work:
    """One transaction of an application: in Kafka, and in the database.

    Attributes:
        database: `open` with a row that is not committed, `committed` or `rolled back`.
        decider: name of the database.
        coordinator: `open`, `prepared`, `committed` or `aborted`.
        alive: whether the application will do something yet.
        answer: what the database has said to the client; None: nothing yet.
    """

    txn: TxnId
    decider: str
    database: str = "open"
    coordinator: str = "open"
    alive: bool = True
    answer: bool | None = None
    prepared_ms: int = 0

    @property
    def name(self) -> str:
        """Key of the row."""
        return f"cluster/{self.txn}/00"

    @property
    def row(self) -> tuple[str, str]:
        """The row, by database and key."""
        return self.decider, self.name


@dataclass
class World:
    """What is durable: rows that are committed, and the coordinator's states."""

    now_ms: int = 0
    rows: dict[tuple[str, str], bool] = field(default_factory=dict)
    works: list[Work] = field(default_factory=list)

    def locked(self, row: tuple[str, str]) -> bool:
        """Whether a database transaction holds the key of a row that is not committed."""
        return any(work.row == row and work.database == "open" for work in self.works)

    def decide(self, work: Work, *, committed: bool) -> bool:
        """The coordinator's answer to a decision: the first one stands (L3)."""
        if work.coordinator == "prepared":
            work.coordinator = "committed" if committed else "aborted"
        return work.coordinator == ("committed" if committed else "aborted")


class Ask(NamedTuple):
    """A question for what has not ended is on its way to a coordinator; rows were read before."""

    coordinator: int
    keys: Sequence[str]


class Answer(NamedTuple):
    """A coordinator's list is on its way back, for as long as anything may take."""

    coordinator: int
    listed: Sequence[LiveTransaction]
    keys: Sequence[str]


class RoundOver(NamedTuple):
    """The resolver waits no longer for the lists of its round."""


class Running:
    """A resolver with what it was told to do and has not done; its database may never answer.

    Attributes:
        database: the database to which its address leads.
    """

    def __init__(self, world: World, decider: str, database: str) -> None:
        self.machine = Resolver(decider, resolve_after_ms=AFTER_MS)
        self.decider, self.database = decider, database
        self.todo: list[ResolverEffect | Ask | Answer | RoundOver] = []
        self._world = world
        self._asked: set[int] = set()

    def tick(self) -> None:
        """Lets a round begin."""
        self.todo += self.machine.tick(self._world.now_ms)

    def step(self, index: int, *, fails: bool) -> None:
        """Carries out one effect, or lets it fail; one that waits for a lock times out."""
        effect = self.todo.pop(index % len(self.todo))
        self.todo += self._carried_out(effect, fails=fails)

    def _carried_out(  # noqa: C901, PLR0911 - one for each effect
        self, effect: ResolverEffect | Ask | Answer | RoundOver, *, fails: bool
    ) -> list[ResolverEffect]:
        world, machine = self._world, self.machine
        match effect:
            case ReadRows(after):
                keys = [key for database, key in world.rows if database == self.database]
                return machine.rows([] if fails else sorted(key for key in keys if key > after))
            case ListUnended(keys):
                asks = [it for it in range(COORDINATORS) if it not in self._asked]
                self._asked.update(asks)
                self.todo += [Ask(coordinator, keys) for coordinator in asks]
                self.todo.append(RoundOver())
            case Ask(coordinator, keys) if fails:
                self._asked.discard(coordinator)
                machine.silent(coordinator)
            case Ask(coordinator, keys):
                listed = [_unended(world, work) for work in world.works if _is_unended(work)]
                own = [item for item in listed if item.txn.coordinator == coordinator]
                self.todo.append(Answer(coordinator, own, keys))
            case Answer(coordinator, listed, keys):
                self._asked.discard(coordinator)
                return machine.listed(coordinator, listed, keys, world.now_ms)
            case RoundOver():
                machine.all_listed(world.now_ms)
            case AskDatabase(unended):
                row = (self.database, unended.token_id)
                # The table compares its identity with the transaction's, whenever it inserts.
                if fails or unended.identity != self.database or world.locked(row):
                    return machine.undecided(unended, world.now_ms)
                stands = world.rows.setdefault(row, False)
                return machine.decided(unended, world.now_ms, committed=stands)
            case EndTransaction(unended, committed):
                work = next(work for work in world.works if work.txn == unended.txn)
                if fails or not world.decide(work, committed=committed):
                    return machine.not_ended(unended, world.now_ms)
                return machine.ended(unended)
            case DeleteRows(names):
                for name in () if fails else names:
                    world.rows.pop((self.database, name), None)
        return []


def _is_unended(work: Work) -> bool:
    return work.coordinator in {"open", "prepared"}


def _unended(world: World, work: Work) -> LiveTransaction:
    if work.coordinator == "open":
        return LiveTransaction(work.txn)
    age_ms = world.now_ms - work.prepared_ms
    return LiveTransaction(work.txn, work.name, work.decider, age_ms, identity=work.decider)


class Resolving(RuleBasedStateMachine):
    """Two resolvers of each database, and any number of applications with their clients."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.resolvers = [Running(self.world, *address) for address in ADDRESSES]

    @rule(decider=st.sampled_from(DECIDERS))
    def begin(self, decider: str) -> None:
        """An application inserts its row, and has not prepared yet (L4)."""
        number = len(self.world.works)
        self.world.works.append(Work(TxnId(number % COORDINATORS, number), decider))

    @rule(decider=st.sampled_from(DECIDERS))
    def begin_and_prepare(self, decider: str) -> None:
        """An application is about to commit in its database."""
        self.begin(decider)
        self.application_goes_on(-1)

    def _living(self, index: int) -> Work | None:
        living = [work for work in self.world.works if work.alive]
        return living[index % len(living)] if living else None

    @rule(index=INDEX)
    def application_goes_on(self, index: int) -> None:
        """The next step: prepare, commit of the database."""
        if (work := self._living(index)) is None:
            return
        if work.coordinator == "open":
            work.coordinator, work.prepared_ms = "prepared", self.world.now_ms
        elif work.database == "open":
            work.database = "committed"
            assert work.row not in self.world.rows, "the key of an open row was taken"
            self.world.rows[work.row] = True

    @rule(index=INDEX)
    def application_rolls_back(self, index: int) -> None:
        """The database transaction of a prepared one ends without an exception and a commit."""
        work = self._living(index)
        if work is not None and (work.coordinator, work.database) == ("prepared", "open"):
            work.database = "rolled back"

    @rule(index=INDEX, likely=st.booleans())
    def client_asks(self, index: int, *, likely: bool) -> None:
        """The block is left, before the database has ended its transaction, too: a wrong order."""
        work, rows = self._living(index), self.world.rows
        if work is None or work.coordinator == "open":
            return
        if likely and work.row in rows:
            work.answer = rows[work.row]
        elif not self.world.locked(work.row):
            work.answer = rows.setdefault(work.row, False)

    @rule(index=INDEX)
    def client_ends(self, index: int) -> None:
        """The client asks its coordinator for what the database has said, however late."""
        work = self._living(index)
        if work is None or work.answer is None:
            return
        work.alive = False
        if not self.world.decide(work, committed=work.answer):
            # A resolver has committed and deleted the row, before the client asked the database.
            assert work.database == "committed", work
            assert not work.answer, work

    @rule(index=INDEX)
    def application_dies(self, index: int) -> None:
        """The database rolls back what it has not committed; nothing else is done."""
        if (work := self._living(index)) is not None:
            work.alive = False
            if work.database == "open":
                work.database = "rolled back"
            if work.coordinator == "open":
                work.coordinator = "aborted"  # its time-out

    @rule(ms=st.sampled_from((1_000, 2_000)))
    def time_passes(self, ms: int) -> None:
        """Time passes, and rounds begin that are due."""
        self.world.now_ms += ms
        for resolver in self.resolvers:
            resolver.tick()

    @precondition(lambda self: any(resolver.todo for resolver in self.resolvers))
    @rule(which=INDEX, steps=st.lists(STEP, min_size=1, max_size=6))
    def resolver_goes_on(self, which: int, steps: list[tuple[int, bool]]) -> None:
        """Some effects of a resolver are carried out, or fail."""
        busy = [resolver for resolver in self.resolvers if resolver.todo]
        resolver = busy[which % len(busy)]
        for index, fails in steps:
            if resolver.todo:
                resolver.step(index, fails=fails)
                self.both_or_neither()
                self.rows_go_last()

    @rule(which=st.integers(0, 3))
    def resolver_is_killed(self, which: int) -> None:
        """A resolver loses what it remembers, at any step, and begins again."""
        former = self.resolvers[which]
        self.resolvers[which] = Running(self.world, former.decider, former.database)

    @rule(which=st.integers(0, 3), database=st.sampled_from(DATABASES))
    def address_changes(self, which: int, database: str) -> None:
        """The address of a resolver's database leads to any database from now on (L4)."""
        self.resolvers[which].database = database

    @invariant()
    def both_or_neither(self) -> None:
        """L4: a transaction commits only with its database, and aborts only without it."""
        for work in self.world.works:
            assert work.coordinator != "committed" or work.database == "committed", work
            assert work.coordinator != "aborted" or work.database == "rolled back", work

    @invariant()
    def rows_go_last(self) -> None:
        """L5: the row of a transaction that waits for its decision stays."""
        for work in self.world.works:
            if work.coordinator == "prepared" and work.database == "committed":
                assert self.world.rows[work.row], work

    def teardown(self) -> None:
        """L6: in the end nothing is prepared, and the table is empty."""
        for index in range(len(self.world.works)):
            self.application_dies(index)
        for resolver in self.resolvers:
            resolver.database = resolver.decider
        for _ in range(4 + len(self.world.works)):
            self.time_passes(AFTER_MS)
            for resolver in self.resolvers:
                for _ in range(STEPS_MAX):
                    if resolver.todo:
                        resolver.step(0, fails=False)
                assert not resolver.todo, "the resolver does not come to the end of a round"
            self.both_or_neither()
        assert not any(_is_unended(work) for work in self.world.works)
        assert not self.world.rows


TestResolving = Resolving.TestCase
TestResolving.settings = settings(max_examples=examples(300), stateful_step_count=50)
