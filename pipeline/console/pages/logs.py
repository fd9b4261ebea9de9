"""The page of logs: how the buffered writers of coordinators and pending-ack stores work."""

from stilltide.pipeline.console.ids import partition_cell
from stilltide.pipeline.console.views import (
    NOTHING,
    UNKNOWN,
    Cell,
    PageSection,
    PageView,
    age_text,
    columns,
    number,
    size,
    table,
)
from stilltide.pipeline.core.status.asks import Logs, LogsAsk
from stilltide.pipeline.core.status.values import Aged, ClusterSeen, SystemStatus
from stilltide.schemas.log_frames import FlushFigures, LogFigures
from stilltide.schemas.values import TopicPartition

NAME = "logs"

UNBATCHED = "unbatched"
"""Trigger of entries that were not buffered."""

_LOGS = columns(
    "log",
    "batching",
    "entries#",
    "records#",
    "records an entry#",
    "bytes an entry#",
    "oldest record waits#",
    "in flight#",
    "entries written for",
)


def logs_asks(status: SystemStatus, _query: object) -> tuple[LogsAsk, ...]:
    """What the page shows beyond the common state; nothing of clusters that are away."""
    return tuple(LogsAsk(cluster.name) for cluster in status.clusters if not cluster.away)


def logs_page(view: PageView) -> tuple[PageSection, ...]:
    """A row for each log of each cluster."""
    return tuple(_logs(view, cluster) for cluster in view.status.clusters)


def _logs(view: PageView, cluster: ClusterSeen) -> PageSection:
    aged: Aged[Logs] = view.answers.get(LogsAsk(cluster.name), Aged())
    figures = aged.value.figures if aged.value is not None else {}
    return PageSection(
        f"Logs on {cluster.name}",
        note="What the present owner of each log has written. Records, bytes and waits are means of"
        " the entries that were buffered; the last column counts what made entries leave the"
        " buffer.",
        age=age_text(aged, view.status.now_ms),
        problem=aged.problem or cluster.brokers.problem,
        hint=aged.hint or cluster.brokers.hint,
        empty="" if aged.value is None else "There is no log.",
        tables=table(
            f"Logs on {cluster.name}",
            _LOGS,
            [_log(cluster, log, it) for log, it in figures.items()],
            elsewhere="stilltide coordinator internal-stats has them",
        ),
    )


def _log(cluster: ClusterSeen, log: TopicPartition, figures: LogFigures | None) -> tuple[Cell, ...]:
    if figures is None:
        unknown = (Cell(UNKNOWN, "num"),) * 6
        return (
            partition_cell(cluster.name, log),
            Cell("no answer", "bad"),
            *unknown,
            Cell(UNKNOWN),
        )
    buffered = [flush for flush in figures.flushes if flush.trigger != UNBATCHED]
    entries = sum(it.entries for it in buffered)
    fill, large, waits, longest = NOTHING, Cell(NOTHING, "num"), NOTHING, NOTHING
    if entries:
        fill = f"{sum(it.records for it in buffered) / entries:.1f}"
        large = size(round(sum(it.bytes for it in buffered) / entries))
        waits = shown_us(round(sum(it.waited_us for it in buffered) / entries))
        longest = shown_us(max(it.waited_us_max for it in buffered))
    limit = shown_us(figures.batch_delay_us_max)
    return (
        partition_cell(cluster.name, log),
        Cell("on", "good") if figures.batching_enabled else Cell("off", "idle"),
        number(figures.entries_written),
        number(figures.records_written),
        Cell(fill, "num", note=f"of at most {figures.batch_records_max:,}"),
        large,
        Cell(waits, "num", note=f"longest {longest}, limit {limit}"),
        number(figures.appends_in_flight),
        Cell(_triggers(figures.flushes)),
    )


def _triggers(flushes: tuple[FlushFigures, ...]) -> str:
    most_first = sorted(flushes, key=lambda flush: -flush.entries)
    return ", ".join(f"{it.trigger} {it.entries:,}" for it in most_first) or NOTHING


def shown_us(duration_us: int) -> str:
    """A duration in milliseconds, as the settings of logs have it."""
    return f"{duration_us / 1000:.2f} ms"
