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
