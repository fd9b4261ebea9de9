"""Says in one sentence what an audit proved, about how much, and what it did not prove.

*Source*: docs/protocols C6, D, F.

*Invariants*: only a check that is valid proves something; every other check that ran, and every
check that did not run, is named as not proved.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from stilltide.pipeline.jobs.audits.report import AuditReport, Check, CheckResult, Verdict

PROVES: Mapping[Check, str] = MappingProxyType(
    {
        Check.EQUIVALENCE: "aborted-index hides exactly the records that Kafka hides",
        Check.GAPS: "no offset is lost",
        Check.HANGING: "no native transaction hangs",
        Check.HEADERS: "every record names one transaction or none",
        Check.ORPHANS: "every record has an outcome",
        Check.LATE: "no transaction wrote past its end",
        Check.COUNTS: "committed transactions have every record that they promised",
        Check.ATOMICITY: "no transaction has two outcomes",
        Check.LEAKS: "no table holds a record that readers may not see",
    }
)
"""What each check proves when it is valid."""


def proved(report: AuditReport) -> str:
    """The sentence, as text."""
    valid = [check for check in report.checks if check.verdict is Verdict.VALID]
    holds = [_holds(one) for one in valid]
    fails = [
        f"{check.check.value} ({check.verdict.value})"
        for check in report.checks
        if check.verdict is not Verdict.VALID
    ]
    ran = {check.check for check in report.checks}
    fails += [f"{check.value} (did not run)" for check in Check if check not in ran]
    unchecked = _unchecked(report)
    if unchecked:
        fails.append(
            f"the record counts of {counted(unchecked, 'committed transaction')}, whose markers "
            "snapshots have replaced"
        )
    text = f"Of {_subject(report)}, "
    text += f"this audit proved that {listed(holds)}" if holds else "this audit proved nothing"
    return text + (f"; it did not prove {listed(fails)}." if fails else ".")


def _subject(report: AuditReport) -> str:
    parts = [partition.records for partition in report.partitions]
    text = counted(sum(part.written for part in parts), "record")
    text += f" on {counted(len(parts), 'partition')}"
    figures = _figures(report, Check.ATOMICITY)
    if not figures:
        return text
    committed, aborted = figures.get("committed", 0), figures.get("aborted", 0)
    text += f", {counted(committed, 'committed coordinated transaction')}"
    return text + f" and {number(aborted)} aborted"


def _holds(result: CheckResult) -> str:
    unchecked = result.figures.get("unchecked", 0)
    if result.check is Check.COUNTS and unchecked:
        checked = max(0, result.figures.get("committed", 0) - unchecked)
        return f"{counted(checked, 'committed transaction')} have every record promised"
    return PROVES[result.check]


def _unchecked(report: AuditReport) -> int:
    return _figures(report, Check.COUNTS).get("unchecked", 0)


def _figures(report: AuditReport, check: Check) -> Mapping[str, int]:
    return next((one.figures for one in report.checks if one.check is check), {})


def number(count: int) -> str:
    """A count with its digits in groups of three."""
    return f"{count:,}"


def counted(count: int, noun: str, more: str = "") -> str:
    """A count with its noun, such as "1 record" or "2 records"."""
    return f"{number(count)} {noun if count == 1 else more or noun + 's'}"


def listed(items: Sequence[str]) -> str:
    """The items of a sentence: "a, b and c"."""
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)
