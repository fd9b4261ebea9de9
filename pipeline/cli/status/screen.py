"""What `stilltide status` shows, as blocks of text: which rows, columns and words; pure.

*Invariants*: the widest table fits 80 columns, as long as names are short; longer ones fold. A
value that is not of now bears its age; one that could not be read is shown as `?`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from stilltide.pipeline.core.status.findings import StatusFinding, Weight, shown_age
from stilltide.pipeline.core.status.state import Aged, ClusterSeen, SystemStatus
from stilltide.pipeline.core.status.values import (
    GroupStatus,
    LinkStatus,
    ReaderHold,
    SnapshotStatus,
)
from stilltide.pipeline.core.status.words import STANDING_WORDS

T = TypeVar("T")

FRESH_MS = 15_000
"""Age up to which a value counts as of now, and is shown without its age."""

ROWS_MAX = 12
"""Rows of a block; the others are counted. JSON has all of them."""

UNKNOWN = "?"


@dataclass(frozen=True)
class Block:
    """A heading and the table below it.

    Attributes:
        title: the heading.
        columns: heads of the columns; empty: the rows have none.
        rows: a text for each column.
        urgent: whether to draw attention to the heading.
        numbers: columns whose texts are numbers, by position.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    urgent: bool = False
    numbers: frozenset[int] = frozenset()


def blocks(status: SystemStatus, found: Sequence[StatusFinding]) -> list[Block]:
    """The blocks of the screen, in order; those without rows are left out."""
    made = [
        _findings("Needs a person", found, Weight.ACT),
        _findings("Worth a look", found, Weight.WATCH),
        _clusters(status),
        _workers(status),
        _holds(status),
        _links(status),
        _groups(status),
        _stored(status),
        _audits(status),
    ]
    return [one for one in made if one.rows]


