"""Makes the plots of a report, and says in a sentence which of them had nothing to show.

*Invariants*: no plot is empty; the size of a plot is bounded for any number of partitions and
transactions, and for names of any length.
"""

from collections.abc import Sequence
from typing import NamedTuple

from stilltide.pipeline.core.native.offset_ledger import Window
from stilltide.pipeline.jobs.audits.pages.svg import Bar, Step, Steps, bars, nice, steps
from stilltide.pipeline.jobs.audits.pages.text import number
from stilltide.pipeline.jobs.audits.report import AuditReport, Check, PartitionFigures
from stilltide.schemas.printable import shortened

ROWS_MAX = 24
"""Largest number of partitions, or of transactions, in a plot."""


class Plot(NamedTuple):
    """A plot.

    Attributes:
        title: heading of the plot.
        note: how to read the plot, in a sentence.
        html: the drawing.
    """

    title: str
    note: str
    html: str


class Plots(NamedTuple):
    """The plots of a report, and sentences about those that had nothing to show."""

    shown: tuple[Plot, ...]
    absent: tuple[str, ...]


def plots(report: AuditReport) -> Plots:
    """The plots that have something to show."""
    parts = report.partitions[:ROWS_MAX]
    walked = [(one, one.batches.windows) for one in parts if one.batches is not None]
    found: list[Plot | str | None] = [
        _shares("native", walked)
        if walked or not parts
        else "Aborted native records are not known: no check has read the headers of batches.",
        _shares("coordinated", [(one, one.windows) for one in parts]),
        _open(report),
        _undecided(report),
        _lags(parts),
    ]
    shown = tuple(one for one in found if isinstance(one, Plot))
    return Plots(shown, tuple(one for one in found if isinstance(one, str)))


def _shares(
    kind: str, rows: Sequence[tuple[PartitionFigures, Sequence[Window]]]
) -> Plot | str | None:
    """The shares of aborted records; a row for each partition that has any."""
    drawn = [
        Steps(
            _name(one),
            f"{_percent(sum(it.aborted for it in windows) / _held(windows))} aborted",
            one.records.start_offset,
            one.records.end_offset,
            [Step(it.first, it.end, it.aborted / _held([it])) for it in windows if it.aborted],
        )
        for one, windows in rows
        if any(it.aborted for it in windows)
    ]
    if not drawn:
        return f"No record of an aborted {kind} transaction is in the range." if rows else None
    share_max = min(1.0, nice(max(step.share for row in drawn for step in row.steps)))
    note = (
        f"Of the records at these offsets, the share whose {kind} transaction aborted; the height "
        f"of a row is {_percent(share_max)}."
    )
    if len(drawn) < len(rows):
        note += f" {len(rows) - len(drawn)} of {len(rows)} partitions have none."
    title = f"Aborted {kind} records over offsets"
    return Plot(title, note, steps(drawn, kind, "offset", share_max))


def _open(report: AuditReport) -> Plot | str | None:
    if not any(one.check is Check.HANGING for one in report.checks):
        return None
    rows = [
        Bar(
            f"{shortened(one.topic)}/{one.partition}@{one.first_offset}  "
            f"{shortened(one.transactional_id or f'producer {one.producer_id}')}",
            *_age(one.age_ms),
        )
        for one in report.open_transactions[:ROWS_MAX]
    ]
    if not rows:
        return "No native transaction was open when the audit began."
    note = "Readers of a partition wait at the first record of its oldest open transaction."
    note += _cut(len(rows), len(report.open_transactions), "transactions")
    return Plot("Age of open native transactions", note, bars(rows, "open", "seconds"))


def _undecided(report: AuditReport) -> Plot | None:
    rows = [
        Bar(
            f"{shortened(one.topic)}/{one.partition}@{one.offset}  {shortened(one.txn)}",
            *_age(one.age_ms),
        )
        for one in report.undecided[:ROWS_MAX]
    ]
    if not rows:
        return None
    note = "The first undecided record of each partition, at which its readers wait."
    note += _cut(len(rows), len(report.undecided), "partitions")
    title = "Age of the coordinated transactions that partitions wait for"
    return Plot(title, note, bars(rows, "open", "seconds"))


def _lags(parts: Sequence[PartitionFigures]) -> Plot | None:
    lags = [(one, one.high_watermark - one.last_stable_offset) for one in parts]
    rows = [Bar(_name(one), number(lag), lag) for one, lag in lags if lag > 0]
    if not rows:
        return None
    note = "Offsets that readers do not see yet, since a native transaction is open in front of "
    return Plot("Lag of the last stable offset", note + "them.", bars(rows, "lag", "offsets"))


def _cut(shown: int, total: int, what: str) -> str:
    return f" The plot shows the first {shown} of {total} {what}." if total > shown else ""


def _age(age_ms: int) -> tuple[str, float]:
    return f"{age_ms / 1000:.1f} s", age_ms / 1000


def _held(windows: Sequence[Window]) -> int:
    """How many records the windows hold, aborted or not; at least 1."""
    return max(1, sum(it.aborted + it.visible for it in windows))


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 1 else "100 %"


def _name(one: PartitionFigures) -> str:
    return f"{shortened(one.records.topic)}/{one.records.partition}"
