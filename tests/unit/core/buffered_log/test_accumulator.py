from dataclasses import replace

import pytest

from stilltide.pipeline.core.buffered_log.accumulator import (
    Accumulator,
    BatchLimits,
    ClosedError,
    FlushTrigger,
    WriteEntry,
)

TIMER = BatchLimits(records_max=3, bytes_max=10, delay_ms_max=5, eager=False)
EAGER = replace(TIMER, eager=True)
UNBATCHED = [replace(TIMER, batching=False), replace(TIMER, records_max=1)]


def filled(limits: BatchLimits, *records: bytes, now_ms: float = 0) -> Accumulator:
    """An accumulator that has taken these records, none of which made an entry leave."""
    accumulator = Accumulator(limits)
    for record in records:
        assert accumulator.append(record, now_ms) == []
    return accumulator


def summary(written: list[WriteEntry]) -> list[tuple[int, list[bytes], FlushTrigger]]:
    """What the tests compare of entries."""
    return [(one.number, list(one.records), one.trigger) for one in written]


def test_a1_entries_leave_in_append_order_with_growing_numbers():
    """A1: the order of entries and of the records in them is the order of appends."""
    accumulator = filled(TIMER, b"1", b"2")
    assert summary(accumulator.append(b"3", 1)) == [(1, [b"1", b"2", b"3"], FlushTrigger.RECORDS)]
    accumulator.append(b"4", 2)
    assert summary(accumulator.tick(7)) == [(2, [b"4"], FlushTrigger.DELAY)]


@pytest.mark.parametrize("size", [10, 11, 5000])
def test_a2_a_large_record_is_an_entry_of_its_own_behind_what_is_buffered(size: int):
    """A2: at `bytes_max` or more, what is buffered leaves first, then the record alone.

    As in PIP-160, `large` is the trigger of what left the buffer, once, and not of the record.
    """
    accumulator = filled(TIMER, b"1", b"2")
    large = bytes(size)
    assert summary(accumulator.append(large, 1)) == [
        (1, [b"1", b"2"], FlushTrigger.LARGE),
        (2, [large], FlushTrigger.UNBATCHED),
    ]
    assert accumulator.buffered == 0
    assert summary(accumulator.append(large, 2)) == [(3, [large], FlushTrigger.UNBATCHED)]


def test_a2_a_record_just_below_the_limit_is_batched():
    """A2: the rule begins at `bytes_max`, not below."""
    assert filled(TIMER, bytes(9)).buffered == 1


def test_a3_count_wins_over_bytes():
    """A3: when a record meets both thresholds, the count is the one that is named."""
    accumulator = filled(TIMER, bytes(4), bytes(4))
    [entry] = accumulator.append(bytes(2), 0)
    assert (len(entry.records), entry.trigger) == (3, FlushTrigger.RECORDS)


def test_a3_a_batch_never_passes_bytes_max():
    """A3: a record that would pass the limit begins the next batch; PIP-160 let it pass."""
    accumulator = filled(TIMER, bytes(6))
    assert summary(accumulator.append(bytes(5), 1)) == [(1, [bytes(6)], FlushTrigger.BYTES)]
    assert accumulator.buffered == 1


def test_a3_a_batch_of_exactly_bytes_max_leaves_at_once():
    """A3: reaching the limit is enough."""
    accumulator = filled(TIMER, bytes(6))
    assert summary(accumulator.append(bytes(4), 1)) == [
        (1, [bytes(6), bytes(4)], FlushTrigger.BYTES)
    ]


def test_a3_the_delay_is_measured_from_the_oldest_record():
    """A3: later records do not put the deadline off, and a tick before it does nothing."""
    accumulator = filled(TIMER, b"1", now_ms=10)
    accumulator.append(b"2", 14)
    assert accumulator.deadline_ms == 15
    assert accumulator.tick(14.9) == []
    [entry] = accumulator.tick(15)
    assert (entry.waited_ms, entry.trigger) == (5, FlushTrigger.DELAY)
    assert accumulator.deadline_ms is None


