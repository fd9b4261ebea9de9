"""F1 by example: which transactions are open, the rows of those that abort, and what is found."""

import pytest

from tests.support.native.batch_notation import batches
from tests.support.native.open_transactions import AbortedEntry, OpenTransactions
from tests.support.native.transaction_index import TransactionIndex

A, B, C = (ord(name) for name in "abc")


def walk(log: str) -> tuple[TransactionIndex, OpenTransactions]:
    """The index of a log in the notation of `tests.support.native.batch_notation`."""
    index, open_ = TransactionIndex(), OpenTransactions()
    for batch in batches(log):
        row = open_.batch_read(batch)
        if row is not None:
            index.append(row)
    return index, open_


@pytest.mark.parametrize(
    ("log", "rows"),
    [
        ("a.2 a.1 a!", [(A, 0, 3, 4)]),
        ("a.2 a+", []),
        # The earliest other transaction that is open holds the last stable offset.
        ("a.1 b.1 c.1 b! a! c!", [(B, 1, 3, 0), (A, 0, 4, 2), (C, 2, 5, 6)]),
        # The same producer again; a marker without data, and one that comes twice.
        ("a.1 a! a! a.1 a+ a.1 a!", [(A, 0, 1, 2), (A, 5, 6, 7)]),
        ("a! b.1 b!", [(B, 1, 2, 3)]),
        # What the cleaner has emptied: a batch begins a transaction, a marker ends none.
        ("a.0 a!", [(A, 0, 1, 2)]),
        ("a.1 a? a!", [(A, 0, 2, 3)]),
        # Outside transactions.
        ("a~1 a! -1", []),
    ],
)
def test_rows(log: str, rows: list[tuple[int, int, int, int]]):
    """Producer, first offset, last offset (the marker), last stable offset of that moment."""
    index, _ = walk(log)
    assert list(index) == rows


def test_what_is_open():
    """Earliest first, with the offset that holds the last stable offset back."""
    _, open_ = walk("a.1 b.2 a+ c.1 a.1")
    assert list(open_) == [(B, 1), (C, 4), (A, 5)]
    assert open_.first_offset == 1
    _, none = walk("a.1 a! b.1 b+")
    assert list(none) == []
    assert none.first_offset is None


@pytest.mark.parametrize(
    ("first", "until", "found", "is_complete"),
    [
        (0, 1, [1], True),
        (0, 2, [0, 1], True),
        (4, 5, [1], True),
        (4, 6, [1], True),
        (5, 6, [], True),
        (0, 9, [0, 1, 2], True),
        (0, 10, [0, 1, 2], False),
        (8, 8, [2], True),
        (9, 9, [], True),
        (9, 10, [], False),
    ],
)
def test_search(first: int, until: int, found: list[int], *, is_complete: bool):
    """Entries with a record in [first, until); complete where nothing to come can have one."""
    index, _ = walk("a.1 b.1 -1 b! a! -1 c.2 c!")
    rows = list(index)
    assert [(it.first_offset, it.last_offset, it.last_stable_offset) for it in rows] == [
        (1, 3, 0),
        (0, 4, 5),
        (6, 8, 9),
    ]
    result = index.search(first, until)
    assert [rows.index(entry) for entry in result.entries] == found
    assert result.is_complete == is_complete


def test_entries_come_as_their_markers_do():
    """An order that no log gives is our mistake."""
    index, _ = walk("a.1 a!")
    with pytest.raises(AssertionError):
        index.append(AbortedEntry(A, 0, 1, 5))
    with pytest.raises(AssertionError):
        index.append(AbortedEntry(A, 0, 9, 1))
