"""When a base is made, how far it lets the log be trimmed, and recovery from it (C8)."""

import pytest

from stilltide.pipeline.core.buffered_log.bases import (
    IDLE_MS,
    BaseKeeper,
    BaseLimits,
    Entry,
    Recovery,
    Trim,
)
from stilltide.pipeline.errors import LogTrimmedError
from stilltide.schemas.log_frames import PIECE_BYTES_MAX, Base, pieces
from stilltide.schemas.retry import TRIM
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

LIMITS = BaseLimits(interval_ms=2000, dead_floor=10, dead_factor=4)
LOG = TopicPartition("log", 3)
NOW_MS = 100_000

Record = Base | str


def keeper(*, epoch: int = 0, log_start: int = 0) -> BaseKeeper:
    """One that serves from its fence at `epoch` on."""
    made = BaseKeeper(Offset(log_start), LIMITS)
    made.served(Offset(epoch), NOW_MS)
    return made


def read(bases: BaseKeeper, offset: int, *, count: int = 1, now_ms: int = NOW_MS) -> None:
    """One entry of records that change something."""
    bases.entry_read(Offset(offset), count)
    bases.changed(now_ms)


def due(bases: BaseKeeper, now_ms: int, *, idle: bool = True, held: int = 0) -> EndOffset | None:
    """Asks for a base."""
    return bases.due(now_ms, idle=idle, live_count=lambda: held)


def made(bases: BaseKeeper, as_of: EndOffset | None, at: int) -> list[Trim]:
    """A base of one piece is read back at an offset."""
    assert as_of is not None
    bases.entry_read(Offset(at), 1)
    return bases.piece_read(Base(as_of, 0, 1, b""))


def test_a_new_log_gets_no_base():
    """A coordinator that no client has used writes no base."""
    bases = keeper()
    assert bases.next_due_ms(idle=True) is None
    assert due(bases, NOW_MS + 10**6) is None


def test_an_idle_log_gets_one_base_and_is_trimmed_to_it():
    """C8: the base is written one second after the last change, and no other one follows."""
    bases = keeper()
    read(bases, 1)
    assert bases.next_due_ms(idle=False) is None
    assert bases.next_due_ms(idle=True) == NOW_MS + IDLE_MS
    assert due(bases, NOW_MS + IDLE_MS - 1) is None
    assert due(bases, NOW_MS + IDLE_MS, idle=False) is None
    assert bases.written_as_of is None
    assert made(bases, due(bases, NOW_MS + IDLE_MS), at=2) == [Trim(Offset(2))]
    assert bases.written_as_of == 2
    bases.trimmed(Offset(2))
    assert bases.log_start == 2
    assert bases.next_due_ms(idle=True) is None
    assert due(bases, NOW_MS + 10**6) is None


def test_noops_alone_call_for_a_base_at_the_floor():
    """C8: no-ops for questions call for a base only once `dead_floor` of them are in the log."""
    bases = keeper()
    for offset in range(1, 10):
        bases.entry_read(Offset(offset), 1)
    assert due(bases, NOW_MS + 10**6) is None
    bases.entry_read(Offset(10), 1)
    assert due(bases, NOW_MS + 10**6) == 11


@pytest.mark.parametrize(("dead", "held", "expected"), [(9, 0, None), (12, 3, 2), (12, 4, None)])
def test_a_busy_log_gets_a_base_when_the_dead_outweigh_the_live(
    dead: int, held: int, expected: int | None
):
    """C8: a base needs `dead_floor` dead records, and `dead_factor` times the items of the base."""
    bases = keeper()
    read(bases, 1, count=dead)
    assert due(bases, NOW_MS, idle=False, held=held) == expected


