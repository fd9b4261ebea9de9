"""The read-committed filter of one data partition: a pure machine.

*Source*: protocols.md D1-D3, D5 and D7, as far as they need no snapshots.

*Invariants*:
- D1 A record is delivered iff its transaction committed and it lies below the marker's end offset.
- D2 Delivery is in offset order and never passes a record whose outcome is unknown.
- D3 A record without transaction is delivered as soon as everything before it is decided.
- D5 Records and markers may come in any order relative to each other.
- D7 Records behind an undecided one are kept, never dropped; fetching is paused at a limit.

Outcomes are kept for ever until snapshots bound them: one dict entry for each transaction of the
partition, about 150 bytes.

*Refuses*: to guess an outcome, in either direction, and a marker that contradicts an earlier one.
"""

from collections import deque
from collections.abc import Collection, Sequence
from typing import Generic, TypeVar

from pipeline.core.read_committed.effects import (
    Deliver,
    Effect,
    PauseFetching,
    ResumeFetching,
    Statistics,
    Undecided,
    Withheld,
)
from pipeline.errors import MarkerConflictError
from schemas.values import EndOffset, Offset, TxnId

P = TypeVar("P")

MALFORMED = b""
"""Stands for the transaction of a record whose `txn` header is malformed."""

_ABORTED = -1
"""The end offset of an aborted transaction: every record lies at or past it."""


class PartitionFilter(Generic[P]):
    """Feeds on the records and markers of one partition; says what to deliver.

    Args:
        position: offset of the first record that may be fed, >= 0.
        waiting_max: records held at and behind an undecided one before fetching pauses, >= 1; it
            resumes at half of that. Records under way when it pauses come on top.
    """

    def __init__(self, *, position: Offset, waiting_max: int) -> None:
        assert position >= 0
        assert waiting_max >= 1
        self._waiting_max = waiting_max
        self._read_to: int = position
        self._position_told: int = position
        self._waiting: deque[tuple[int, bytes | None, P]] = deque()
        self._outcomes: dict[bytes, int] = {MALFORMED: _ABORTED}
        self._withheld: list[Withheld] = []
        self._paused = False
        self._delivered = self._hidden = self._late = self._malformed = 0

    def records_read(self, records: Sequence[tuple[int, bytes | None, P]]) -> list[Effect[P]]:
        """Takes records just read: (offset, transaction, payload), in offset order.

        The transaction is the 16 bytes of the `txn` header, None without, or `MALFORMED`.
        """
        if not records:
            return []
        assert records[0][0] >= self._read_to, "records come in offset order, each once"
        self._read_to = records[-1][0] + 1
        if self._waiting:
            self._waiting.extend(records)
            return self._effects([])
        passed, visible = self._decide(records)
        if passed < len(records):
            self._waiting.extend(records[passed:])
        return self._effects(visible)

    def end_reached(self, end_offset: EndOffset) -> list[Effect[P]]:
        """Takes note that no readable record lies below `end_offset` that was not fed."""
        if end_offset <= self._read_to:
            return []
        self._read_to = end_offset
        return self._effects([])

    def marker_read(
        self, txn: bytes, *, committed: bool, end_offset: EndOffset | None
    ) -> list[Effect[P]]:
        """Takes the outcome of a transaction on this partition; a repeat changes nothing.

        A commit has an end offset; an abort hides every record, wherever it lies.

        Raises:
            MarkerConflictError: another outcome of it, or another end offset, is known.
        """
        outcome = _ABORTED
        if committed:
            assert end_offset is not None, "a commit says where it ends"
            outcome = int(end_offset)
        known = self._outcomes.setdefault(txn, outcome)
        if known != outcome:
            raise MarkerConflictError(
                f"transaction {TxnId.from_bytes(txn)} has two outcomes",
                detail=f"first {_describe(known)}, now {_describe(outcome)}",
                hint="something else writes to the marker topic, or two coordinators share an id",
            )
        if not self._waiting or self._waiting[0][1] != txn:
            return []
        passed, visible = self._decide(self._waiting)
        for _ in range(passed):
            self._waiting.popleft()
        return self._effects(visible)

    @property
    def position(self) -> EndOffset:
        """Everything below it was delivered or is withheld for good; never past an undecided."""
        return EndOffset(self._waiting[0][0] if self._waiting else self._read_to)

    @property
    def undecided(self) -> Undecided | None:
        """The record it stands at."""
        if not self._waiting:
            return None
        offset, txn, _ = self._waiting[0]
        assert txn is not None
        return Undecided(Offset(offset), TxnId.from_bytes(txn))

    @property
    def statistics(self) -> Statistics:
        """The counts so far."""
        return Statistics(
            delivered=self._delivered,
            hidden=self._hidden,
            late=self._late,
            malformed=self._malformed,
            waiting=len(self._waiting),
            outcomes=len(self._outcomes) - 1,
            position=self.position,
            undecided=self.undecided,
        )

    def outcomes(self) -> dict[TxnId, bool]:
        """Every transaction known to have ended here: whether it committed."""
        return {
            TxnId.from_bytes(txn): outcome != _ABORTED
            for txn, outcome in self._outcomes.items()
            if txn != MALFORMED
        }

    def _decide(self, records: Collection[tuple[int, bytes | None, P]]) -> tuple[int, list[P]]:
        """How many records come before the first undecided one, and the visible among them."""
        visible: list[P] = []
        end_offset_of = self._outcomes.get
        passed = 0
        for passed, (offset, txn, payload) in enumerate(records):  # noqa: B007 - used after break
            if txn is not None:
                end_offset = end_offset_of(txn)
                if end_offset is None:
                    break
                if offset >= end_offset:
                    self._withhold(offset, txn, end_offset)
                    continue
            visible.append(payload)
        else:
            passed = len(records)
        self._delivered += len(visible)
        return passed, visible

    def _withhold(self, offset: int, txn: bytes, end_offset: int) -> None:
        if txn == MALFORMED:
            self._malformed += 1
            self._withheld.append(Withheld(Offset(offset), None))
        elif end_offset == _ABORTED:
            self._hidden += 1
        else:
            self._late += 1
            self._withheld.append(Withheld(Offset(offset), TxnId.from_bytes(txn)))

    def _effects(self, visible: list[P]) -> list[Effect[P]]:
        effects: list[Effect[P]] = []
        if self._withheld:
            effects.extend(self._withheld)
            self._withheld.clear()
        position = self.position
        if position > self._position_told:
            self._position_told = position
            effects.append(Deliver(visible, position))
        if not self._paused and len(self._waiting) >= self._waiting_max:
            self._paused = True
            effects.append(PauseFetching())
        elif self._paused and len(self._waiting) <= self._waiting_max // 2:
            self._paused = False
            effects.append(ResumeFetching())
        return effects


def _describe(outcome: int) -> str:
    return "abort" if outcome == _ABORTED else f"commit to end offset {outcome}"
