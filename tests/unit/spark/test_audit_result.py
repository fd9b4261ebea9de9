import json

import pytest

from stilltide.pipeline.jobs.audit_result import (
    VERDICTS,
    AuditResult,
    Finding,
    FindingKind,
    PartitionAudit,
    Verdict,
)
from stilltide.schemas.values import EndOffset, Offset, TxnId


def result(*kinds: FindingKind) -> AuditResult:
    """A result with one finding of each kind."""
    partition = PartitionAudit("orders", 0, Offset(1), EndOffset(9), 8, 3, 1, 2, 1, 1, 0, 2**70 + 1)
    findings = [Finding(kind, "orders", 0, 4, TxnId(1, 2), 3, 2) for kind in kinds]
    return AuditResult((partition,), 5, 6, 7, dict.fromkeys(kinds, 1), tuple(findings), 1.23456)


@pytest.mark.parametrize(
    ("kinds", "verdict"),
    [
        ([], Verdict.VALID),
        ([FindingKind.UNDECIDED], Verdict.UNKNOWN),
        ([FindingKind.UNDECIDED, FindingKind.MISSING], Verdict.INVALID),
        ([FindingKind.TRIMMED, FindingKind.BEYOND_END, FindingKind.ORPHAN], Verdict.UNKNOWN),
    ],
)
def test_the_verdict_is_the_worst_of_what_was_found(kinds: list[FindingKind], verdict: Verdict):
    """Invalid before unknown before valid."""
    assert result(*kinds).verdict is verdict


def test_every_kind_of_finding_has_a_verdict_and_none_is_valid():
    """A new kind cannot be forgotten: it would be reported as valid."""
    assert set(VERDICTS) == set(FindingKind)
    assert Verdict.VALID not in VERDICTS.values()


def test_the_dictionary_survives_json_without_losing_a_digit():
    """Digests exceed what JSON readers keep of a number, so they are strings."""
    told = json.loads(json.dumps(result(FindingKind.MISSING).to_dict()))
    assert told["verdict"] == "invalid"
    assert told["transactions"] == {"committed": 5, "aborted": 6, "counts_unchecked": 7}
    assert told["partitions"][0]["digest"] == str(2**70 + 1)
    assert told["finding_counts"] == {"missing": 1}
    assert told["findings"][0] == {
        "kind": "missing",
        "topic": "orders",
        "partition": 0,
        "offset": 4,
        "txn": "1:2",
        "expected": 3,
        "found": 2,
        "detail": "",
    }
    assert told["elapsed_s"] == 1.235
