"""Resolves prepared transactions that their clients have left behind, by rows in databases.

*Source*: docs/protocols L4, L5, L6.

*Invariants*:
- a transaction is ended as the row says that stands in the table of its decider, and in no other
  way: what is not known stays prepared (L4),
- a row is deleted only when the coordinator has said, after the row was read, that the row's
  transaction has ended, or is decided (L5),
- any number of resolvers may run at the same time, and each may stop at any step: nothing that a
  resolver remembers decides anything.

A round reads rows, then lists what has not ended, then decides and ends, and deletes rows last.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stilltide.schemas.values import TxnId

ROWS_MAX = 5_000
"""Rows that a round reads of each table; the next round goes on behind them, at once."""

DECISIONS_MAX = 8
"""Transactions that a round decides in each database; the next round takes others, at once."""

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
    """

    txn: TxnId
    token_id: str = ""
    decider: str = ""
    prepared_ms: int = 0


class Row(NamedTuple):
    """A row of a table of decisions: its key, and the transaction that the key names."""

    token_id: str
    txn: TxnId


@dataclass(frozen=True, slots=True)
class ReadRows:
    """Effect: reads keys of rows behind a key, in order, `ROWS_MAX` at most; `rows` comes back."""

    decider: str
    after: str


@dataclass(frozen=True, slots=True)
class ListUnended:
    """Effect: asks every coordinator what has not ended; every row of the round is read before.

    Comes back as `listed`.
    """


@dataclass(frozen=True, slots=True)
class AskDatabase:
    """Effect: inserts the row `aborted` unless a row stands, then reads the row that stands.

    The insert is a database transaction of its own, which waits for an application that has
    inserted the row and not ended yet. Comes back as `decided` or `undecided`.
    """

    decider: str
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

    decider: str
    token_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnknownDecider:
    """Effect: tells the log, once, that no address is known for a decider; example is `txn`."""

    decider: str
    txn: TxnId


ResolverEffect = ReadRows | ListUnended | AskDatabase | EndTransaction | DeleteRows | UnknownDecider


class Resolver:
    """Resolves round by round; see module docstring.

    Args:
        deciders: names of the databases whose address is known.
        resolve_after_ms: how long a transaction is left to its client.
    """

    def __init__(self, deciders: Collection[str], *, resolve_after_ms: int) -> None:
        self._resolve_after_ms = resolve_after_ms
        self._after = dict.fromkeys(deciders, "")
        self._rows: dict[str, Sequence[Row]] = {}
        self._unread: set[str] = set()
        self._listing = False
        self._busy: set[str] = set()
        self._later: dict[str, float] = {}
        self._unknown: set[str] = set()
        self._more = False
        self._next_ms = 0.0

    @property
    def resting(self) -> bool:
        """Whether no round is under way."""
        return not (self._unread or self._listing or self._busy)

    @property
    def more(self) -> bool:
        """Whether the last round has left something to do for another one that begins at once."""
        return self._more

    @property
    def deadline_ms(self) -> float | None:
        """When the next round is due; None while a round is under way."""
        return self._next_ms if self.resting and self._after else None

    def tick(self, now_ms: float) -> list[ResolverEffect]:
        """Begins a round that is due."""
        if not self.resting or not self._after or now_ms < self._next_ms:
            return []
        self._rows, self._more = {}, False
        self._unread = set(self._after)
        return [ReadRows(decider, after) for decider, after in self._after.items()]

    def rows(self, decider: str, rows: Sequence[Row]) -> list[ResolverEffect]:
        """Rows of a table were read; none, too, if the table could not be read."""
        if decider not in self._unread:
            return []
        self._unread.discard(decider)
        self._rows[decider] = rows
        full = len(rows) >= ROWS_MAX
        self._after[decider] = rows[-1].token_id if full else ""
        self._more |= full
        if self._unread:
            return []
        self._listing = True
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
        prepared = [item for item in unended if item.token_id and item.decider]
        names = {item.token_id for item in prepared}
        self._later = {name: due for name, due in self._later.items() if name in names}
        for decider, items in _by_decider(prepared).items():
            if decider in self._after:
                effects += self._decide(decider, items, now_ms)
            elif decider not in self._unknown:
                self._unknown.add(decider)
                effects.append(UnknownDecider(decider, items[0].txn))
        self._round_over(now_ms)
        return effects

    def decided(self, unended: LiveTransaction, *, committed: bool) -> list[ResolverEffect]:
        """The row that stands says how the transaction ends."""
        return [EndTransaction(unended, committed)] if unended.token_id in self._busy else []

    def undecided(self, unended: LiveTransaction, now_ms: float) -> list[ResolverEffect]:
        """No row stands yet, or the database is away; the transaction stays prepared."""
        self._later[unended.token_id] = now_ms + RETRY_MS
        return self._left(unended, now_ms)

    def ended(self, unended: LiveTransaction, now_ms: float) -> list[ResolverEffect]:
        """The coordinator has said that the transaction is decided, whatever the outcome."""
        known = unended.token_id in self._busy
        self._left(unended, now_ms)
        return [DeleteRows(unended.decider, (unended.token_id,))] if known else []

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
        """Rows that were read before the coordinator listed what has not ended, without them."""
        alive = {item.txn for item in unended}
        effects: list[ResolverEffect] = []
        for decider, rows in self._rows.items():
            over = tuple(
                row.token_id
                for row in rows
                if row.txn.coordinator in answers and row.txn not in alive
            )
            if over:
                effects.append(DeleteRows(decider, over))
        self._rows = {}
        return effects

    def _decide(
        self, decider: str, items: Sequence[LiveTransaction], now_ms: float
    ) -> list[ResolverEffect]:
        due = [
            item
            for item in items
            if item.prepared_ms >= self._resolve_after_ms
            and self._later.get(item.token_id, now_ms) <= now_ms
        ]
        due.sort(key=lambda item: -item.prepared_ms)
        self._more |= len(due) > DECISIONS_MAX
        self._busy |= {item.token_id for item in due[:DECISIONS_MAX]}
        return [AskDatabase(decider, item) for item in due[:DECISIONS_MAX]]

    def _left(self, unended: LiveTransaction, now_ms: float) -> list[ResolverEffect]:
        self._busy.discard(unended.token_id)
        self._round_over(now_ms)
        return []

    def _round_over(self, now_ms: float) -> None:
        if self.resting:
            self._next_ms = now_ms if self._more else now_ms + ROUND_MS


def _by_decider(prepared: Sequence[LiveTransaction]) -> dict[str, list[LiveTransaction]]:
    grouped: dict[str, list[LiveTransaction]] = {}
    for item in prepared:
        grouped.setdefault(item.decider, []).append(item)
    return grouped
