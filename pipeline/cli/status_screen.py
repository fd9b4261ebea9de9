"""What `stilltide status` shows: sections of the console's page model, drawn with rich.

*Invariants*: the widest table fits 80 columns, as long as names are short; longer ones fold. A
value that is not of now bears its age; one that could not be read is shown as `?`. Text of a
stranger, such as the name of a topic, is no markup, and its control characters are escaped.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stilltide.pipeline.console.pages.overview import cluster_counts
from stilltide.pipeline.console.views import (
    NOTHING,
    UNKNOWN,
    Cell,
    Column,
    PageSection,
    PageTable,
    columns,
    table,
)
from stilltide.pipeline.core.status.findings import (
    StatusFinding,
    Weight,
    link_state,
    shown_age,
)
from stilltide.pipeline.core.status.values import (
    STANDING_WORDS,
    Aged,
    ClusterSeen,
    GroupStatus,
    LinkStatus,
    ReaderHold,
    SnapshotStatus,
    SystemStatus,
)
from stilltide.schemas.printable import printable, printable_lines

T = TypeVar("T")

FRESH_MS = 15_000
"""Age up to which a value counts as of now, and is shown without its age."""

ROWS_MAX = 12
"""Rows of a table of which there may be many; the others are counted. JSON has all of them."""

_INDENT = (0, 0, 0, 1)

_Rows = Sequence[tuple[str, ...]]


def screen(status: SystemStatus, findings: Sequence[StatusFinding]) -> RenderableType:
    """The first line and the sections, with an empty line before each section."""
    lines: list[RenderableType] = [Text(printable(heading(status, findings)), style="bold")]
    for section in sections(status, findings):
        style = "bold red" if section.urgent else "bold"
        lines += [Text(""), Text(section.title, style=style)]
        lines += [Padding(_drawn(part), _INDENT, expand=False) for part in section.tables]
    return Group(*lines)


def sections(status: SystemStatus, findings: Sequence[StatusFinding]) -> list[PageSection]:
    """The sections of the screen, in order; those without rows are left out."""
    made = [
        _findings("Needs a person", findings, Weight.ACT, status.now_ms),
        _findings("Worth a look", findings, Weight.WATCH, status.now_ms),
        _clusters(status),
        _workers(status),
        _holds(status),
        _links(status),
        _groups(status),
        _stored(status),
        _audits(status),
    ]
    return [section for section in made if section.tables]


def heading(status: SystemStatus, findings: Sequence[StatusFinding]) -> str:
    """The first line: when, and whether everything is well."""
    at = datetime.fromtimestamp(status.now_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    urgent = sum(finding.weight is Weight.ACT for finding in findings)
    state = f"{urgent} {_needs(urgent)} a person" if urgent else "nothing needs a person"
    return f"{at}   {state}"


def _needs(count: int) -> str:
    return "finding needs" if count == 1 else "findings need"


def _drawn(part: PageTable) -> Table:
    heads = any(column.head for column in part.columns)
    drawn = Table(box=None, show_header=heads, header_style="dim", padding=(0, 2, 0, 0))
    for column in part.columns:
        justify = "right" if column.is_number else "left"
        drawn.add_column(Text(column.head), justify=justify, overflow="fold")
    for row in part.rows:
        drawn.add_row(*(Text(printable_lines(_text(cell))) for cell in row))
    if part.more:
        drawn.add_row(f"... {part.more} more in {part.elsewhere}")
    return drawn


def _text(cell: Cell) -> str:
    return f"{cell.text}\n-> {cell.command}" if cell.command else cell.text


def _section(
    title: str, heads: Sequence[Column], rows: _Rows, *, rows_max: int = ROWS_MAX
) -> PageSection:
    """A section of one table; without a table if there is no row."""
    cells = [tuple(map(Cell, row)) for row in rows]
    return PageSection(
        title, tables=table(title, heads, cells, elsewhere="-o json", rows_max=rows_max)
    )


def _findings(
    title: str, findings: Sequence[StatusFinding], weight: Weight, now_ms: int
) -> PageSection:
    rows = [
        (Cell(finding.cluster or NOTHING), Cell(finding.shown(now_ms), command=finding.command))
        for finding in findings
        if finding.weight is weight
    ]
    tables = table(title, columns("", ""), rows, elsewhere="-o json", rows_max=ROWS_MAX)
    return PageSection(title, urgent=weight is Weight.ACT, tables=tables)


def _clusters(status: SystemStatus) -> PageSection:
    heads = columns(
        "cluster", "brokers", "workers", "coordinators", "open#", "ending#", "oldest", "age"
    )
    rows = [_cluster(cluster, status.now_ms) for cluster in status.clusters]
    return _section("Clusters", heads, rows, rows_max=len(rows))


def _cluster(cluster: ClusterSeen, now_ms: int) -> tuple[str, ...]:
    if cluster.away:
        ages = (part.age_ms(now_ms) for _, part in cluster.parts())
        seen = min((age for age in ages if age is not None), default=None)
        age = NOTHING if seen is None else shown_age(seen)
        return cluster.name, "away", *[NOTHING] * 5, age
    counts = cluster_counts(cluster)
    return (
        cluster.name,
        counts.brokers,
        UNKNOWN if counts.workers is None else str(counts.workers),
        counts.coordinators,
        UNKNOWN if counts.open is None else str(counts.open),
        UNKNOWN if counts.ending is None else str(counts.ending),
        _oldest(cluster, now_ms),
        _age(cluster.transactions, now_ms) or "now",
    )


def _oldest(cluster: ClusterSeen, now_ms: int) -> str:
    transactions = cluster.transactions.value
    if transactions is None or transactions.oldest is None:
        return "-"
    return f"{transactions.oldest.txn}, {shown_age(now_ms - transactions.oldest.opened_ms)}"


def _workers(status: SystemStatus) -> PageSection:
    rows = [
        (
            cluster.name,
            worker.host,
            worker.version or "unknown",
            ", ".join(map(str, worker.coordinators)) or "none",
        )
        for cluster in status.clusters
        for worker in _of(cluster.workers)
        if not cluster.away
    ]
    return _section("Workers", columns("cluster", "host", "version", "coordinators"), rows)


def _of(aged: Aged[tuple[T, ...]]) -> tuple[T, ...]:
    return aged.value or ()


def _holds(status: SystemStatus) -> PageSection:
    rows = [
        (
            cluster.name,
            f"{hold.data}@{hold.offset}",
            _holder(hold),
            "-" if hold.since_ms is None else shown_age(status.now_ms - hold.since_ms),
            str(hold.behind),
        )
        for cluster in status.clusters
        for hold in _of(cluster.holds)
        if not cluster.away
    ]
    heads = columns("cluster", "readers wait at", "for", "since", "offsets behind#")
    return _section("Readers that wait", heads, rows)


def _holder(hold: ReaderHold) -> str:
    if hold.native:
        return f"{hold.holder} (native{', hangs' if hold.hanging else ''})"
    return f"{hold.holder} {_short_client(hold.client)}".strip()


def _short_client(client: str) -> str:
    """The client's name, with the beginning of its key."""
    name, colon, key = client.rpartition(":")
    return f"{name}:{key[:6]}" if colon else client


