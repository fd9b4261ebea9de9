"""The screen of `stilltide status`."""

from dataclasses import replace

import pytest
from rich.console import Console

from stilltide.pipeline.cli.status_screen import ROWS_MAX, screen
from stilltide.pipeline.core.status.findings import findings
from stilltide.pipeline.core.status.values import Aged, SystemStatus
from tests.support.status.samples import (
    AWAY,
    HOLD,
    NATIVE_HOLD,
    NOW_MS,
    WELL,
    A,
    B,
    cluster,
    group,
    link,
    with_a,
)

WIDTH = 80


def shown(status: SystemStatus, width: int = WIDTH) -> str:
    """The screen as text."""
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(screen(status, findings(status)))
    return captured.get()


def row(status: SystemStatus, *begin: str) -> list[str]:
    """The words of the line that begins with these."""
    lines = [line.split() for line in shown(status).splitlines()]
    (found,) = [line for line in lines if line[: len(begin)] == list(begin)]
    return found


def test_a_screen_of_two_clusters_fits_a_terminal():
    """80 columns, 24 lines; nothing of it is a finding."""
    lines = shown(WELL).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert "nothing needs a person" in lines[0]
    assert "Needs a person" not in shown(WELL)
    assert " ".join(row(WELL, "a", "3")) == "a 3 of 3 1 2 of 2 2 1 0:7, 3 s now"
    assert row(WELL, "b", "->", "a")[3:5] == ["runs", "3"]
    assert row(WELL, "billing", "on", "orders", "b")[4:7] == ["no", "0", "2"]
    assert row(WELL, "reports")[1:3] == ["valid", "0"]


def test_what_needs_a_person_is_at_the_top_with_its_command():
    """Before everything else."""
    status = with_a(holds=Aged((HOLD, NATIVE_HOLD), NOW_MS))
    text = shown(status)
    assert "2 findings need a person" in text.splitlines()[0]
    assert text.index("Needs a person") < text.index("Clusters")
    assert "-> stilltide txn abort 3:302 --cluster a" in text
    assert row(status, "a", "orders/0@117", "3:302")[3] == "shop:9ebc67"
    assert "payments (native)" in text


def test_of_a_cluster_that_is_away_only_that_and_the_age_is_shown():
    """No number of before looks like one of now."""
    gone = replace(cluster(B), brokers=replace(AWAY, value=cluster(B).brokers.value))
    status = replace(WELL, now_ms=NOW_MS + 90_000, clusters=(cluster(A), gone))
    assert row(status, "b", "away") == ["b", "away", "-", "-", "-", "-", "-", "1", "min"]
    silent = link("a", B)._replace(running=None, away="b")
    status = replace(status, links={B: Aged((silent,), NOW_MS)})
    assert "not known: cluster b does not answer" in shown(status, 200)


def test_a_value_that_is_not_of_now_bears_its_age():
    """Up to some seconds it counts as of now."""
    old = replace(WELL, now_ms=NOW_MS + 70_000)
    assert row(old, "a", "3")[-2:] == ["1", "min"]
    assert row(old, "billing", "on", "orders", "a")[-2:] == ["1", "min"]


def test_what_was_not_read_is_a_question_mark():
    """Not a number, and not nothing."""
    unread = group(B)._replace(partitions=(), read_ms=None)
    status = replace(
        with_a(workers=Aged(), coordinators=Aged(), transactions=Aged()),
        groups=Aged((unread,), NOW_MS),
    )
    assert row(status, "a", "3")[4:8] == ["?", "?", "?", "?"]
    assert row(status, "billing")[4:] == ["?", "?", "?", "?", "-"]


def test_many_rows_are_counted():
    """The first ones are shown; JSON has all."""
    many = Aged((HOLD,) * (ROWS_MAX + 5), NOW_MS)
    assert "... 5 more in -o json" in shown(with_a(holds=many))


@pytest.mark.parametrize("name", ["[/b]", "\x1b[31mred", "a\u202eb"])
def test_names_of_strangers_are_harmless(name: str):
    """Neither markup nor control characters reach the terminal."""
    status = with_a(holds=Aged((HOLD._replace(holder=name, native=True, client=""),), NOW_MS))
    text = shown(status, 200)
    assert "\x1b" not in text
    assert "\u202e" not in text
    if name.startswith("["):
        assert name in text
