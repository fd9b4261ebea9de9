import pytest

from stilltide.pipeline.core.buffered_log.owner import (
    AppendNoop,
    Apply,
    EffectiveLog,
    EntryWritten,
    Fenced,
    Foreign,
    LogGapError,
    LogOwner,
    OwnerState,
    Serve,
)
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.headers import EntryStamp
from stilltide.schemas.values import Offset

MINE = b"m" * 16
OTHER = b"o" * 16
Entry = bytes | tuple[int, int]


def feed(reader: LogOwner, offset: int, entry: Entry) -> list:
    """One entry of the log: a fence's nonce, or (epoch, serial)."""
    if isinstance(entry, bytes):
        return reader.fence_read(Offset(offset), entry)
    return reader.entry_read(Offset(offset), EntryStamp(Offset(entry[0]), entry[1]))


def serving(*, written: int = 0) -> LogOwner:
    """An owner of a new log, with the fence at offset 0 and entries 1.. on their way."""
    owner = LogOwner(MINE, Offset(0))
    assert feed(owner, 0, MINE) == [Serve(Offset(0))]
    for serial in range(1, written + 1):
        owner.entry_written(serial)
    return owner


def verdicts(log_start: int, *entries: Entry) -> list[bool | None]:
    """Which entries are effective for a reader from the log start; None for a fence."""
    view = EffectiveLog(Offset(log_start))
    found: list[bool | None] = []
    for offset, entry in enumerate(entries, log_start):
        if isinstance(entry, bytes):
            view.fence_read(Offset(offset))
            found.append(None)
        else:
            found.append(view.entry_read(Offset(offset), EntryStamp(Offset(entry[0]), entry[1])))
    return found


F = b"f" * 16


@pytest.mark.parametrize(
    ("log_start", "entries", "expected"),
    [
        (0, [F, (0, 1), (0, 2)], [None, True, True]),
        (0, [(0, 1)], [False]),
        (0, [F, (0, 2), (0, 1), (0, 3)], [None, True, False, True]),
        (0, [F, (0, 1), (0, 1)], [None, True, False]),
        (0, [F, (0, 1), F, (0, 2), (2, 1)], [None, True, None, False, True]),
        (0, [F, F, (0, 1)], [None, None, False]),
        (0, [F, (0, 5), F, (2, 1)], [None, True, None, True]),
        (0, [F, (1, 1)], [None, False]),
        (7, [(3, 4), (3, 5), (3, 4)], [True, True, False]),
        (7, [(3, 4), (2, 9)], [True, False]),
        (7, [F, (3, 5), (7, 1)], [None, False, True]),
        (7, [(3, 4), F, (3, 5), (8, 1)], [True, None, False, True]),
    ],
    ids=[
        "in order",
        "before any fence",
        "landed behind a later one",
        "twice",
        "zombie behind a fence",
        "fenced before it wrote",
        "serials begin again with each epoch",
        "epoch of no fence",
        "first of a trimmed log is in force",
        "older epoch in a trimmed log",
        "trimmed log that begins with a fence",
        "fence in a trimmed log",
    ],
)
def test_b2_effective_entries(log_start: int, entries: list[Entry], expected: list[bool | None]):
    """B2: effective is an entry of the last fence's epoch whose serial is above all before."""
    assert verdicts(log_start, *entries) == expected


@pytest.mark.parametrize("offset", [1, 5])
def test_b3_a_gap_in_the_offsets_is_never_read_over(offset: int):
    """B3: offsets are consecutive, so a gap means that a trim overtook the reader."""
    view = EffectiveLog(Offset(0))
    with pytest.raises(LogGapError, match=f"expected offset 0, read {offset}"):
        view.fence_read(Offset(offset))
    assert view.next_offset == 0


