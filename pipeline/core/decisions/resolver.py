"""Resolves prepared transactions that their clients have left behind, by the rows of a database.

*Source*: docs/protocols L4, L5, L6.

*Invariants*:
- a transaction is ended as the row says that stands in the table of its decider, and in no other
  way: what is not known stays prepared, and what another database decides is left alone (L4),
- a row is deleted only when the coordinator has said, after the row was read, that the row's
  transaction has ended, or is decided (L5),
- any number of resolvers may run at the same time, and each may stop at any step: nothing that a
  resolver remembers decides anything.

A round reads rows, then lists what has not ended, then decides and ends, and deletes rows last.
Each database has a machine of its own: one that does not answer holds up no other one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stilltide.schemas.coordinator.prepared_tokens import txn_named
from stilltide.schemas.values import TxnId

ROWS_MAX = 5_000
"""Rows that a round reads; the next round goes on behind them, at once."""

DECISIONS_MAX = 8
"""Transactions that a round decides; the next round takes others, at once."""

RETRY_MS = 2_000
"""Pause before a transaction is decided again whose row is locked, or whose database is away."""

ROUND_MS = 1_000
"""Pause between two rounds."""


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
    """Effect: asks every coordinator what has not ended; the rows of the round were read before.

    Comes back as `listed`.
    """


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
    """

    def __init__(self, decider: str, *, resolve_after_ms: int) -> None:
        self._decider = decider
        self._resolve_after_ms = resolve_after_ms
        self._after = ""
        self._keys: Sequence[str] = ()
        self._reading = False
        self._listing = False
        self._busy: set[str] = set()
        self._seen_ms: dict[str, float] = {}
        self._due_ms: dict[str, float] = {}
        self._more = False
        self._next_ms = 0.0

    @property
    def resting(self) -> bool:
        """Whether no round is under way."""
        return not (self._reading or self._listing or self._busy)

    @property
    def more(self) -> bool:
        """Whether the last round has left something to do for another one that begins at once."""
        return self._more

    @property
    def deadline_ms(self) -> float | None:
        """When the next round is due; None while a round is under way."""
        return self._next_ms if self.resting else None

    def tick(self, now_ms: float) -> list[ResolverEffect]:
        """Begins a round that is due."""
        if not self.resting or now_ms < self._next_ms:
            return []
        self._reading, self._more = True, False
        return [ReadRows(self._after)]

    def rows(self, keys: Sequence[str]) -> list[ResolverEffect]:
        """Keys of the table were read; none, too, if the table could not be read."""
        if not self._reading:
            return []
        self._reading, self._listing = False, True
        self._keys = keys
        self._more = len(keys) >= ROWS_MAX
        self._after = keys[-1] if self._more else ""
        return [ListUnended()]

    def listed(
        self, answers: Mapping[int, Sequence[LiveTransaction]], now_ms: float
    ) -> list[ResolverEffect]:
        """The coordinators, by number, that have said what has not ended; others did not answer."""
        if not self._listing:
            return []
        self._listing = False
        unended = [item for listed in answers.values() for item in listed]
        effects = self._delete_ended(answers, unended)
        prepared = [item for item in unended if item.token_id and item.decider == self._decider]
        names = {item.token_id for item in prepared}
        self._seen_ms = {name: self._seen_ms.get(name, now_ms) for name in names}
        self._due_ms = {name: due for name, due in self._due_ms.items() if name in names}
        effects += self._decide(prepared, now_ms)
        self._round_over(now_ms)
        return effects

    def decided(self, unended: LiveTransaction, *, committed: bool) -> list[ResolverEffect]:
        """The row that stands says how the transaction ends."""
        return [EndTransaction(unended, committed)] if unended.token_id in self._busy else []

    def undecided(self, unended: LiveTransaction, now_ms: float) -> list[ResolverEffect]:
        """No row stands yet, or the database is away; the transaction stays prepared."""
        self._due_ms[unended.token_id] = now_ms + RETRY_MS
        return self._left(unended, now_ms)

    def ended(self, unended: LiveTransaction, now_ms: float) -> list[ResolverEffect]:
        """The coordinator has said that the transaction is decided, whatever the outcome."""
        known = unended.token_id in self._busy
        self._left(unended, now_ms)
        return [DeleteRows((unended.token_id,))] if known else []

    def not_ended(self, unended: LiveTransaction, now_ms: float) -> list[ResolverEffect]:
        """The coordinator has not answered; a later round asks again."""
        return self.undecided(unended, now_ms)

    def list_failed(self, now_ms: float) -> list[ResolverEffect]:
        """No coordinator could be asked."""
        return self.listed({}, now_ms)

    def _delete_ended(
        self,
        answers: Mapping[int, Sequence[LiveTransaction]],
        unended: Sequence[LiveTransaction],
    ) -> list[ResolverEffect]:
        """L5: rows read before the coordinator listed what has not ended, without them."""
        alive = {item.txn for item in unended}
        over = tuple(
            key
            for key in self._keys
            if (txn := txn_named(key)) is not None  # else a stranger's row, which is left alone
            and txn.coordinator in answers
            and txn not in alive
        )
        self._keys = ()
        return [DeleteRows(over)] if over else []

    def _decide(self, items: Sequence[LiveTransaction], now_ms: float) -> list[ResolverEffect]:
        """Asks about what has been due for longest: locked rows hold up no other one (L6).

        A coordinator whose clock is wrong may say for hours that a transaction is young.
        """
        after_ms, seen_ms = self._resolve_after_ms, self._seen_ms
        old = [
            item
            for item in items
            if max(item.prepared_ms, now_ms - seen_ms[item.token_id]) >= after_ms
        ]
        due_ms = {item: self._due_ms.setdefault(item.token_id, now_ms) for item in old}
        due = [item for item in old if due_ms[item] <= now_ms]
        due.sort(key=lambda item: (due_ms[item], -item.prepared_ms))
        self._more |= len(due) > DECISIONS_MAX
        self._busy |= {item.token_id for item in due[:DECISIONS_MAX]}
        return [AskDatabase(item) for item in due[:DECISIONS_MAX]]

    def _left(self, unended: LiveTransaction, now_ms: float) -> list[ResolverEffect]:
        self._busy.discard(unended.token_id)
        self._round_over(now_ms)
        return []

    def _round_over(self, now_ms: float) -> None:
        if self.resting:
            self._next_ms = now_ms if self._more else now_ms + ROUND_MS