def _links(status: SystemStatus) -> PageSection:
    rows = [_link(link, aged, status) for aged in status.links.values() for link in _of(aged)]
    heads = columns("link", "state", "lag#", "partitions#", "heard of", "last error", "age")
    return _section("Links", heads, rows)


def _link(
    link: LinkStatus, aged: Aged[tuple[LinkStatus, ...]], status: SystemStatus
) -> tuple[str, ...]:
    now_ms = status.now_ms
    return (
        f"{link.source} -> {link.target}",
        link_state(link, status),
        UNKNOWN if link.lag is None or link.away else str(link.lag),
        str(len(link.partitions)) if link.partitions or not link.away else UNKNOWN,
        "-" if link.beat_ms is None else f"{shown_age(now_ms - link.beat_ms)} ago",
        _last_error(link, now_ms),
        _age(aged, now_ms) or "now",
    )


def _last_error(link: LinkStatus, now_ms: int) -> str:
    """When and what; of a link that does not run, a finding says what."""
    if link.last_error_ms is None:
        return "-"
    when = f"{shown_age(max(0, now_ms - link.last_error_ms))} ago"
    return f"{when}: {link.last_error}" if link.running else when


def _groups(status: SystemStatus) -> PageSection:
    rows = [_group(one, status.now_ms) for one in status.groups.value or ()]
    heads = columns("group", "cluster", "members", "reads again#", "others#", "position", "age")
    return _section("Groups: what a fail-over to the cluster reads again now", heads, rows)