def test_bases_keep_their_distance():
    """C8: bases are `interval_ms` apart, and the items are not counted again at every tick."""
    bases = keeper()
    read(bases, 1, count=20)
    made(bases, due(bases, NOW_MS, idle=False), at=2)
    bases.trimmed(Offset(2))
    read(bases, 3, count=20)
    assert bases.next_due_ms(idle=False) == NOW_MS + 2000
    assert due(bases, NOW_MS + 1999, idle=False) is None
    assert due(bases, NOW_MS + 2000, idle=False, held=100) is None
    assert bases.next_due_ms(idle=False) == NOW_MS + 4000
    assert due(bases, NOW_MS + 2001, idle=False, held=0) is None
    assert due(bases, NOW_MS + 2001, idle=True, held=100) == 4


def test_what_is_read_behind_its_offset_is_not_trimmed():
    """C8: the trim keeps entries in flight when the base was made, and the one before them."""
    bases = keeper()
    read(bases, 1)
    read(bases, 2)
    as_of = due(bases, NOW_MS + 5000)
    assert as_of == 3
    bases.entry_read(Offset(4), 1)  # at 3 lies an entry that is not effective
    assert made(bases, as_of, at=5) == [Trim(Offset(2))]


def test_a_base_is_made_of_all_its_pieces_in_order():
    """C8: without one of the pieces nothing is trimmed; the next base has another as-of offset."""
    bases = keeper()
    read(bases, 1)
    first = due(bases, NOW_MS + 5000)
    assert first == 2
    assert due(bases, NOW_MS + 9000) is None
    bases.entry_read(Offset(2), 1)
    assert bases.piece_read(Base(first, 1, 2, b"")) == []
    bases.lost(first, NOW_MS + 9000)
    assert bases.next_due_ms(idle=True) == NOW_MS + 10_000
    second = due(bases, NOW_MS + 10_000)
    assert second == 3
    bases.entry_read(Offset(3), 2)
    assert bases.piece_read(Base(first, 0, 2, b"")) == []
    assert bases.piece_read(Base(second, 0, 2, b"")) == []
    assert bases.piece_read(Base(second, 1, 2, b"")) == [Trim(Offset(3))]


def test_an_owner_trims_what_its_predecessors_left():
    """C8: the state as of its fence holds everything before it."""
    bases = BaseKeeper(Offset(4), LIMITS)
    read(bases, 4)
    bases.served(Offset(9), NOW_MS)
    as_of = due(bases, NOW_MS + IDLE_MS)
    assert as_of == 10
    assert made(bases, as_of, at=10) == [Trim(Offset(10))]


def test_a_log_that_begins_there_already_is_not_trimmed():
    """C8: a base whose last effective entry is at the log start frees nothing."""
    bases = BaseKeeper(Offset(4), LIMITS)
    read(bases, 4)
    bases.served(Offset(9), NOW_MS)
    assert made(bases, due(bases, NOW_MS + IDLE_MS), at=11) == []


def test_a_failed_trim_is_tried_again():
    """C8: a failed trim is repeated, or replaced by the next base; late reports do no harm."""
    bases = keeper()
    read(bases, 1)
    made(bases, due(bases, NOW_MS + 1000), at=2)
    bases.trim_failed(Offset(2), NOW_MS + 3000)
    assert bases.next_due_ms(idle=True) == NOW_MS + 3000 + TRIM.wait_ms()
    assert bases.trims_due(NOW_MS + 3000 + TRIM.wait_ms() - 1) == []
    assert bases.trims_due(NOW_MS + 3000 + TRIM.wait_ms()) == [Trim(Offset(2))]
    assert bases.trims_due(NOW_MS + 10**6) == []
    read(bases, 3, now_ms=NOW_MS + 10**6)
    assert made(bases, due(bases, NOW_MS + 2 * 10**6), at=4) == [Trim(Offset(4))]
    for _ in range(2):
        bases.trimmed(Offset(2))
        bases.trim_failed(Offset(2), NOW_MS)
    assert bases.log_start == 0
    bases.trimmed(Offset(4))
    assert (bases.log_start, bases.liveness.dead_count) == (4, 1)


