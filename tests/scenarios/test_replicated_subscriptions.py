"""Replicated subscriptions on one, two and three clusters, as transcripts (H, I)."""

import pytest

from stilltide.pipeline.core.groups import position_snapshots as snapshots
from tests.support.groups.theatre import Theatre


def told(text: str) -> list[str]:
    """The lines of a transcript."""
    return [line.strip() for line in text.strip().splitlines()]


def test_one_cluster_has_nobody_to_ask():
    """I1: without a remote there are no requests; a group's progress is still written down."""
    theatre = Theatre("a")
    theatre.write("a", 3)
    theatre.read("a", "g", 2)
    theatre.all()
    assert theatre.transcript() == told("""
        a| log to 3
        a| g at 2
        a| has read a [0, 2)
    """)


def test_two_clusters_need_one_round():
    """I1, I2, I3, I4: the answer travels behind the records that it counts."""
    theatre = Theatre("ab")
    theatre.write("a", 3)
    theatre.link("a", "b")
    theatre.controller("a")
    theatre.link("a", "b")
    theatre.controller("b")
    theatre.link("b", "a")
    theatre.controller("a")
    assert theatre.transcript() == told("""
        a| log to 3
        a>b| log to 4
        a| ask 1
        a>b| ask 1
        b| answer 1: decided to 4
        b>a| answer 1: decided to 4
        a| snapshot at 3: b to 4
    """)


def test_after_silence_both_clusters_agree():
    """I6, I7: Pulsar's design concludes that they never do; here they do.

    At offset 3 of `a` everything is read; on `b` the control record behind the copies is passed.
    """
    theatre = Theatre("ab")
    theatre.write("a", 3)
    theatre.link("a", "b")
    theatre.read("a", "g", 2)
    theatre.controller("a")
    theatre.link("a", "b")
    theatre.controller("b")
    theatre.read("a", "g", 5)
    theatre.controller("a")
    theatre.link("a", "b")
    theatre.controller("b")
    assert theatre.transcript() == told("""
        a| log to 3
        a>b| log to 4
        a| g at 2
        a| has read a [0, 2)
        a| ask 1
        a>b| has read a [0, 2)
        a>b| ask 1
        b| answer 1: decided to 4
        b| g moved to 2
        a| g at 3
        a| has read a [0, 3)
        a>b| has read a [0, 3)
        b| g moved to 4
    """)


def test_a_fail_over_and_back_reads_nothing_again():
    """I7, I11: both clusters write; the member that takes over skips what was read elsewhere.

    Behind the fail-over to `b` the group has read `b`'s record 4 but not `a`'s record 3, which lies
    before it on `a`: there the position stays in front of record 3, and only record 3 is delivered.
    """
    theatre = Theatre("ab")
    theatre.write("a", 3)
    theatre.read("a", "g", 3, ours=True)
    theatre.all()
    theatre.transcript()
    theatre.write("a", 1)
    theatre.write("b", 1)
    theatre.link("b", "a")
    theatre.read("b", "g", 1, ours=True)
    theatre.all()
    theatre.read("a", "g", 9, ours=True)
    lines = theatre.transcript()
    assert [line for line in lines if " g " in line or "has read" in line] == told("""
        b| g at 5
        b| has read a [0, 3), b [0, 5)
        b>a| has read a [0, 3), b [0, 5)
        a| g at 6
    """)
    assert theatre.world.again == {"g": 0}
    assert len(theatre.world.have_read("g", theatre.data)) == 5


def told_by_three(theatre: Theatre):
    """B answers for a record of C that A has not got, and that C did not know when it answered."""
    theatre.write("a", 1)
    theatre.link("a", "b")
    theatre.link("a", "c")
    theatre.controller("a")
    theatre.link("a", "b")
    theatre.link("a", "c")
    theatre.controller("c")
    theatre.link("c", "a")
    theatre.write("c", 1)
    theatre.link("c", "b")
    theatre.controller("b")
    theatre.link("b", "a")
    theatre.controller("a")


FIRST_ROUND = told("""
    a| log to 1
    a>b| log to 2
    a>c| log to 2
    a| ask 1
    a>b| ask 1
    a>c| ask 1
    c| answer 1: decided to 2
    c>a| answer 1: decided to 2
    c| log to 3
    c>b| log to 4
    b| answer 1: decided to 4
    b>a| answer 1: decided to 4
""")


def test_three_clusters_need_a_second_round():
    """I3: C answers again only after B has answered, and that answer brings the record along.

    The snapshot has the positions of the first answers, and a local end behind that record.
    """
    theatre = Theatre("abc")
    told_by_three(theatre)
    theatre.link("a", "b")
    theatre.link("a", "c")
    theatre.controller("b")
    theatre.controller("c")
    theatre.link("b", "a")
    theatre.link("c", "a")
    theatre.controller("a")
    lines = theatre.transcript()
    assert lines[: len(FIRST_ROUND)] == FIRST_ROUND
    assert lines[len(FIRST_ROUND) : -1] == told("""
        a| ask 2
        a>b| ask 2
        a>c| ask 2
        b| answer 2: decided to 4
        c| answer 2: decided to 3
        b>a| answer 2: decided to 4
        c>a| log to 3
        c>a| answer 2: decided to 3
        a| snapshot at 3: b to 4, c to 2
    """)


def test_one_round_would_lose_a_record(monkeypatch: pytest.MonkeyPatch):
    """I3: the answer to the open question of Pulsar's design.

    After one round a group on A counts as having read B's copy of a record that A has never had;
    moved there on B, it would never read it.
    """
    monkeypatch.setattr(snapshots, "rounds_of", lambda _: 1)
    with pytest.raises(AssertionError, match="I3"):
        told_by_three(Theatre("abc"))
