"""Lines of real processes make a history that the checker of the simulation judges rightly."""

import json
from pathlib import Path
from typing import Any

from tests.chaos.proxied.merging import Files, Merging, behind, merging_of
from tests.chaos.proxied.plan import KINDS, draw
from tests.chaos.proxied.programs.telling import Telling
from tests.simulation.check import check
from tests.simulation.history import History, Place

HERE = {"cluster": "a"}
LOG = {"what": "final", "cluster": "a", "topic": "receipts", "partition": 0}


def history(*lines: dict[str, Any]) -> History:
    """The history of lines, each a second after the one before unless it says when."""
    merging = Merging()
    for second, line in enumerate(lines, 1):
        merging.feed({"at_ns": round(second * 1e9)} | line)
    return merging.merged()


def kinds(*lines: dict[str, Any]) -> set[str]:
    """The kinds of anomalies of lines."""
    return {it.kind for it in check(history(*lines))}


def write(txn: str, value: str, partition: int = 0) -> dict[str, Any]:
    """A write to a topic that no link copies."""
    place = {"cluster": "a", "topic": "receipts", "partition": partition}
    return {"what": "write", "txn": txn, "value": value, **place}


def committed(txn: str, *writes: dict[str, Any]) -> list[dict[str, Any]]:
    """The lines of a transaction that commits."""
    end = [{"what": "commit", "txn": txn}, {"what": "ended", "txn": txn, "outcome": "committed"}]
    return [{"what": "begin", "txn": txn}, *writes, *end]


def poll(
    value: str, offset: int, *, at_s: float, since_s: float, member: str = "m"
) -> dict[str, Any]:
    """A poll of a group of acknowledgements; the session had not begun at `since_s`."""
    return {
        "what": "poll",
        "at_ns": round(at_s * 1e9),
        "since_ns": round(since_s * 1e9),
        "group": "members",
        "member": member,
        "session": 1,
        "cluster": "a",
        "topic": "receipts",
        "partition": 0,
        "offset": offset,
        "value": value,
    }


def test_a_killed_writer_has_aborted_what_it_did_not_ask_to_commit():
    """A record of it that readers see is an anomaly, though nobody told of an end."""
    lines = [{"what": "begin", "txn": "t"}, write("t", "v")]
    assert kinds(*lines, LOG | {"log": []}) == set()
    assert kinds(*lines, LOG | {"log": [[0, "v"]]}) == {"aborted read"}


def test_a_writer_that_is_killed_while_it_commits_may_have_committed():
    """Its transaction is whole or absent, never in part."""
    lines = [{"what": "begin", "txn": "t"}, write("t", "v"), write("t", "w")]
    lines.append({"what": "commit", "txn": "t"})
    assert kinds(*lines, LOG | {"log": []}) == set()
    assert kinds(*lines, LOG | {"log": [[0, "v"], [1, "w"]]}) == set()
    assert kinds(*lines, LOG | {"log": [[0, "v"]]}) == {"torn transaction"}


def test_a_key_chooses_the_place_of_a_write():
    """The place of such a write is told after it was sent."""
    lines = committed("t", write("t", "v", -1), {"what": "sent", "value": "v", "partition": 2})
    log = LOG | {"partition": 2, "log": [[0, "v"]]}
    assert history(*lines, log).transactions[0].writes[0].place == Place("a", "receipts", 2)
    assert kinds(*lines, log) == set()
    assert kinds(*lines, LOG | {"log": [[0, "v"]]}) == {"elsewhere"}


def test_a_frozen_member_may_return_what_another_one_has_acknowledged():
    """A session that may have begun before the acknowledgement proves nothing.

    The member had the message when it was frozen, and tells of its first poll when it goes on.
    """
    lines = committed("t", write("t", "v"))
    done = {
        "what": "acknowledged",
        "at_ns": 20_000_000_000,
        "group": "members",
        "values": ["v"],
    } | HERE
    log = LOG | {"log": [[0, "v"]]}
    one = poll("v", 0, at_s=10, since_s=9, member="one")
    assert kinds(*lines, one, done, poll("v", 0, at_s=30, since_s=8), log) == set()
    assert kinds(*lines, one, done, poll("v", 0, at_s=30, since_s=25), log) == {
        "acknowledged and delivered"
    }


