"""Lines of clients about clusters that are away: held, counted, and logged if they were not."""

import logging

import pytest

from stilltide.pipeline.log_folding import LIBRDKAFKA, OWNERS, WAITING_MAX, WATCH, LineFold

HERE = "127.0.0.1:9092"
THERE = "127.0.0.1:9192,127.0.0.1:9193"
OURS = "stilltide.pipeline.drivers.native.owner"


class Lines:
    """A filter whose clock stands at `now_s`, and the lines that have passed."""

    def __init__(self, *watched: str) -> None:
        self.now_s = 0.0
        self.passed: list[str] = []
        self.fold = LineFold(lambda it: self.passed.append(it.getMessage()), lambda: self.now_s)
        for address in watched:
            self.fold.watch(address)

    def say(self, text: object, logger: str = LIBRDKAFKA) -> None:
        """Logs a line."""
        record = logging.LogRecord(logger, logging.ERROR, "client.py", 1, text, None, None)
        if self.fold.filter(record):
            self.passed.append(record.getMessage())


def test_a_line_about_a_cluster_waits_for_the_answer():
    """A question asked before the line says nothing about the time after it."""
    lines = Lines(HERE)
    lines.now_s = 2.0
    lines.say(f"{HERE}: refused")
    lines.fold.answered(HERE, asked_s=1.0)
    assert lines.passed == []
    lines.fold.answered(HERE, asked_s=3.0)
    assert lines.passed == [f"{HERE}: refused"]


def test_lines_about_an_absent_cluster_are_counted():
    """Those before the absence was known too, until the clients have connected again."""
    lines = Lines(HERE)
    lines.say(f"{HERE}: refused")
    lines.fold.away(HERE)
    lines.say("no coordinator", "aiokafka.consumer")
    lines.say({"event": "aborted_indexing_failed", "why": f"cannot read at {HERE}"}, OURS)
    assert lines.passed == []
    assert lines.fold.back(HERE) == {"librdkafka": 1, "aiokafka": 1, "aborted_indexing_failed": 1}
    assert lines.fold.back(HERE) == {}


def test_another_cluster_and_other_subjects_are_heard():
    """Only what names the absent cluster, or may be about it, is held."""
    lines = Lines(HERE, THERE)
    lines.fold.away(THERE)
    lines.say("owner_fenced", OURS)
    lines.say({"event": "cluster_away", "address": THERE}, WATCH)
    lines.say({"event": "owner_ended", "why": f"cannot read at {THERE}"}, OWNERS)
    lines.say("127.0.0.1:9193: refused")
    lines.say(f"{HERE}: refused")
    lines.fold.answered(HERE, asked_s=1.0)
    assert lines.passed == [
        "owner_fenced",
        str({"event": "cluster_away", "address": THERE}),
        str({"event": "owner_ended", "why": f"cannot read at {THERE}"}),
        f"{HERE}: refused",
    ]
    assert lines.fold.back(THERE).total() == 1


@pytest.mark.parametrize("end", ["unwatch", "flush"])
def test_no_line_that_waits_is_lost(end: str):
    """It is logged when the watch ends, or the process."""
    lines = Lines(HERE)
    lines.say(f"{HERE}: refused")
    if end == "unwatch":
        lines.fold.unwatch(HERE)
    else:
        lines.fold.flush()
    assert lines.passed == [f"{HERE}: refused"]


def test_the_lines_that_wait_are_bounded():
    """Beyond the bound, lines pass at once."""
    lines = Lines(HERE)
    for _ in range(WAITING_MAX + 2):
        lines.say(f"{HERE}: refused")
    assert len(lines.passed) == 2


def test_without_a_watch_every_line_passes():
    """Commands that watch no cluster log as before."""
    lines = Lines()
    lines.say(f"{HERE}: refused")
    assert lines.passed == [f"{HERE}: refused"]
