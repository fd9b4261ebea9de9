"""The read-committed filter of one data partition: a pure machine.

*Source*: docs/protocols D1, D2, D3, D4, D5, D7. The driver carries out a list of effects in its
order.

*Invariants*:
- D1 A record is delivered iff its transaction committed and its offset is below the marker's end.
- D2 Delivery is in offset order and never passes a record whose outcome is unknown.
- D3 A record without transaction is delivered as soon as everything before it is decided.
- D4 A snapshot decides records whose transaction has no marker any more. A newer snapshot is used
  once every waiting record is at or past its F. Records below its F that are undecided when all
  markers are read are reported as lost.
- D5 Records, markers and snapshots may come in any order relative to each other.
- D7 Records behind an undecided one are kept, never dropped; fetching is paused at a limit.

An outcome is forgotten once the snapshot contains it. Memory is one dict entry of about 150 bytes
for each transaction that has ended above the snapshot's M.

*Refuses*: to guess an outcome, in either direction, and a marker that contradicts an earlier one
or the snapshot.
"""

import struct
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from stilltide.pipeline.errors import MarkerConflictError
from stilltide.schemas.values import EndOffset, Offset, TxnId


class RecordVerdict(StrEnum):
    """What readers of committed data do with a record.

    Attributes:
        VISIBLE: they see the record, once they come to its offset.
        ABORTED: they never see the record, since its transaction aborted.
        UNDECIDED: they wait, since the outcome of its transaction is not known.
        LATE: they never see the record: it is at or past the end of its committed transaction.
        MALFORMED: they never see the record: its `txn` header is malformed.
        LOST: they never see the record: how its transaction ended is not known any more.
    """

    VISIBLE = "visible"
    ABORTED = "aborted"
    UNDECIDED = "undecided"
    LATE = "late"
    MALFORMED = "malformed"
    LOST = "lost"


class SnapshotView(Protocol):
    """Which records of a data partition are hidden, from F up to M."""

    @property
    def max_read_position(self) -> EndOffset:
        """M: every transaction with a record below this offset has ended and is accounted for."""
        ...

    @property
    def valid_from(self) -> EndOffset:
        """F: the snapshot decides no record below this offset, for those have left the log."""
        ...

    def hides(self, coordinator: int, sequence: int) -> bool:
        """Whether every record of this transaction at or past F is hidden."""
        ...

    def holds(self, coordinator: int, sequence: int) -> bool:
        """Whether the aborted set holds this very transaction."""
        ...


P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Deliver(Generic[P]):
    """Effect: hand these payloads to the application, in this order.

    Attributes:
        payloads: payloads of visible records in offset order; empty if all records were hidden.
        position: end offset of the records that are delivered or withheld for good; may be
            committed once the application has the payloads.
    """

    payloads: list[P]
    position: EndOffset


@dataclass(frozen=True, slots=True)
class PauseFetching:
    """Effect: stop fetching the partition; records already fetched may still be fed (D7)."""


@dataclass(frozen=True, slots=True)
class ResumeFetching:
    """Effect: fetch the partition again."""


class Reason(Enum):
    """Why a record is withheld although its transaction is not known to have aborted."""

    LATE = "late: at or past the end of its committed transaction"
    MALFORMED = "its `txn` header is malformed"
    LOST = "lost to retention: whether its transaction committed is not known any more"


@dataclass(frozen=True, slots=True)
class Withheld:
    """Effect: report a record that is withheld although its transaction did not abort.

    Attributes:
        offset: offset of the record.
        reason: why the record is withheld (D1, D4).
        txn: transaction of the record; None: the header is malformed.
    """

    offset: Offset
    reason: Reason
    txn: TxnId | None


Effect: TypeAlias = Deliver[P] | PauseFetching | ResumeFetching | Withheld
"""What the driver carries out."""