def test_a3_the_next_batch_has_its_own_oldest_record():
    """A3: after a flush the clock begins again with the next record."""
    accumulator = filled(TIMER, b"1", now_ms=0)
    accumulator.tick(5)
    accumulator.append(b"2", 8)
    assert accumulator.deadline_ms == 13


def test_a3_eager_sends_a_lone_record_at_once():
    """A3: with no write in flight the deadline is now."""
    accumulator = filled(EAGER, b"1", now_ms=3)
    assert accumulator.deadline_ms == 3
    assert summary(accumulator.tick(3)) == [(1, [b"1"], FlushTrigger.IDLE)]


def test_a3_eager_gathers_while_a_write_is_in_flight():
    """A3: what comes meanwhile leaves together when the write is acknowledged."""
    accumulator = filled(EAGER, b"1")
    accumulator.tick(0)
    for record in (b"2", b"3"):
        assert accumulator.append(record, 1) == []
    assert accumulator.deadline_ms == 6
    assert summary(accumulator.write_ended(2)) == [(2, [b"2", b"3"], FlushTrigger.IDLE)]


def test_a3_eager_does_not_wait_longer_than_the_delay():
    """A3: a slow write does not keep later records beyond their deadline."""
    accumulator = filled(EAGER, b"1")
    accumulator.tick(0)
    accumulator.append(b"2", 1)
    assert accumulator.tick(5) == []
    assert summary(accumulator.tick(6)) == [(2, [b"2"], FlushTrigger.DELAY)]


def test_a3_eager_waits_for_the_last_of_several_writes():
    """A3: an acknowledgement while another write is in flight lets nothing leave."""
    accumulator = filled(EAGER, b"1")
    accumulator.tick(0)
    accumulator.append(bytes(10), 0)
    accumulator.append(b"2", 0)
    assert accumulator.write_ended(1) == []
    assert summary(accumulator.write_ended(1)) == [(3, [b"2"], FlushTrigger.IDLE)]


def test_a3_timer_mode_does_not_flush_on_acknowledgement():
    """A3: the PIP's mode waits for a threshold, whatever is in flight."""
    accumulator = filled(TIMER)
    accumulator.append(bytes(10), 0)
    accumulator.append(b"1", 0)
    assert accumulator.write_ended(1) == []
    assert accumulator.deadline_ms == 5


def test_a6_close_hands_on_what_is_buffered_and_takes_nothing_more():
    """A6: nothing is dropped, no append is taken afterwards, closing again does nothing."""
    accumulator = filled(TIMER, b"1", b"2")
    assert summary(accumulator.close(1)) == [(1, [b"1", b"2"], FlushTrigger.CLOSE)]
    assert accumulator.close(2) == []
    with pytest.raises(ClosedError):
        accumulator.append(b"3", 3)
    assert accumulator.deadline_ms is None


@pytest.mark.parametrize("limits", UNBATCHED, ids=["off", "one record"])
def test_a7_without_batching_every_record_is_an_entry(limits: BatchLimits):
    """A7: each append writes at once, whatever its size."""
    accumulator = Accumulator(limits)
    written = [one for record in (b"1", bytes(20)) for one in accumulator.append(record, 0)]
    assert summary(written) == [
        (1, [b"1"], FlushTrigger.UNBATCHED),
        (2, [bytes(20)], FlushTrigger.UNBATCHED),
    ]


@pytest.mark.parametrize("limits", UNBATCHED, ids=["off", "one record"])
def test_a7_batching_can_be_switched_at_run_time(limits: BatchLimits):
    """A7: what is buffered leaves at the switch, in front of what comes after it."""
    accumulator = filled(TIMER, b"1")
    assert summary(accumulator.limits_changed(limits, 1)) == [(1, [b"1"], FlushTrigger.CLOSE)]
    assert summary(accumulator.append(b"2", 1)) == [(2, [b"2"], FlushTrigger.UNBATCHED)]
    assert accumulator.limits_changed(TIMER, 2) == []
    assert accumulator.append(b"3", 2) == []


def test_more_acknowledgements_than_writes_are_our_own_mistake():
    """The count of writes in flight never goes below none."""
    with pytest.raises(AssertionError, match="more writes ended"):
        Accumulator(EAGER).write_ended(0)
