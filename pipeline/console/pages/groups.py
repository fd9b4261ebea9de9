"""The page of replicated groups: a matrix of group by cluster, then every partition."""

from collections.abc import Iterable, Sequence

from stilltide.pipeline.console.views import (
    UNKNOWN,
    Cell,
    PageSection,
    age_text,
    columns,
    number,
    read_age,
    table,
)
from stilltide.pipeline.core.groups.group import Standing
from stilltide.pipeline.core.status.state import SystemStatus
from stilltide.pipeline.core.status.values import GroupPartition, GroupStatus
from stilltide.pipeline.core.status.words import STANDING_WORDS

_GOOD = frozenset({Standing.AT_THE_PREFIX, Standing.ACTIVE, Standing.PUBLISHED_LATELY})
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


def groups(status: SystemStatus) -> tuple[PageSection, ...]:
    """The matrix, then the partitions."""
    found, now_ms = status.groups.value or (), status.now_ms
    names = [cluster.name for cluster in status.clusters]
    heads = columns("group", "topic", *names)
    if status.groups.value is None and not status.groups.problem:
        empty = ""
    else:
        empty = "No group is replicated: `stilltide group enable TOPIC GROUP` begins."
    return (
        PageSection(
            "Groups by cluster",
            note="What a fail-over to the cluster reads again now: by a Subscription, and by any"
            " other consumer.",
            age=age_text(status.groups, now_ms),
            problem=status.groups.problem,
            hint=status.groups.hint,
            empty=empty,
            tables=table("Groups by cluster", heads, _matrix(found, names)),
        ),
        PageSection(
            "Positions",
            note="Position: the committed offset. Readers of committed data come to the offset in"
            " the next column.",
            empty=empty,
            tables=table("Positions of groups", _PARTITIONS, _positions(found, now_ms)),
        ),
    )


def _matrix(found: Iterable[GroupStatus], names: Sequence[str]) -> list[tuple[Cell, ...]]:
    by_name: dict[tuple[str, str], dict[str, GroupStatus]] = {}
    for one in found:
        by_name.setdefault((one.group, one.topic), {})[one.cluster] = one
    return [
        (Cell(group), Cell(topic), *(_crossing(there.get(name)) for name in names))
        for (group, topic), there in by_name.items()
    ]


def _crossing(one: GroupStatus | None) -> Cell:
    if one is None:
        return Cell("-", "soft")
    if one.read_ms is None:
        return Cell(UNKNOWN, "idle", note=one.problem)
    standings = sorted({STANDING_WORDS[it.standing] for it in one.partitions})
    kind = "bad" if any(it.urgent for it in one.partitions) else "idle"
    if kind == "idle" and all(it.standing in _GOOD for it in one.partitions):
        kind = "good"
    text = "reads here" if one.active else ", ".join(standings)
    again = f"reads again {one.read_again:,}, others {one.read_again_others:,}"
    return Cell(text, kind, note=f"{again}; {one.problem}" if one.problem else again)


def _positions(found: Iterable[GroupStatus], now_ms: int) -> list[tuple[Cell, ...]]:
    return [_position(group, one, now_ms) for group in found for one in group.partitions]


def _position(group: GroupStatus, one: GroupPartition, now_ms: int) -> tuple[Cell, ...]:
    kind = "good" if one.standing in _GOOD else "bad" if one.urgent else "warn"
    why = one.why if one.standing not in _GOOD or one.urgent else ""
    return (
        Cell(group.group),
        Cell(group.topic),
        Cell(group.cluster),
        number(one.partition),
        Cell("none", "num") if one.offset is None else number(one.offset),
        number(one.decided_end),
        number(one.read_again),
        number(one.read_again_others),
        Cell(STANDING_WORDS[one.standing], kind, note=why),
        read_age(group.read_ms, now_ms),
    )
