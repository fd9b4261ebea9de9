"""The state of all clusters as JSON."""

import json

from stilltide.pipeline.core.status.findings import findings
from stilltide.pipeline.core.status.plain import plain
from stilltide.pipeline.core.status.values import Aged
from tests.support.status.samples import HOLD, NOW_MS, WELL, with_a


def test_every_part_has_value_age_and_problem():
    """Times are absolute, ages count from the moment of the state."""
    status = with_a(holds=Aged((HOLD,), NOW_MS - 700, "no answer", "wait"))
    told = json.loads(json.dumps(plain(status, findings(status))))
    part = told["clusters"][0]["holds"]
    assert (part["age_ms"], part["problem"], part["hint"]) == (700, "no answer", "wait")
    assert part["value"][0]["data"] == {"topic": "orders", "partition": 0}
    assert told["clusters"][1]["holds"] == {
        "value": [],
        "age_ms": 0,
        "problem": None,
        "hint": None,
    }
    assert told["needs_person"] is True
    assert told["findings"][0]["weight"] == "act"


def test_sums_over_partitions_are_part_of_it():
    """The lag of a link, and what a fail-over reads again; standings are words."""
    told = plain(WELL, ())
    assert told["links"]["a"]["value"][0]["lag"] == 3
    group = told["groups"]["value"][0]
    assert (group["read_again"], group["read_again_others"]) == (0, 2)
    assert group["partitions"][0]["standing"].startswith("in sync")
    assert told["audits"]["reports"]["value"]["verdict"] == "valid"
    assert told["needs_person"] is False


def test_what_was_never_read_is_null_and_not_empty():
    """An empty list means that there is nothing."""
    told = plain(with_a(index=Aged()), ())
    assert told["clusters"][0]["index"]["value"] is None
    assert told["clusters"][0]["index"]["age_ms"] is None