def heading(status: SystemStatus, found: Sequence[StatusFinding]) -> str:
    """The first line: when, and whether everything is well."""
    at = datetime.fromtimestamp(status.now_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    urgent = sum(one.weight is Weight.ACT for one in found)
    said = f"{urgent} {_needs(urgent)} a person" if urgent else "nothing needs a person"
    return f"{at}   {said}"


def _needs(count: int) -> str:
    return "finding needs" if count == 1 else "findings need"


def _findings(title: str, found: Sequence[StatusFinding], weight: Weight) -> Block:
    rows = [
        (one.cluster or "-", f"{one.text}\n-> {one.command}" if one.command else one.text)
        for one in found
        if one.weight is weight
    ]
    return Block(title, (), _few(rows), urgent=weight is Weight.ACT)


def _clusters(status: SystemStatus) -> Block:
    columns = ("cluster", "brokers", "workers", "coordinators", "open", "ending", "oldest", "age")
    rows = tuple(_cluster(one, status.now_ms) for one in status.clusters)
    return Block("Clusters", columns, rows, numbers=frozenset({4, 5}))


def _cluster(one: ClusterSeen, now_ms: int) -> tuple[str, ...]:
    name = one.name
    if one.away:
        ages = (part.age_ms(now_ms) for _, part in one.parts())
        seen = min((age for age in ages if age is not None), default=None)
        ago = "-" if seen is None else shown_age(seen)
        return name, "away", "-", "-", "-", "-", "-", ago
    brokers, workers = one.brokers.value, one.workers.value
    coordinators, open_now = one.coordinators.value, one.transactions.value
    counted = open_now is not None and not open_now.silent
    up = UNKNOWN if brokers is None else f"{brokers.up}"
    if brokers is not None and brokers.registered:
        up = f"{brokers.up} of {brokers.registered}"
    serving = sum(it.serving for it in coordinators or ())
    return (
        name,
        up,
        UNKNOWN if workers is None else str(len(workers)),
        UNKNOWN if coordinators is None else f"{serving} of {len(coordinators)}",
        str(open_now.open_count) if open_now and counted else UNKNOWN,
        str(open_now.committing_count + open_now.aborting_count)
        if open_now and counted
        else UNKNOWN,
        _oldest(one, now_ms),
        _age(one.transactions, now_ms) or "now",
    )


def _oldest(one: ClusterSeen, now_ms: int) -> str:
    found = one.transactions.value
    if found is None or found.oldest is None:
        return "-"
    return f"{found.oldest.txn}, {shown_age(now_ms - found.oldest.opened_ms)}"


def _workers(status: SystemStatus) -> Block:
    rows = [
        (
            cluster.name,
            it.host,
            it.version or "unknown",
            ", ".join(map(str, it.coordinators)) or "none",
        )
        for cluster in status.clusters
        for it in _of(cluster.workers)
        if not cluster.away
    ]
    return Block("Workers", ("cluster", "host", "version", "coordinators"), _few(rows))


def _of(aged: Aged[tuple[T, ...]]) -> tuple[T, ...]:
    return aged.value or ()


def _holds(status: SystemStatus) -> Block:
    rows = [
        (
            cluster.name,
            f"{it.data}@{it.offset}",
            _holder(it),
            "-" if it.since_ms is None else shown_age(status.now_ms - it.since_ms),
            str(it.behind),
        )
        for cluster in status.clusters
        for it in _of(cluster.holds)
        if not cluster.away
    ]
    columns = ("cluster", "readers wait at", "for", "since", "offsets behind")
    return Block("Readers that wait", columns, _few(rows), numbers=frozenset({4}))


def _holder(one: ReaderHold) -> str:
    if one.native:
        return f"{one.holder} (native{', hangs' if one.hanging else ''})"
    return f"{one.holder} {_short_client(one.client)}".strip()


def _short_client(client: str) -> str:
    """The client's name, with the beginning of its key."""
    name, colon, key = client.rpartition(":")
    return f"{name}:{key[:6]}" if colon else client


def _links(status: SystemStatus) -> Block:
    rows = [
        _link(one, aged, status.now_ms)
        for aged in status.links.values()
        for one in _of(aged)
        if not _is_away(status, one)
    ]
    columns = ("link", "state", "lag", "partitions", "heard of", "last error", "age")
    return Block("Links", columns, _few(rows), numbers=frozenset({2, 3}))


def _is_away(status: SystemStatus, one: LinkStatus) -> bool:
    target = status.cluster(one.target)
    return target is None or target.away


def _link(one: LinkStatus, aged: Aged[tuple[LinkStatus, ...]], now_ms: int) -> tuple[str, ...]:
    state = "ended" if one.problem else "runs" if one.running else "stopped"
    return (
        f"{one.source} -> {one.target}",
        state,
        UNKNOWN if one.lag is None else str(one.lag),
        str(len(one.partitions)),
        "-" if one.beat_ms is None else f"{shown_age(now_ms - one.beat_ms)} ago",
        _last_error(one, now_ms),
        _age(aged, now_ms) or "now",
    )


def _last_error(one: LinkStatus, now_ms: int) -> str:
    """When and what; of a link that does not run, a finding says what."""
    if one.last_error_ms is None:
        return "-"
    when = f"{shown_age(max(0, now_ms - one.last_error_ms))} ago"
    return f"{when}: {one.last_error}" if one.running else when


def _groups(status: SystemStatus) -> Block:
    rows = [_group(one, status.now_ms) for one in status.groups.value or ()]
    columns = ("group", "cluster", "members", "reads again", "others", "position", "age")
    return Block(
        "Groups: what a fail-over to the cluster reads again now",
        columns,
        _few(rows),
        numbers=frozenset({3, 4}),
    )


def _group(one: GroupStatus, now_ms: int) -> tuple[str, ...]:
    name = f"{one.group} on {one.topic}"
    if one.read_ms is None:
        return name, one.cluster, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, "-"
    standings = {STANDING_WORDS[it.standing] for it in one.partitions}
    return (
        name,
        one.cluster,
        "yes" if one.active else "no",
        str(one.read_again),
        str(one.read_again_others),
        ", ".join(sorted(standings)),
        _old(now_ms - one.read_ms) or "now",
    )


def _stored(status: SystemStatus) -> Block:
    rows = [
        row
        for cluster in status.clusters
        if not cluster.away
        for row in (_snapshots(cluster, status.now_ms), _index(cluster, status.now_ms))
        if row is not None
    ]
    columns = ("cluster", "what", "partitions", "most behind", "parts", "bytes", "newest", "age")
    return Block("Snapshots and indexes", columns, tuple(rows), numbers=frozenset({2, 3, 4, 5}))


def _snapshots(cluster: ClusterSeen, now_ms: int) -> tuple[str, ...] | None:
    found = cluster.snapshots.value
    if not found:
        return None
    return (
        cluster.name,
        "snapshots",
        str(len(found)),
        str(max((it.behind or 0 for it in found), default=0)),
        str(sum(it.parts for it in found)),
        str(sum(it.bytes for it in found)),
        _newest(found, now_ms),
        _age(cluster.snapshots, now_ms) or "now",
    )


def _newest(found: Iterable[SnapshotStatus], now_ms: int) -> str:
    written = [it.written_ms for it in found if it.written_ms is not None]
    return f"{shown_age(now_ms - max(written))} ago" if written else "-"


def _index(cluster: ClusterSeen, now_ms: int) -> tuple[str, ...] | None:
    found = cluster.index.value
    if not found:
        return None
    lag = max((it.lag or 0 for it in found), default=0)
    age = _age(cluster.index, now_ms) or "now"
    return cluster.name, "index", str(len(found)), str(lag), "-", "-", "-", age


def _audits(status: SystemStatus) -> Block:
    rows = [
        (
            directory,
            one.value.verdict if one.value else UNKNOWN,
            str(one.value.findings) if one.value else UNKNOWN,
            f"{shown_age(status.now_ms - one.value.ended_ms)} ago" if one.value else "-",
        )
        for directory, one in status.audits.items()
    ]
    columns = ("audit", "verdict", "findings", "ended")
    return Block("Last audits", columns, _few(rows), numbers=frozenset({2}))


def _few(rows: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """The first rows, and how many more there are."""
    if len(rows) <= ROWS_MAX:
        return tuple(rows)
    more = f"... {len(rows) - ROWS_MAX} more in -o json"
    return (*rows[:ROWS_MAX], (more, *[""] * (len(rows[0]) - 1)))


def _age(aged: Aged[T], now_ms: int) -> str:
    age_ms = aged.age_ms(now_ms)
    return "-" if age_ms is None else _old(age_ms)


def _old(age_ms: int) -> str:
    """An age that is worth to be shown; empty: of now."""
    return "" if age_ms <= FRESH_MS else shown_age(age_ms)
