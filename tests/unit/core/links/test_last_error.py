"""Unit tests of pipeline.core.links.last_error."""

from stilltide.pipeline.core.links.last_error import (
    AGAIN_MS,
    SAME_MS,
    LastErrorReport,
    WriteLastError,
)
from stilltide.schemas.replication.positions import LastError


def error(at_ms: int, cause: str = "away") -> LastError:
    """An error."""
    return LastError(at_ms, cause, "")


def test_without_an_error_nothing_is_written():
    """H9: a link at rest costs nothing."""
    report = LastErrorReport()
    assert report.deadline_ms is None
    assert report.tick(10**12) == []
    assert report.ending(10**12) == []


def test_the_first_error_is_written_at_once():
    """H9: and once, however often the time is looked at."""
    report = LastErrorReport()
    assert report.met(error(5), 7) == [WriteLastError(error(5))]
    assert report.tick(10**9) == []
    assert report.written(error(5), 8) == []
    assert report.deadline_ms is None
    assert report.tick(10**12) == []


def test_of_many_errors_the_newest_is_written_when_its_time_has_come():
    """H9: another cause after 10 s, the same one after a minute."""
    report = LastErrorReport()
    report.met(error(0), 0)
    report.written(error(0), 1)
    assert report.met(error(2, "refused"), 2) == []
    assert report.met(error(3, "full"), 3) == []
    assert report.tick(AGAIN_MS - 1) == []
    assert report.deadline_ms == AGAIN_MS
    assert report.tick(AGAIN_MS) == [WriteLastError(error(3, "full"))]
    report.written(error(3, "full"), AGAIN_MS)
    assert report.met(error(AGAIN_MS + 1, "full"), AGAIN_MS + 1) == []
    assert report.deadline_ms == AGAIN_MS + SAME_MS


def test_a_write_that_failed_is_tried_again():
    """H9: with the error that is the newest then."""
    report = LastErrorReport()
    report.met(error(0), 0)
    assert report.met(error(4, "full"), 4) == []
    assert report.not_written(5) == []
    assert report.tick(AGAIN_MS) == [WriteLastError(error(4, "full"))]


def test_the_end_of_a_link_does_not_wait():
    """H9: what is not written yet is written, unless a write is still under way."""
    report = LastErrorReport()
    report.met(error(0), 0)
    assert report.ending(1) == []
    report.written(error(0), 1)
    assert report.ending(1) == []
    report.met(error(2), 2)
    assert report.ending(3) == [WriteLastError(error(2))]
