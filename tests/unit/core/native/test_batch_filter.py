"""F2 by example: each case is a log, what a broker lists with it, and what may be seen."""

from collections.abc import Sequence

import pytest

from stilltide.pipeline.core.native.batch_filter import BatchFilter, BatchVerdict
from stilltide.schemas.native.transactions import AbortedTransaction, Batch
from tests.support.native.batch_notation import batches


def visible(log: str, aborted: Sequence[tuple[str, int]], start: int = 0, base: int = 0) -> str:
    """The verdicts, a letter each: Visible, Below, Aborted, Control; and the position after."""
    listed = [AbortedTransaction(ord(producer), first) for producer, first in aborted]
    machine = BatchFilter(start, listed)
    verdicts = [machine.batch_read(batch) for batch in batches(log, base)]
    return "".join(verdict.name[0] for verdict in verdicts) + f" {machine.position}"


@pytest.mark.parametrize(
    ("log", "aborted", "expected"),
    [
        ("-2", [], "V 2"),
        ("a.2 a+", [], "VC 3"),
        ("a.2 a!", [("a", 0)], "AC 3"),
        # The figure of the seed: A and B interleave, both abort, then A goes on.
        ("a.1 b.1 a! a.1 b! a.1 a+", [("a", 0), ("b", 1)], "AACVCVC 7"),
        # The same producer commits, aborts, commits.
        ("a.1 a+ a.1 a! a.1 a+", [("a", 2)], "VCACVC 6"),
        ("a.1 a! a.1 a+ a.1 a! a.1 a!", [("a", 0), ("a", 4), ("a", 6)], "ACVCACAC 8"),
        # A producer outside transactions is never filtered.
        ("a.1 -1 b~1 a!", [("a", 0)], "AVVC 4"),
        ("a.1 a~1 a!", [("a", 0)], "AVC 3"),
        # A commit ends nothing, neither another's nor its own.
        ("a.1 a+ a.1 a!", [("a", 0)], "ACAC 4"),
        ("a.1 b.1 b+ a.1 a!", [("a", 0)], "AVCAC 5"),
        # What the cleaner leaves: an empty batch of each kind, only a marker, only data.
        ("a.0 a!", [("a", 0)], "AC 2"),
        ("a? a.1", [], "CV 2"),
        ("a.1 a? a.1 a!", [("a", 0)], "ACAC 4"),
        ("a! a.1", [("a", 0)], "CV 2"),
        ("a! a! b.1", [], "CCV 3"),
        # The marker lies beyond what was fetched.
        ("a.1 a.1", [("a", 0)], "AA 2"),
    ],
)
def test_verdicts(log: str, aborted: list[tuple[str, int]], expected: str):
    """F2: which batches an application sees, and that the position passes all of them."""
    assert visible(log, aborted) == expected
    assert visible(log, list(reversed(aborted))) == expected, "the list may come in any order"


def test_an_entry_begins_with_the_batch_that_contains_it():
    """F2: by the last offset of a batch, whose first records may have been compacted away."""
    assert visible("a.5 a!", [("a", 3)]) == "AC 6"


def test_an_entry_of_later_data_hides_nothing_before():
    """F2: a transaction that was committed is visible although its producer aborts afterwards."""
    assert visible("a.2 a+ a.2", [("a", 3)]) == "VCA 5"


@pytest.mark.parametrize(
    ("log", "aborted", "expected"),
    [
        ("a.2 a! a.1", [("a", 3)], "ACV 14"),
        ("a! a.1", [("a", 3)], "CV 12"),
        ("b.1 a.1 b.1 a!", [("a", 3)], "VAVC 14"),
    ],
)
def test_a_fetch_begins_inside_a_transaction(
    log: str, aborted: list[tuple[str, int]], expected: str
):
    """F2: the entry began below the fetch, between its data, or between data and marker."""
    assert visible(log, aborted, start=10, base=10) == expected


def test_an_entry_that_is_not_needed_ends_with_its_marker():
    """F2: the list may name transactions with data below the fetch, more than once."""
    assert visible("a! a.1 a+", [("a", 0), ("a", 3)], start=9, base=9) == "CVC 12"


def test_records_below_the_start_are_told():
    """F2: brokers return whole batches; records below the start of the fetch are not delivered."""
    machine = BatchFilter(4, [])
    below, straddling, behind = batches("-2 -3 -1")
    assert machine.batch_read(below) is BatchVerdict.BELOW
    assert machine.position == 4
    assert machine.batch_read(straddling) is BatchVerdict.VISIBLE
    assert machine.batch_read(behind) is BatchVerdict.VISIBLE
    assert (machine.start, machine.position) == (4, 6)


def test_the_position_passes_a_compacted_tail():
    """F2: an empty batch moves it to behind its last offset, else it would be fetched for ever."""
    machine = BatchFilter(0, [])
    machine.batch_read(Batch(0, 41, 7, False, None, 0))
    assert machine.position == 42


def test_batches_that_do_not_ascend_are_our_mistake():
    """A batch is fed once, behind those before it."""
    machine = BatchFilter(0, [])
    one, two = batches("-2 -2")
    machine.batch_read(one)
    machine.batch_read(two)
    with pytest.raises(AssertionError):
        machine.batch_read(one)