@pytest.mark.parametrize("log_start", [0, 1])
def test_b7_a_gap_above_the_log_start_holds_control_records(log_start: int):
    """B7: missing offsets that were not trimmed are skipped and change no verdict."""
    view = EffectiveLog(Offset(0))
    view.fence_read(Offset(0))
    view.gap_read(Offset(4), Offset(log_start))
    assert view.entry_read(Offset(4), EntryStamp(Offset(0), 1))
    assert view.next_offset == 5


def test_b7_a_gap_below_the_log_start_is_a_trim():
    """B7: a trim may have deleted entries in the gap, so the reader begins again."""
    view = EffectiveLog(Offset(0))
    view.fence_read(Offset(0))
    with pytest.raises(LogGapError, match="expected offset 1, read 4; the log begins at 2"):
        view.gap_read(Offset(4), Offset(2))
    assert view.next_offset == 1


def test_b6_foreign_entries_change_no_verdict():
    """B6: foreign entries anywhere among an owner's entries, also first in a trimmed log."""
    view = EffectiveLog(Offset(0))
    view.foreign_read(Offset(0))
    assert not view.entry_read(Offset(1), EntryStamp(Offset(0), 1))
    view.fence_read(Offset(2))
    view.foreign_read(Offset(3))
    assert view.entry_read(Offset(4), EntryStamp(Offset(2), 1))
    view.foreign_read(Offset(5))
    assert view.entry_read(Offset(6), EntryStamp(Offset(2), 2))


def test_c8_only_the_very_first_entry_of_a_trimmed_log_names_the_fence():
    """C8: a log that begins with a foreign entry was not trimmed by an owner; nothing is known."""
    view = EffectiveLog(Offset(7))
    view.foreign_read(Offset(7))
    assert not view.entry_read(Offset(8), EntryStamp(Offset(3), 4))


def test_b6_a_foreign_entry_does_nothing_but_count():
    """B6: counted in a replay and while serving, but not after a later fence."""
    owner = LogOwner(MINE, Offset(0))
    assert owner.foreign_read(Offset(0)) == [Foreign()]
    assert feed(owner, 1, MINE) == [Serve(Offset(1))]
    owner.entry_written(1)
    assert owner.foreign_read(Offset(2)) == [Foreign()]
    assert owner.in_flight == 1
    assert feed(owner, 3, (1, 1)) == [Apply(1), EntryWritten(1, Offset(3))]
    assert feed(owner, 4, OTHER) == [Fenced(Offset(4))]
    assert owner.foreign_read(Offset(5)) == []


def test_b6_damage_matters_only_in_an_effective_entry():
    """B6: a stale entry may hold any bytes; an effective one that holds no records is an error."""
    damage = DecodeError("not a batch")
    owner = serving(written=1)
    stale, effective = EntryStamp(Offset(7), 1), EntryStamp(Offset(0), 1)
    assert owner.entry_read(Offset(1), stale, damage) == [Foreign()]
    with pytest.raises(DecodeError, match="not a batch"):
        owner.entry_read(Offset(2), effective, damage)


def test_b7_an_owner_goes_on_behind_control_records():
    """B7: an entry after the gap is reported as written; a trim in the gap is an error."""
    owner = serving(written=1)
    owner.gap_read(Offset(3), Offset(0))
    assert feed(owner, 3, (0, 1)) == [Apply(1), EntryWritten(1, Offset(3))]
    with pytest.raises(LogGapError):
        owner.gap_read(Offset(6), Offset(5))


def test_b1_an_owner_serves_only_when_it_has_read_its_fence():
    """B1: before the fence an owner applies entries of others; its epoch is the fence's offset."""
    owner = LogOwner(MINE, Offset(0))
    assert feed(owner, 0, OTHER) == []
    assert feed(owner, 1, (0, 1)) == [Apply(None)]
    with pytest.raises(AssertionError):
        owner.stamp(1)
    assert feed(owner, 2, MINE) == [Serve(Offset(2))]
    assert (owner.state, owner.epoch) == (OwnerState.SERVING, 2)
    assert owner.stamp(1) == EntryStamp(Offset(2), 1)