def _group(group: GroupStatus, now_ms: int) -> tuple[str, ...]:
    name = f"{group.group} on {group.topic}"
    if group.read_ms is None:
        return name, group.cluster, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, "-"
    standings = {STANDING_WORDS[partition.standing] for partition in group.partitions}
    return (
        name,
        group.cluster,
        "yes" if group.active else "no",
        str(group.read_again),
        str(group.read_again_others),
        ", ".join(sorted(standings)),
        _old(now_ms - group.read_ms) or "now",
    )


def _stored(status: SystemStatus) -> PageSection:
    rows = [
        row
        for cluster in status.clusters
        if not cluster.away
        for row in (_snapshots(cluster, status.now_ms), _index(cluster, status.now_ms))
        if row is not None
    ]
    heads = columns(
        "cluster", "what", "partitions#", "most behind#", "parts#", "bytes#", "newest", "age"
    )
    return _section("Snapshots and indexes", heads, rows, rows_max=len(rows))


def _snapshots(cluster: ClusterSeen, now_ms: int) -> tuple[str, ...] | None:
    snapshots = cluster.snapshots.value
    if not snapshots:
        return None
    return (
        cluster.name,
        "snapshots",
        str(len(snapshots)),
        str(max((it.behind or 0 for it in snapshots), default=0)),
        str(sum(it.parts for it in snapshots)),
        str(sum(it.bytes for it in snapshots)),
        _newest(snapshots, now_ms),
        _age(cluster.snapshots, now_ms) or "now",
    )


def _newest(snapshots: Iterable[SnapshotStatus], now_ms: int) -> str:
    written = [snapshot.written_ms for snapshot in snapshots if snapshot.written_ms is not None]
    return f"{shown_age(now_ms - max(written))} ago" if written else "-"


def _index(cluster: ClusterSeen, now_ms: int) -> tuple[str, ...] | None:
    partitions = cluster.index.value
    if not partitions:
        return None
    lag = max((it.lag or 0 for it in partitions), default=0)
    age = _age(cluster.index, now_ms) or "now"
    return cluster.name, "index", str(len(partitions)), str(lag), "-", "-", "-", age


def _audits(status: SystemStatus) -> PageSection:
    rows = [
        (
            directory,
            audit.value.verdict if audit.value else UNKNOWN,
            str(audit.value.findings) if audit.value else UNKNOWN,
            f"{shown_age(status.now_ms - audit.value.ended_ms)} ago" if audit.value else "-",
        )
        for directory, audit in status.audits.items()
    ]
    return _section("Last audits", columns("audit", "verdict", "findings#", "ended"), rows)


def _age(aged: Aged[T], now_ms: int) -> str:
    age_ms = aged.age_ms(now_ms)
    return "-" if age_ms is None else _old(age_ms)


def _old(age_ms: int) -> str:
    """An age that is worth to be shown; empty: of now."""
    return "" if age_ms <= FRESH_MS else shown_age(age_ms)
