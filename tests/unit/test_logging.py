"""Lines of libraries that repeat themselves."""

import logging

import pytest
import structlog

from stilltide.pipeline.logging import LIBRARY_PERIOD_S, LazyLogger, LibraryFilter


def line(logger: str, number: int, text: str = "down") -> logging.LogRecord:
    """A line from one place in a library's code."""
    return logging.LogRecord(logger, logging.ERROR, "client.py", number, "it is %s", (text,), None)


def test_a_library_that_repeats_itself_is_heard_rarely():
    """The first line passes at once, the next when its time has come, with how many it was."""
    now_s = 0.0
    seldom = LibraryFilter(now_s=lambda: now_s)
    assert [bool(seldom.filter(line("aiokafka", 7))) for _ in range(5)] == [True] + [False] * 4
    now_s = LIBRARY_PERIOD_S
    late = line("aiokafka", 7)
    assert seldom.filter(late)
    assert late.getMessage() == "it is down (4 more like it since)"
    assert not seldom.filter(line("aiokafka", 7))


def test_another_place_is_another_line():
    """What a library has not said yet is never held back."""
    seldom = LibraryFilter()
    assert all(seldom.filter(line("aiokafka", number)) for number in range(5))


@pytest.mark.parametrize(
    "logger",
    [
        "stilltide.pipeline.drivers.buffered_log.owned_log",
        "stilltide.connectors.kafka",
        "stilltide",
    ],
)
def test_our_own_lines_all_pass(logger: str):
    """Our lines are few by themselves, and each says something."""
    seldom = LibraryFilter()
    assert all(seldom.filter(line(logger, 7)) for _ in range(5))


def test_an_application_without_logging_has_our_lines_on_stderr(
    capsys: pytest.CaptureFixture[str],
):
    """What it prints is its own; once it has configured structlog, its configuration counts."""
    structlog.reset_defaults()
    log = LazyLogger("stilltide.pipeline.test")
    log.warning("no_answer_yet", waited_s=2)
    printed = capsys.readouterr()
    assert not printed.out
    assert "no_answer_yet" in printed.err
    with structlog.testing.capture_logs() as logged:
        log.warning("no_answer_yet", waited_s=4)
    structlog.reset_defaults()
    assert [line["waited_s"] for line in logged] == [4]
    assert not capsys.readouterr().err


def test_a_connection_that_broke_is_one_line():
    """The cause stands behind the library's words, and no traceback follows."""
    told = line("kafka.net.transport", 7)
    cause = ConnectionResetError(104, "Connection reset by peer")
    told.exc_info = (type(cause), cause, None)
    assert LibraryFilter().filter(told)
    assert told.getMessage() == "it is down: [Errno 104] Connection reset by peer"
    assert told.exc_info is None