class Undecided(NamedTuple):
    """The first undecided record of a partition: its transaction has no known outcome (D2)."""

    offset: Offset
    txn: TxnId


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts of one partition since its filter began.

    Attributes:
        delivered: records handed over to the application.
        hidden: records of aborted transactions.
        late: records at or past the end offset of their committed transaction.
        malformed: records withheld because of their `txn` header.
        lost: records whose transaction's outcome cannot be known any more (D4).
        waiting: records held from the first undecided one on.
        outcomes: transactions whose outcome is held because the snapshot does not contain it.
        position: position of the last `Deliver`.
        undecided: first undecided record; None when there is none.
        skipped: records that the group has read on another cluster (I11).
        redelivered: records that were made ready to be delivered again (G2).
        dead_lettered: records that were moved to the dead-letter topic (G2).
        foreign_commits: commits of the group with another program's metadata, which was passed over
            (G).
        undecodable: records that were passed over, or moved to the dead-letter topic, since the
            application's deserializer has refused them (`on_undecodable`).
    """

    delivered: int
    hidden: int
    late: int
    malformed: int
    lost: int
    waiting: int
    outcomes: int
    position: EndOffset
    undecided: Undecided | None
    skipped: int = 0
    redelivered: int = 0
    dead_lettered: int = 0
    foreign_commits: int = 0
    undecodable: int = 0


MALFORMED = b""
"""Used as the transaction of a record whose `txn` header is malformed."""

_ABORTED = -1
"""The end offset of an aborted transaction: every record is at or past it."""
_LOST = -2
"""The end offset of a transaction whose outcome cannot be known any more (D4)."""
_UNKNOWN_HEADER = -3
"""The end offset of `MALFORMED`."""

_VERDICTS = {
    _ABORTED: RecordVerdict.ABORTED,
    _LOST: RecordVerdict.LOST,
    _UNKNOWN_HEADER: RecordVerdict.MALFORMED,
}

_TOLD_MAX = 10_000
_ids_of = struct.Struct(">QQ").unpack  # a third of what `TxnId.from_bytes` takes


class PartitionFilter(Generic[P]):
    """Takes the records, markers and snapshots of one partition, and decides what to deliver.

    Args:
        position: offset of the first record that may be fed, >= 0.
        waiting_max: records held from an undecided one on before fetching pauses, >= 1; fetching
            resumes at half of that. Records already fetched at the pause may exceed the limit.
    """

    def __init__(self, *, position: Offset, waiting_max: int) -> None:
        assert position >= 0
        assert waiting_max >= 1
        self._waiting_max = waiting_max
        self._read_to: int = position
        self._position_told: int = position
        self._waiting: deque[tuple[int, bytes | None, P]] = deque()
        self._outcomes: dict[bytes, int] = {MALFORMED: _UNKNOWN_HEADER}
        self._snapshot: SnapshotView | None = None
        self._newer: SnapshotView | None = None
        self._max_read_position: int = 0  # of the snapshot
        self._told: dict[bytes, int] = {}  # cached end offsets by the snapshot's answer
        self._lost_below = 0
        self._withheld: list[Withheld] = []
        self._paused = False
        self._delivered = self._hidden = self._late = self._malformed = self._lost = 0

    def records_read(
        self, offsets: Sequence[int], txns: Sequence[bytes | None], payloads: Sequence[P]
    ) -> list[Effect[P]]:
        """Takes records just read, in offset order.

        Args:
            offsets: offset of each record.
            txns: the 16 bytes of each `txn` header, None without header, or `MALFORMED`.
            payloads: for each record, what is delivered to the application.
        """
        if not offsets:
            return []
        assert offsets[0] >= self._read_to, "records come in offset order, each once"
        last_offset = offsets[-1]
        self._read_to = last_offset + 1
        if not self._waiting and (aborted := self._aborted(last_offset, txns)) is not None:
            visible = [*payloads]
            if aborted:
                visible = [it for it, txn in zip(payloads, txns, strict=True) if txn not in aborted]
            self._delivered += len(visible)
            self._hidden += len(payloads) - len(visible)
            return self._effects(visible)
        records = [*zip(offsets, txns, payloads, strict=True)]
        if self._waiting:
            self._waiting.extend(records)
            return self._effects([])
        passed, visible = self._decide(records)
        if passed < len(records):
            self._waiting.extend(records[passed:])
        return self._effects(visible)

    def read_again(
        self, records: Iterable[tuple[int, bytes | None, P]]
    ) -> tuple[list[P], EndOffset | None]:
        """The visible ones among records below `position` that are read a second time.

        All of these records must still be in the log. Stops at the first record that is undecided
        or cannot be decided any more, and returns that record's offset; else None.
        """
        visible: list[P] = []
        for offset, txn, payload in records:
            if txn is not None:
                end_offset = self._outcomes.get(txn)
                if end_offset is None:
                    end_offset = self._unmarked(offset, txn)
                if end_offset is None:
                    return visible, EndOffset(offset)
                if offset >= end_offset:
                    continue
            visible.append(payload)
        return visible, None

    def verdict(self, offset: int, txn: bytes | None) -> RecordVerdict:
        """What the markers and the snapshot say of a record, whatever is in front of the record.

        The record need not have been fed, and must still be in the log.
        """
        if txn is None:  # D3
            return RecordVerdict.VISIBLE
        end_offset = self._outcomes.get(txn)
        if end_offset is None:
            end_offset = self._unmarked(offset, txn)
        if end_offset is None:
            return RecordVerdict.UNDECIDED
        return (
            RecordVerdict.VISIBLE
            if offset < end_offset
            else _VERDICTS.get(end_offset, RecordVerdict.LATE)
        )

    def end_reached(self, end_offset: EndOffset) -> list[Effect[P]]:
        """Takes note that every readable record below `end_offset` was fed."""
        if end_offset <= self._read_to:
            return []
        self._read_to = end_offset
        return self._effects([])

    def marker_read(
        self, txn: bytes, *, committed: bool, end_offset: EndOffset | None
    ) -> list[Effect[P]]:
        """Takes the outcome of a transaction on this partition; a repeat changes nothing.

        A commit has an end offset; an abort hides every record, whatever its offset.

        Raises:
            MarkerConflictError: another outcome or end offset of the transaction is known.
        """
        outcome = _ABORTED
        if committed:
            assert end_offset is not None, "a commit has an end offset"
            outcome = int(end_offset)
        known = self._outcomes.setdefault(txn, outcome)
        if known != outcome:
            raise _conflict(txn, _describe(known), _describe(outcome))
        visible: list[P] = []
        decides = bool(self._waiting) and self._waiting[0][1] == txn
        if decides:
            visible = self._go_on()
        if self._snapshot is not None and _absorbs(self._snapshot, txn, outcome):
            del self._outcomes[txn]
        return self._effects(visible) if decides else []

    def snapshot_read(self, snapshot: SnapshotView) -> list[Effect[P]]:
        """Takes a newer snapshot of the same topic (E8).

        Raises:
            MarkerConflictError: the snapshot's aborted set holds a transaction whose marker is a
                commit.
        """
        self._newer = snapshot
        return self._effects([])

    def markers_read_to_end(self) -> list[Effect[P]]:
        """Takes note that all markers are read that existed when the newest snapshot was read.

        Records below that snapshot's F that are still undecided are reported as lost (D4).
        """
        if self._newer is None:
            return []
        self._lost_below = max(self._lost_below, self._newer.valid_from)
        return self._effects(self._go_on())

    @property
    def snapshot(self) -> SnapshotView | None:
        """The snapshot in use; None: none yet."""
        return self._snapshot

    @property
    def newer_snapshot(self) -> SnapshotView | None:
        """The snapshot that will be used once no waiting record is below its F."""
        return self._newer

    @property
    def position(self) -> EndOffset:
        """End offset of the records that were delivered or withheld for good (D2)."""
        return EndOffset(self._waiting[0][0] if self._waiting else self._read_to)

    @property
    def undecided(self) -> Undecided | None:
        """The first undecided record, in front of which delivery stops."""
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
            lost=self._lost,
            waiting=len(self._waiting),
            outcomes=len(self._outcomes) - 1,
            position=self.position,
            undecided=self.undecided,
        )

    def _aborted(self, last_offset: int, txns: Iterable[bytes | None]) -> set[bytes] | None:
        """The aborted transactions of these records, if all records of the others are visible.

        None: `_decide` must look at each record. So most of what is read costs one look-up for each
        transaction instead of each record.
        """
        aborted: set[bytes] = set()
        for txn in set(txns):
            if txn is None:
                continue
            end_offset = self._outcomes.get(txn)
            if end_offset is None:
                end_offset = self._unmarked(last_offset, txn)
            if end_offset == _ABORTED:
                aborted.add(txn)
            elif end_offset is None or last_offset >= end_offset:
                return None
        return aborted

    def _decide(self, records: Collection[tuple[int, bytes | None, P]]) -> tuple[int, list[P]]:
        """How many records come before the first undecided one (D2), and the visible ones (D1)."""
        visible: list[P] = []
        end_offset_of = self._outcomes.get
        passed = 0
        for passed, (offset, txn, payload) in enumerate(records):  # noqa: B007 - used after break
            if txn is not None:
                end_offset = end_offset_of(txn)
                if end_offset is None:
                    end_offset = self._unmarked(offset, txn)
                    if end_offset is None:
                        break  # D2
                if offset >= end_offset:
                    self._withhold(offset, txn, end_offset)
                    continue
            visible.append(payload)
        else:
            passed = len(records)
        self._delivered += len(visible)
        return passed, visible

    def _unmarked(self, offset: int, txn: bytes) -> int | None:
        """D4: the end offset that decides a record without a marker; None: undecided."""
        if self._snapshot is not None:
            end_offset = self._told.get(txn)
            if end_offset is None:
                hidden = self._snapshot.hides(*_ids_of(txn))
                end_offset = _ABORTED if hidden else self._max_read_position
                if len(self._told) >= _TOLD_MAX:
                    self._told.clear()
                self._told[txn] = end_offset
            if offset < end_offset or end_offset == _ABORTED:
                return end_offset
        return _LOST if offset < self._lost_below else None

    def _go_on(self) -> list[P]:
        """The visible records among those that can be decided now."""
        passed, visible = self._decide(self._waiting)
        for _ in range(passed):
            self._waiting.popleft()
        return visible

    def _take_up(self, snapshot: SnapshotView) -> None:
        self._snapshot, self._newer = snapshot, None
        self._max_read_position = snapshot.max_read_position
        self._told.clear()
        absorbed = [
            txn
            for txn, outcome in self._outcomes.items()
            if txn != MALFORMED and _absorbs(snapshot, txn, outcome)
        ]
        for txn in absorbed:
            del self._outcomes[txn]

    def _withhold(self, offset: int, txn: bytes, end_offset: int) -> None:
        if end_offset == _ABORTED:
            self._hidden += 1
        elif end_offset == _UNKNOWN_HEADER:
            self._malformed += 1
            self._withheld.append(Withheld(Offset(offset), Reason.MALFORMED, None))
        elif end_offset == _LOST:
            self._lost += 1
            self._withheld.append(Withheld(Offset(offset), Reason.LOST, TxnId.from_bytes(txn)))
        else:
            self._late += 1
            self._withheld.append(Withheld(Offset(offset), Reason.LATE, TxnId.from_bytes(txn)))

    def _effects(self, visible: list[P]) -> list[Effect[P]]:
        if self._newer is not None and self.position >= self._newer.valid_from:
            self._take_up(self._newer)
            visible += self._go_on()
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


def _absorbs(snapshot: SnapshotView, txn: bytes, outcome: int) -> bool:
    """Whether the snapshot decides every record of a transaction as its marker does (E2)."""
    if outcome > snapshot.max_read_position:
        return False
    ids: tuple[int, int] = _ids_of(txn)
    if outcome == _ABORTED:
        return snapshot.hides(*ids)
    if snapshot.holds(*ids):
        raise _conflict(txn, _describe(outcome), "abort, by the snapshot")
    return True


def _conflict(txn: bytes, first: str, now: str) -> MarkerConflictError:
    return MarkerConflictError(
        f"transaction {TxnId.from_bytes(txn)} has two outcomes",
        detail=f"first {first}, now {now}",
        hint="something else writes to the marker topic, or two coordinators share an id",
    )


def _describe(outcome: int) -> str:
    return "abort" if outcome == _ABORTED else f"commit to end offset {outcome}"
