"""Resolves prepared transactions that their clients have left behind, by the rows of a database.

*Source*: docs/protocols L4, L5, L6.

*Invariants*:
- a transaction is ended as the row says that stands in the table of its decider, and in no other
  way: what is not known stays prepared, and what another database decides is left alone (L4),
- a row is deleted only when the coordinator has said, after the row was read, that the row's
  transaction has ended, or is decided (L5),
- any number of resolvers may run at the same time, and each may stop at any step: nothing that a
  resolver remembers decides anything.

A round reads rows, and then asks each coordinator what has not ended. Each list is taken when it
comes: rows go whose transactions have ended, and transactions that have waited long enough are
decided. Neither a coordinator that is silent nor a database that waits for a lock holds up the
next round. Each database has a machine of its own: one that does not answer holds up no other one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stilltide.schemas.coordinator.prepared_tokens import txn_named
from stilltide.schemas.values import TxnId

ROWS_MAX = 5_000
"""Rows that a round reads; the next round goes on behind them, at once."""

DECISIONS_MAX = 8
"""Transactions that the database is asked about at a time."""

RETRY_MS = 2_000
"""Pause before a transaction is decided again whose row is locked, or whose database is away."""

ROUND_MS = 1_000
"""Pause between two rounds while the database has prepared transactions to decide."""


class LiveTransaction(NamedTuple):
    """A transaction that has not ended, as its coordinator lists it.

    Attributes:
        txn: the transaction.
        token_id: key of its row; empty: the transaction is not prepared.
        decider: name of the database that decides; empty: none does.
        prepared_ms: for how long it has been prepared.
        identity: identity of the decider's table; empty: no table decides.
    """

    txn: TxnId
    token_id: str = ""
    decider: str = ""
    prepared_ms: int = 0
    identity: str = ""


@dataclass(frozen=True, slots=True)
class ReadRows:
    """Effect: reads keys of rows behind a key, in order, `ROWS_MAX` at most; `rows` comes back."""

    after: str


@dataclass(frozen=True, slots=True)
class ListUnended:
    """Effect: asks every coordinator what has not ended; `keys` are those of rows read before.

    Each list comes back as `listed`, with the keys, or `silent` says that none has come. A
    coordinator that is still being asked is not asked again. `all_listed` comes back when every
    coordinator has answered, or has been waited for long enough.
    """

    keys: Sequence[str]


@dataclass(frozen=True, slots=True)
class AskDatabase:
    """Effect: inserts the row `aborted` unless a row stands, then reads the row that stands.

    The insert is a database transaction of its own, which waits for an application that has
    inserted the row and not ended yet. Comes back as `decided` or `undecided`.
    """

    unended: LiveTransaction


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """Effect: asks the coordinator for the end that the row says; the row is durable.

    Comes back as `ended` or `not_ended`.
    """

    unended: LiveTransaction
    committed: bool


@dataclass(frozen=True, slots=True)
class DeleteRows:
    """Effect: deletes rows; their coordinators have said that their transactions are decided."""

    token_ids: tuple[str, ...]


ResolverEffect = ReadRows | ListUnended | AskDatabase | EndTransaction | DeleteRows


class Resolver:
    """Resolves what one database decides, round by round; see module docstring.

    Args:
        decider: name of the database.
        resolve_after_ms: how long a transaction is left to its client.
        rest_ms: pause between two rounds while there is nothing to decide, if `woken` says that
            something is prepared; None: nobody says so.
    """

    def __init__(self, decider: str, *, resolve_after_ms: int, rest_ms: int | None = None) -> None:
        self._decider = decider
        self._resolve_after_ms = resolve_after_ms
        self._rest_ms = max(ROUND_MS, resolve_after_ms) if rest_ms is None else rest_ms
        self._after = ""
        self._in_round = False
        self._more = False
        self._rests = False
        self._next_ms = 0.0
        self._prepared: dict[int, list[LiveTransaction]] = {}
        self._seen_ms: dict[str, float] = {}
        self._due_ms: dict[str, float] = {}
        self._busy: set[str] = set()
        self._ending: set[str] = set()

    @property
    def prepared(self) -> Iterable[LiveTransaction]:
        """What the database decides of the last list of each coordinator, and was not ended yet."""
        return (item for items in self._prepared.values() for item in items)

    @property
    def more(self) -> bool:
        """Whether the last round has left rows for the next one, which begins at once."""
        return self._more

    @property
    def deadline_ms(self) -> float | None:
        """When the next round is due; None while rows are read or lists are waited for."""
        return None if self._in_round else self._next_ms

    def tick(self, now_ms: float) -> list[ResolverEffect]:
        """Begins a round that is due."""
        if self._in_round or now_ms < self._next_ms:
            return []
        self._in_round = True
        return [ReadRows(self._after)]

    def woken(self, now_ms: float) -> None:
        """Something may be prepared that the database decides: a rest is over."""
        if self._rests:
            self._next_ms = min(self._next_ms, now_ms)

    def rows(self, keys: Sequence[str]) -> list[ResolverEffect]:
        """Keys of the table were read; none, too, if the table could not be read."""
        self._more = len(keys) >= ROWS_MAX
        self._after = keys[-1] if self._more else ""
        return [ListUnended(keys)]

    def listed(
        self,
        coordinator: int,
        unended: Sequence[LiveTransaction],
        keys: Sequence[str],
        now_ms: float,
    ) -> list[ResolverEffect]:
        """A coordinator has said what has not ended; `keys` were read before it was asked.

        The list may come when further rounds have begun.
        """
        prepared = [item for item in unended if item.token_id and item.decider == self._decider]
        self._prepared[coordinator] = prepared
        self._forget()
        for item in prepared:
            self._seen_ms.setdefault(item.token_id, now_ms)
        if prepared:
            self._next_ms = min(self._next_ms, now_ms + ROUND_MS)
        return [*self._delete_ended(coordinator, unended, keys), *self._decide(now_ms)]

    def silent(self, coordinator: int) -> None:
        """A coordinator has not answered; what it has listed before is not decided."""
        self._prepared.pop(coordinator, None)
        self._forget()

    def all_listed(self, now_ms: float) -> None:
        """Every coordinator has answered, or has been waited for long enough.

        With nothing to decide, and nobody who wakes it, the resolver rests as long as a transaction
        is left to its client: nothing that is prepared meanwhile is decided before that.
        """
        self._in_round = False
        self._rests = not self._more and not any(self._prepared.values())
        if self._rests:
            self._next_ms = now_ms + self._rest_ms
        else:
            self._next_ms = now_ms if self._more else now_ms + ROUND_MS

    def decided(
        self, unended: LiveTransaction, now_ms: float, *, committed: bool
    ) -> list[ResolverEffect]:
        """The row that stands says how the transaction ends."""
        if unended.token_id not in self._busy:
            return []
        self._ending.add(unended.token_id)
        return [EndTransaction(unended, committed), *self._decide(now_ms)]

    def undecided(self, unended: LiveTransaction, now_ms: float) -> list[ResolverEffect]:
        """No row stands yet, or the database is away; the transaction stays prepared."""
        if unended.token_id in self._due_ms:
            self._due_ms[unended.token_id] = now_ms + RETRY_MS
        self._left(unended)
        return self._decide(now_ms)

    def ended(self, unended: LiveTransaction) -> list[ResolverEffect]:
        """The coordinator has said that the transaction is decided, whatever the outcome."""
        known = unended.token_id in self._busy
        self._left(unended)
        number = unended.txn.coordinator
        listed = self._prepared.get(number, [])
        self._prepared[number] = [item for item in listed if item.txn != unended.txn]
        self._forget()
        return [DeleteRows((unended.token_id,))] if known else []

    def not_ended(self, unended: LiveTransaction, now_ms: float) -> list[ResolverEffect]:
        """The coordinator has not answered; the transaction is asked about again."""
        return self.undecided(unended, now_ms)

    def _delete_ended(
        self, coordinator: int, unended: Sequence[LiveTransaction], keys: Sequence[str]
    ) -> list[ResolverEffect]:
        """L5: rows read before the coordinator listed what has not ended, without them."""
        alive = {item.txn for item in unended}
        over = tuple(
            key
            for key in keys
            if (txn := txn_named(key)) is not None  # else a stranger's row, which is left alone
            and txn.coordinator == coordinator
            and txn not in alive
        )
        return [DeleteRows(over)] if over else []

    def _decide(self, now_ms: float) -> list[ResolverEffect]:
        """Asks about what has been due for longest: locked rows hold up no other one (L6).

        A coordinator whose clock is wrong may say for hours that a transaction is young.
        """
        due: list[LiveTransaction] = []
        for item in self.prepared:
            seen_ms = now_ms - self._seen_ms[item.token_id]
            if max(item.prepared_ms, seen_ms) < self._resolve_after_ms:
                continue
            due_ms = self._due_ms.setdefault(item.token_id, now_ms)
            if due_ms <= now_ms and item.token_id not in self._busy:
                due.append(item)
        due.sort(key=lambda item: (self._due_ms[item.token_id], -item.prepared_ms))
        asked = due[: max(0, DECISIONS_MAX - len(self._busy - self._ending))]
        self._busy.update(item.token_id for item in asked)
        return [AskDatabase(item) for item in asked]

    def _left(self, unended: LiveTransaction) -> None:
        self._busy.discard(unended.token_id)
        self._ending.discard(unended.token_id)

    def _forget(self) -> None:
        """Forgets the times of transactions that are on no list."""
        names = {item.token_id for item in self.prepared}
        self._seen_ms = {name: ms for name, ms in self._seen_ms.items() if name in names}
        self._due_ms = {name: ms for name, ms in self._due_ms.items() if name in names}