def test_b2_replay_applies_only_what_is_effective():
    """B2: a predecessor's zombie entries are not replayed."""
    owner = LogOwner(MINE, Offset(0))
    log: list[Entry] = [OTHER, (0, 1), OTHER, (0, 2), (2, 1), MINE]
    effects = [feed(owner, offset, entry) for offset, entry in enumerate(log)]
    assert effects == [[], [Apply(None)], [], [Foreign()], [Apply(None)], [Serve(Offset(5))]]


def test_b3_an_entry_is_settled_when_it_is_read_back():
    """B3: applied first, then settled at the offset where it was read."""
    owner = serving(written=2)
    assert owner.in_flight == 2
    assert feed(owner, 1, (0, 1)) == [Apply(1), EntryWritten(1, Offset(1))]
    assert feed(owner, 2, (0, 2)) == [Apply(2), EntryWritten(2, Offset(2))]
    assert owner.in_flight == 0


def test_b3_a_zombies_entry_changes_nothing():
    """B3, B6: an entry of an older epoch is neither applied nor settled, only counted."""
    owner = LogOwner(MINE, Offset(0))
    feed(owner, 0, OTHER)
    feed(owner, 1, MINE)
    owner.entry_written(1)
    assert feed(owner, 2, (0, 1)) == [Foreign()]
    assert owner.in_flight == 1


def test_b4_a_later_fence_ends_the_service():
    """B4: nothing is applied or settled after it, and a second one is not reported again."""
    owner = serving(written=2)
    assert feed(owner, 1, OTHER) == [Fenced(Offset(1))]
    assert (owner.state, owner.in_flight) == (OwnerState.FENCED, 0)
    assert feed(owner, 2, (0, 1)) == []
    assert feed(owner, 3, (1, 1)) == []
    assert feed(owner, 4, OTHER) == []
    assert owner.write_failed(2) == []
    with pytest.raises(AssertionError):
        owner.stamp(3)


def test_b4_an_owner_that_was_replaced_is_as_good_as_fenced():
    """B3: a gap, or a partition taken away, fails everything in flight."""
    owner = serving(written=1)
    owner.replaced()
    assert (owner.state, owner.in_flight) == (OwnerState.FENCED, 0)
    assert feed(owner, 1, (0, 1)) == []


def test_b5_a_failed_write_is_settled_by_a_later_entry():
    """B5: once a later entry is read back, the failed one can never become effective."""
    owner = serving(written=3)
    assert owner.write_failed(1) == []
    assert owner.in_flight == 3
    assert feed(owner, 1, (0, 3)) == [
        EntryWritten(1, None),
        EntryWritten(2, None),
        Apply(3),
        EntryWritten(3, Offset(1)),
    ]
    assert feed(owner, 2, (0, 1)) == [Foreign()]


def test_b5_a_failed_last_write_needs_a_no_op():
    """B5: without a later entry the owner appends a no-op to read back."""
    owner = serving(written=2)
    assert owner.write_failed(2) == [AppendNoop()]
    owner.entry_written(3)
    assert owner.write_failed(3) == [AppendNoop()]


def test_b5_a_failed_write_may_have_landed():
    """A5, B5: an entry that is read back is written, although its producer reported a failure."""
    owner = serving(written=1)
    owner.write_failed(1)
    assert feed(owner, 1, (0, 1)) == [Apply(1), EntryWritten(1, Offset(1))]
    assert owner.write_failed(1) == []


def test_serials_grow():
    """A1: entries leave in the order of their numbers."""
    owner = serving(written=2)
    with pytest.raises(AssertionError, match="serials must grow"):
        owner.entry_written(2)


@pytest.mark.parametrize("serial", [3, 6])
def test_an_entry_of_our_epoch_that_we_did_not_write_is_an_error(serial: int):
    """B2: an epoch has one writer; another's entry under it must not settle ours."""
    owner = serving(written=1)
    owner.entry_written(5)
    with pytest.raises(DecodeError, match="did not write"):
        feed(owner, 1, (0, serial))