def recovery(log_start: int) -> Recovery[Record]:
    """A replay; records are words and pieces."""
    return Recovery(LOG, Offset(log_start), lambda one: one if isinstance(one, Base) else None)


def entry(offset: int, *records: Record) -> Entry[Record]:
    """An effective entry."""
    return Entry(Offset(offset), records)


def test_a_whole_log_is_applied_as_it_is():
    """C8: a replay from offset 0 ignores bases."""
    replay = recovery(0)
    one = entry(1, "a", Base(EndOffset(1), 0, 1, b"state"))
    assert replay.entry_read(one) == (None, (one,))
    replay.check_complete()


def test_a_trimmed_log_begins_from_its_base():
    """C8: entries from the base's as-of offset on are applied to the base's state."""
    replay = recovery(4)
    held = [entry(offset, str(offset)) for offset in (4, 5, 7)]
    assert [replay.entry_read(one) for one in held] == [(None, ())] * 3
    first, second = Base(EndOffset(5), 0, 2, b"sta"), Base(EndOffset(5), 1, 2, b"te")
    assert replay.entry_read(with_first := entry(8, first)) == (None, ())
    with pytest.raises(LogTrimmedError):
        replay.check_complete()
    base = entry(9, second, "b")
    assert replay.entry_read(base) == (b"state", [*held[1:], with_first, base])
    replay.check_complete()
    later = entry(10, Base(EndOffset(10), 0, 1, b"other"))
    assert replay.entry_read(later) == (None, (later,))


def test_a_torn_base_is_none():
    """C8: a piece of another owner's base does not replace a missing piece."""
    replay = recovery(4)
    for piece in (
        Base(EndOffset(5), 1, 2, b"no first"),
        Base(EndOffset(5), 0, 3, b"one"),
        Base(EndOffset(5), 2, 3, b"three"),
        Base(EndOffset(6), 0, 2, b"one of two"),
        Base(EndOffset(9), 1, 2, b"another's"),
    ):
        assert replay.entry_read(entry(10, piece)).state is None
    assert replay.entry_read(entry(11, Base(EndOffset(11), 0, 1, b"x"))).state == b"x"


def test_a_base_from_before_the_log_start_is_none():
    """C8: a base with an as-of offset below the log start is ignored, for entries are missing."""
    replay = recovery(4)
    assert replay.entry_read(entry(4, Base(EndOffset(3), 0, 1, b"old"))).state is None
    assert replay.entry_read(entry(5, Base(EndOffset(4), 0, 1, b"new"))).state == b"new"


def test_a_trimmed_log_without_a_base_is_refused(monkeypatch: pytest.MonkeyPatch):
    """C8: refused at the fence, or after `HELD_RECORDS_MAX` records; the error names the place."""
    monkeypatch.setattr("stilltide.pipeline.core.buffered_log.bases.HELD_RECORDS_MAX", 2)
    replay = recovery(4)
    replay.entry_read(entry(4, "a"))
    with pytest.raises(LogTrimmedError) as caught:
        replay.check_complete()
    assert caught.value.place == "log/3@4"
    replay.entry_read(entry(5, "b"))
    with pytest.raises(LogTrimmedError, match="first 3 records"):
        replay.entry_read(entry(6, "c"))


@pytest.mark.parametrize(("size", "count"), [(0, 1), (1, 1), (PIECE_BYTES_MAX + 1, 2)])
def test_pieces_are_bounded_and_join_to_the_state(size: int, count: int):
    """C8: every piece fits into an entry together with other records."""
    state = bytes(range(256)) * (size // 256) + bytes(size % 256)
    cut = pieces(EndOffset(7), state)
    assert [(it.as_of, it.piece_index, it.piece_count) for it in cut] == [
        (7, index, count) for index in range(count)
    ]
    assert max(len(it.state) for it in cut) <= PIECE_BYTES_MAX
    assert b"".join(it.state for it in cut) == state
