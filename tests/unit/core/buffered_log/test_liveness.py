"""PIP-160's batch index (C8): which records of which entries are still needed."""

from stilltide.pipeline.core.buffered_log.bases import Liveness, LogPoint
from stilltide.schemas.values import Offset


def two_entries() -> Liveness:
    """Entry 5: keys 1 and 2, a dead record, key 1. Entry 6: key 3."""
    liveness = Liveness()
    liveness.entry_read(Offset(5), 3)
    liveness.record_live(0, (1, 2))
    liveness.record_live(2, (1,))
    liveness.entry_read(Offset(6), 1)
    liveness.record_live(0, (3,))
    return liveness


def test_a_record_is_live_until_its_last_key_ends():
    """A record of two transactions is needed by either; the bit sets follow."""
    liveness = two_entries()
    assert liveness.live_entries() == {5: 0b101, 6: 0b1}
    assert (liveness.live_count, liveness.dead_count, liveness.first_live_offset) == (3, 1, 5)
    liveness.ended(1)
    assert liveness.live_entries() == {5: 0b001, 6: 0b1}
    liveness.ended(2)
    assert (liveness.live_count, liveness.dead_count, liveness.first_live_offset) == (1, 3, 6)
    liveness.ended(3)
    assert (liveness.live_count, liveness.dead_count, liveness.first_live_offset) == (0, 4, None)


def test_a_record_without_keys_is_dead_at_once():
    """What belongs to nothing that is open is never held."""
    liveness = two_entries()
    liveness.entry_read(Offset(8), 2)
    liveness.record_live(1, ())
    assert (liveness.live_count, liveness.dead_count) == (3, 3)
    assert liveness.last_entry == LogPoint(Offset(8), 4)


def test_a_key_ends_once():
    """An end that is repeated, or of an unknown key, changes nothing."""
    liveness = two_entries()
    for key in (1, 1, 9):
        liveness.ended(key)
    assert (liveness.live_count, liveness.dead_count) == (2, 2)


def test_what_was_trimmed_is_neither_live_nor_dead():
    """The counts are those of the log that is left, and a key may end after its records left."""
    liveness = two_entries()
    liveness.trimmed(LogPoint(Offset(6), 3))
    assert liveness.live_entries() == {6: 0b1}
    assert (liveness.live_count, liveness.dead_count, liveness.first_live_offset) == (1, 0, 6)
    for key in (1, 2, 3):
        liveness.ended(key)
    assert (liveness.live_count, liveness.dead_count) == (0, 1)


def test_memory_is_bounded_by_what_is_live():
    """History leaves nothing behind."""
    liveness = Liveness()
    for key in range(1000):
        liveness.entry_read(Offset(key), 2)
        liveness.record_live(0, (key,))
        liveness.ended(key - 5)
    assert len(liveness._places) == len(liveness._keys) == 5
    assert liveness.dead_count == 1995
