"""The page of replicated groups: a matrix of group by cluster, lag, then every partition."""

from collections.abc import Iterable, Sequence

from stilltide.pipeline.console.views import (
    UNKNOWN,
    Cell,
    PageSection,
    PageView,
    age_text,
    columns,
    number,
    read_age,
    table,
)
from stilltide.pipeline.core.groups.group import Standing
from stilltide.pipeline.core.status.asks import LagAsk, VisibleLag
from stilltide.pipeline.core.status.values import (
    STANDING_WORDS,
    Aged,
    GroupPartition,
    GroupStatus,
    SystemStatus,
)

_GOOD = frozenset({Standing.AT_THE_PREFIX, Standing.ACTIVE, Standing.PUBLISHED_LATELY})
LAGS_MAX = 30
"""Groups, each on one cluster, whose lag is counted while a page shows it."""

_LAG = columns("group", "topic", "cluster", "visible records#", "counted#")
_PARTITIONS = columns(
    "group",
    "topic",
    "cluster",
    "partition#",
    "position#",
    "readers come to#",
    "reads again#",
    "others#",
    "standing",
    "read#",
)


def groups_asks(status: SystemStatus, _query: object) -> tuple[LagAsk, ...]:
    """The lag of the first groups on each cluster; nothing of clusters that are away."""
    away = {cluster.name for cluster in status.clusters if cluster.away}
    asks = [
        LagAsk(group.cluster, group.topic, group.group)
        for group in status.groups.value or ()
        if group.cluster not in away
    ]
    return tuple(asks[:LAGS_MAX])


def groups(view: PageView) -> tuple[PageSection, ...]:
    """The matrix, then lag, then the partitions."""
    status = view.status
    statuses, now_ms = status.groups.value or (), status.now_ms
    names = [cluster.name for cluster in status.clusters]
    heads = columns("group", "topic", *names)
    if status.groups.value is None and not status.groups.problem:
        empty = ""
    else:
        empty = "No group is replicated: `stilltide group enable TOPIC GROUP` begins."
    by_cluster = PageSection(
        "Groups by cluster",
        note="What a fail-over to the cluster reads again now: by a Subscription, and by any"
        " other consumer.",
        age=age_text(status.groups, now_ms),
        problem=status.groups.problem,
        hint=status.groups.hint,
        empty=empty,
        tables=table("Groups by cluster", heads, _matrix(statuses, names)),
    )
    if not statuses:
        return (by_cluster,)
    return (
        by_cluster,
        PageSection(
            "Lag",
            note="Visible records that the group has not read on the cluster; counted at most twice"
            " a minute, and only while this page is open.",
            tables=table("Lag of groups", _LAG, _lags(view), len(statuses)),
        ),
        PageSection(
            "Positions",
            note="Position: the committed offset. Readers of committed data come to the offset in"
            " the next column.",
            empty="No partition could be read.",
            tables=table("Positions of groups", _PARTITIONS, _positions(statuses, now_ms)),
        ),
    )


def _lags(view: PageView) -> list[tuple[Cell, ...]]:
    return [
        (Cell(ask.group), Cell(ask.topic), Cell(ask.cluster), *_lag(aged, view.status.now_ms))
        for ask, aged in view.answers.items()
        if isinstance(ask, LagAsk)
    ]


def _lag(aged: Aged[VisibleLag], now_ms: int) -> tuple[Cell, Cell]:
    lag = aged.value
    text = UNKNOWN if lag is None else f"{'at least ' * lag.at_least}{lag.visible:,}"
    return Cell(text, "num", note=aged.problem), read_age(aged.read_ms, now_ms)


def _matrix(statuses: Iterable[GroupStatus], names: Sequence[str]) -> list[tuple[Cell, ...]]:
    by_name: dict[tuple[str, str], dict[str, GroupStatus]] = {}
    for status in statuses:
        by_name.setdefault((status.group, status.topic), {})[status.cluster] = status
    return [
        (Cell(group), Cell(topic), *(_crossing(there.get(name)) for name in names))
        for (group, topic), there in by_name.items()
    ]


def _crossing(status: GroupStatus | None) -> Cell:
    if status is None:
        return Cell("-", "soft")
    if status.read_ms is None:
        return Cell(UNKNOWN, "idle", note=status.problem)
    standings = sorted({STANDING_WORDS[partition.standing] for partition in status.partitions})
    kind = "bad" if any(partition.urgent for partition in status.partitions) else "idle"
    if kind == "idle" and all(partition.standing in _GOOD for partition in status.partitions):
        kind = "good"
    text = "reads here" if status.active else ", ".join(standings)
    again = f"reads again {status.read_again:,}, others {status.read_again_others:,}"
    return Cell(text, kind, note=f"{again}; {status.problem}" if status.problem else again)


def _positions(statuses: Iterable[GroupStatus], now_ms: int) -> list[tuple[Cell, ...]]:
    return [_position(group, one, now_ms) for group in statuses for one in group.partitions]


def _position(group: GroupStatus, partition: GroupPartition, now_ms: int) -> tuple[Cell, ...]:
    kind = "good" if partition.standing in _GOOD else "bad" if partition.urgent else "warn"
    why = partition.why if partition.standing not in _GOOD or partition.urgent else ""
    return (
        Cell(group.group),
        Cell(group.topic),
        Cell(group.cluster),
        number(partition.partition),
        Cell("none", "num") if partition.offset is None else number(partition.offset),
        number(partition.decided_end),
        number(partition.read_again),
        number(partition.read_again_others),
        Cell(STANDING_WORDS[partition.standing], kind, note=why),
        read_age(group.read_ms, now_ms),
    )
