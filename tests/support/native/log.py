"""A model of a partition with native transactions, which knows the outcome of every record.

The model appends as a broker does, keeps the transaction index as Kafka's source does (a list,
searched from its beginning), removes what retention and the cleaner may remove, and answers
fetches. The records that a reader must see come from a dict, not from any rule about batches.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from stilltide.schemas.native.transactions import NO_PRODUCER_ID, AbortedTransaction, Batch, Control
from tests.support.native.open_transactions import AbortedEntry

Choose = Callable[[int], int]
"""Draws one of 0 ... n - 1."""


@dataclass
class Piece:
    """A batch in the log, and what the model knows about it."""

    base: int
    last: int
    producer: int
    transactional: bool
    control: Control | None
    txn: int | None
    """The transaction of a data batch, or the one that a marker ends."""
    offsets: list[int]
    """Offsets of the records that compaction has left."""

    @property
    def header(self) -> Batch:
        """The batch as a reader gets it; a control batch without record has no type."""
        control = self.control
        if control is not None and not self.offsets:
            control = Control.OTHER
        return Batch(
            self.base, self.last, self.producer, self.transactional, control, len(self.offsets)
        )


@dataclass
class Fetched:
    """An answer at read_committed."""

    pieces: list[Piece]
    aborted: list[AbortedTransaction]

    @property
    def batches(self) -> list[Batch]:
        """The headers of the batches."""
        return [piece.header for piece in self.pieces]


@dataclass
class NativeLog:
    """One partition. Offsets never move."""

    start: int = 0
    end: int = 0
    pieces: list[Piece] = field(default_factory=list)
    rows: list[AbortedEntry] = field(default_factory=list)
    open: dict[int, int] = field(default_factory=dict)
    """Producer to its open transaction."""
    first_of: dict[int, int] = field(default_factory=dict)
    """Transaction to its first offset."""
    outcome: dict[int, Control] = field(default_factory=dict)

    def produce(self, producer: int, count: int) -> None:
        """A batch of the producer's transaction, which it begins if need be."""
        if producer not in self.open:
            txn = len(self.first_of)
            self.open[producer], self.first_of[txn] = txn, self.end
        self._append(producer, count, transactional=True, txn=self.open[producer])

    def produce_outside(self, producer: int, count: int) -> None:
        """A batch outside transactions."""
        self._append(producer, count, transactional=False, txn=None)

    def mark(self, producer: int, control: Control) -> None:
        """A marker, whether or not the producer has a transaction open."""
        txn = self.open.pop(producer, None)
        offset = self._append(producer, 1, transactional=True, txn=txn, control=control)
        if txn is None:
            return
        self.outcome[txn] = control
        if control is Control.ABORT:
            stable = min((self.first_of[one] for one in self.open.values()), default=offset + 1)
            self.rows.append(AbortedEntry(producer, self.first_of[txn], offset, stable))

    @property
    def stable(self) -> int:
        """The last stable offset."""
        first = min((self.first_of[one] for one in self.open.values()), default=self.end)
        return max(first, self.start)

    def committed(self, first: int, until: int) -> list[int]:
        """The offsets that a reader must see in `[first, until)`."""
        return [
            offset
            for piece in self.pieces
            if piece.control is None
            and (piece.txn is None or self.outcome.get(piece.txn) is Control.COMMIT)
            for offset in piece.offsets
            if max(first, self.start) <= offset < until
        ]

    def search(self, first: int, until: int) -> tuple[list[AbortedEntry], bool]:
        """Kafka's `TransactionIndex.collectAbortedTxns`, line by line."""
        found: list[AbortedEntry] = []
        for row in self.rows:
            if row.last_offset >= first and row.first_offset < until:
                found.append(row)
            if row.last_stable_offset >= until:
                return found, True
        return found, False

    def fetch(self, position: int, batches_max: int, choose: Choose) -> Fetched:
        """Whole batches from the one at `position` on, below the last stable offset.

        The upper bound of the list is anything from the end of the batches on, because a broker
        takes it from a sparse index; and the order of the list is anything.
        """
        assert self.start <= position <= self.stable
        pieces = [one for one in self.pieces if one.last >= position and one.base < self.stable]
        pieces = pieces[:batches_max]
        until = pieces[-1].last + 1 if pieces else position
        found, _ = self.search(position, until + choose(self.stable - until + 1))
        shuffled: list[AbortedTransaction] = []
        while found:
            row = found.pop(choose(len(found)))
            shuffled.append(AbortedTransaction(row.producer_id, row.first_offset))
        return Fetched(pieces, shuffled)

    def trim(self, start: int) -> None:
        """Removes whole batches, as retention and DeleteRecords do; never part of a batch."""
        assert start <= self.stable
        self.start = max(self.start, start)
        self.pieces = [one for one in self.pieces if one.last >= self.start]

    def compact(self, choose: Choose, *, empty_markers: bool = True) -> None:
        """Compacts below the last stable offset as the cleaner may.

        Removes all aborted data and many other records. An empty batch, or a marker without batches
        before it, is removed, or stays empty as the last batch of its producer. A marker outlives
        every batch of its transaction, and so does its row in the index. With `empty_markers` some
        markers stay without record.
        """
        kept: list[Piece] = []
        for piece in self.pieces:
            if piece.base >= self.stable or piece.control is not None:
                kept.append(piece)
                continue
            aborted = piece.txn is not None and self.outcome[piece.txn] is Control.ABORT
            piece.offsets = [] if aborted else [it for it in piece.offsets if choose(3)]
            if piece.offsets or not choose(3):
                kept.append(piece)
        with_data = {one.txn for one in kept if one.control is None and one.txn is not None}
        self.pieces = [
            one for one in kept if self._keeps(one, with_data, choose, 0 if empty_markers else 1)
        ]
        markers = {it.last: it for it in self.pieces if it.control is not None and it.offsets}
        self.rows = [
            row
            for row in self.rows
            if row.last_offset in markers
            and (markers[row.last_offset].txn in with_data or choose(2))
        ]

    def _keeps(self, piece: Piece, with_data: set[int], choose: Choose, least: int) -> bool:
        if piece.control is None or piece.base >= self.stable or piece.txn in with_data:
            return True
        fate = least + choose(3 - least)
        if fate == 0:
            piece.offsets = []
        return fate < 2

    def _append(
        self,
        producer: int,
        count: int,
        *,
        transactional: bool,
        txn: int | None,
        control: Control | None = None,
    ) -> int:
        last = self.end + count - 1
        offsets = list(range(self.end, self.end + count))
        self.pieces.append(Piece(self.end, last, producer, transactional, control, txn, offsets))
        self.end += count
        return last


def grow(log: NativeLog, choose: Choose, *, producers: int = 4, steps: int) -> None:
    """Appends a random history: transactions, plain batches, markers without a transaction."""
    for _ in range(steps):
        producer = 1000 + choose(producers)
        match choose(10):
            case 0 | 1 | 2 | 3 | 4:
                log.produce(producer, 1 + choose(4))
            case 5 | 6:
                log.mark(producer, Control.ABORT)
            case 7:
                log.mark(producer, Control.COMMIT)
            case 8:
                log.produce_outside(NO_PRODUCER_ID, 1 + choose(3))
            case _:
                log.produce_outside(2000, 1 + choose(3))