def test_a_later_poll_of_a_session_has_its_own_time():
    """The bound of a session moves its first poll only, so polls keep their order."""
    log = LOG | {"log": [[0, "v"], [1, "w"]]}
    lines = committed("t", write("t", "v"), write("t", "w"))
    made = history(*lines, poll("w", 1, at_s=31, since_s=8), poll("v", 0, at_s=30, since_s=8), log)
    assert [(it.value, it.at_s) for it in made.polls] == [(b"w", 8.0), (b"v", 30.0)]


def test_a_group_that_moves_in_order_reads_nothing_again():
    """What was durable before an exact move is not delivered again; after another one it may be."""

    def lines(*, exact: bool) -> list[dict[str, Any]]:
        moving = {"group": "movers", "topic": "orders"}
        place = {"topic": "orders", "cluster": "a"}
        return [
            *committed("t", write("t", "v") | place),
            poll("v", 0, at_s=10, since_s=9) | moving,
            {"what": "acknowledged", "at_ns": 11_000_000_000, "group": "movers", "values": ["v"]}
            | HERE,
            {
                "what": "moved",
                "at_ns": 12_000_000_000,
                "group": "movers",
                "to": "b",
                "exact": exact,
            },
            poll("v", 0, at_s=20, since_s=15, member="n") | moving | {"cluster": "b"},
            LOG | place | {"log": [[0, "v"]]},
            LOG | place | {"cluster": "b", "log": [[0, "v"]]},
        ]

    assert kinds(*lines(exact=True)) == {"acknowledged and delivered"}
    assert kinds(*lines(exact=False)) == set()


def test_each_move_carries_what_was_acknowledged_once():
    """Twenty moves of a group carry twenty times what it has acknowledged, not 2^20 times."""
    told = {"what": "acknowledged", "group": "exact", "cluster": "a", "values": ["v", "w"]}
    move = {"what": "moved", "group": "exact", "to": "b", "exact": True}
    assert len(history(told, *[move] * 20).acknowledged) == 2 + 20 * 2


def test_a_process_that_ends_by_an_error_is_an_anomaly():
    """So is what is not done in time."""
    assert kinds({"what": "exit", "process": "worker-1", "why": "code 1"}) == {"exit"}
    assert kinds({"what": "unfinished", "why": "a copy is missing"}) == {"not finished"}


def test_a_line_that_is_being_written_is_read_later(tmp_path: Path):
    """A process may be killed in the middle of its last line; other lines are read once."""
    telling = Telling(tmp_path / "writer-1.1.jsonl")
    telling.tell("begin", txn="t")
    files = Files(tmp_path)
    assert [it["what"] for it in files.more()] == ["begin"]
    rest = json.dumps({"at_ns": 2, "what": "commit", "txn": "t"})
    with (tmp_path / "writer-1.1.jsonl").open("a") as file:
        file.write(rest[:9])
    assert list(files.more()) == []
    with (tmp_path / "writer-1.1.jsonl").open("a") as file:
        file.write(rest[9:] + "\n")
    assert [it["what"] for it in files.more()] == ["commit"]
    assert merging_of(tmp_path).merged().transactions[0].outcome == "unknown"


def test_what_a_group_has_not_handled_is_named():
    """A group has to handle what is in the final log of the cluster where it reads."""
    log = LOG | {"topic": "orders", "cluster": "b", "log": [[4, "v"]]}
    made = history(log)
    assert behind(made, {"movers": "b"}) == [
        "movers has not handled b'v' of Place(cluster='b', topic='orders', partition=0)"
    ]
    assert behind(made, {"movers": "a"}) == []


def test_a_seed_draws_the_same_faults():
    """Faults come in the order of time, and are over when the scenario is."""
    programs = ["writer-1", "worker-1"]
    for scenario in KINDS:
        faults = draw(scenario, 7, programs, ["member-1"], 600.0)
        assert faults == draw(scenario, 7, programs, ["member-1"], 600.0)
        assert faults != draw(scenario, 8, programs, ["member-1"], 600.0)
        assert faults == sorted(faults)
        assert all(it.at_s + it.for_s <= 600 for it in faults)
        always = {"move", "move_killed", "leave"}
        assert {it.kind for it in faults} == {*KINDS[scenario], *always}
