"""The page of groups: replicated ones by cluster, all groups of a cluster, one group."""

from collections.abc import Iterable, Mapping, Sequence

from stilltide.pipeline.console.ids import GROUPS, group_cell, partition_cell, topic_cell
from stilltide.pipeline.console.pages.topic import chosen_cluster
from stilltide.pipeline.console.views import (
    ANY,
    NOTHING,
    UNKNOWN,
    Cell,
    Choice,
    PageSection,
    PageView,
    Query,
    age_text,
    chosen_of,
    cluster_choice,
    columns,
    in_words,
    number,
    number_in,
    pages_of,
    read_age,
    table,
)
from stilltide.pipeline.core.groups.group import Standing
from stilltide.pipeline.core.status.asks import (
    Ask,
    DescribedGroup,
    GroupAsk,
    GroupsAsk,
    LagAsk,
    ListedGroup,
    ListedGroups,
    ReadPlace,
    VisibleLag,
)
from stilltide.pipeline.core.status.values import (
    STANDING_WORDS,
    Aged,
    ClusterSeen,
    GroupPartition,
    GroupStatus,
    SystemStatus,
)

_GOOD = frozenset({Standing.AT_THE_PREFIX, Standing.ACTIVE, Standing.PUBLISHED_LATELY})
LAGS_MAX = 30
"""Groups, each on one cluster, whose lag is counted while a page shows it."""

NAME = GROUPS
PARAMS = ("text", "cluster", "group", "first")

OWN = "stilltide."
"""Begins the names of groups of Stilltide's own processes."""

_TOPICS_SHOWN = 3
_STATE_KINDS = {"Stable": "good", "Empty": "idle", "Dead": "bad"}
_STATE_NOTES = {"Empty": "no member", "Dead": "not there"}
_GROUPS = columns("group", "state", "members#", "lag in offsets#", "topics", "replicated")
_MEMBERS = columns("client", "address", "partitions#")
_PLACES = columns("partition", "committed#", "end#", "lag in offsets#", "client")
_REPLICATED = columns(
    "group",
    "topic",
    "cluster",
    "positions#",
    "farthest behind#",
    "visible records#",
    "counted#",
)
_PARTITIONS = columns(
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


def groups_asks(status: SystemStatus, query: Query) -> tuple[Ask, ...]:
    """What was chosen, and the lag of replicated groups; nothing of clusters that are away."""
    if query.get("group"):
        cluster = chosen_cluster(status, query)
        if cluster is None or cluster.away:
            return ()
        return GroupAsk(cluster.name, query["group"]), *_lag_asks(status, query)
    first = number_in(query, "first") or 0
    listings = (
        GroupsAsk(cluster.name, query.get("text", ""), first)
        for cluster in chosen_of(status, query)
        if not cluster.away
    )
    return *listings, *_lag_asks(status, query)


def _lag_asks(status: SystemStatus, query: Query) -> list[LagAsk]:
    away = {cluster.name for cluster in status.clusters if cluster.away}
    return [
        LagAsk(group.cluster, group.topic, group.group)
        for group in _replicated(status, query)
        if group.cluster not in away
    ][:LAGS_MAX]


def _replicated(status: SystemStatus, query: Query) -> list[GroupStatus]:
    """The replicated groups that pass the choice, each on each cluster."""
    name, text = query.get("group"), query.get("text", "")
    return [
        group
        for group in status.groups.value or ()
        if (group.group == name if name else text in group.group)
    ]


def groups(view: PageView) -> tuple[PageSection, ...]:
    """Replicated groups and all groups of each cluster; or one group, with its positions."""
    status, query = view.status, view.query
    statuses = _replicated(status, query)
    sections = [_choice(status, query)]
    if query.get("group"):
        cluster = chosen_cluster(status, query)
        if cluster is not None:
            sections += _one_group(view, cluster, query["group"])
        if statuses:
            sections += [
                _by_cluster(status, statuses),
                _summary(view, statuses),
                _position_table(view, statuses),
            ]
        return tuple(sections)
    sections.append(_by_cluster(status, statuses))
    if statuses:
        sections.append(_summary(view, statuses))
    sections += [_listing(view, cluster) for cluster in chosen_of(status, query)]
    return tuple(sections)


def _choice(status: SystemStatus, query: Query) -> PageSection:
    is_chosen = any(query.get(name, ANY) != ANY for name in PARAMS)
    return PageSection(
        "Which groups",
        path=NAME,
        choices=(
            Choice("text", "Part of the name", query.get("text", "")),
            cluster_choice(status, query),
        ),
        links=(Cell("all groups", href=NAME),) if is_chosen else (),
    )


def _by_cluster(status: SystemStatus, statuses: Sequence[GroupStatus]) -> PageSection:
    names = [cluster.name for cluster in status.clusters]
    if status.groups.value is None and not status.groups.problem:
        empty = ""
    elif status.groups.value:
        empty = "No replicated group has a name like this."
    else:
        empty = "No group is replicated: `stilltide group enable TOPIC GROUP` begins."
    return PageSection(
        "Replicated groups by cluster",
        note="What a fail-over to the cluster reads again now: by a Subscription, and by any"
        " other consumer.",
        age=age_text(status.groups, status.now_ms),
        problem=status.groups.problem,
        hint=status.groups.hint,
        empty=empty,
        tables=table(
            "Replicated groups by cluster",
            columns("group", "topic", *names),
            _matrix(statuses, names),
        ),
    )


def _summary(view: PageView, statuses: Sequence[GroupStatus]) -> PageSection:
    """A row for each replicated group, topic and cluster."""
    status = view.status
    lags = {ask: aged for ask, aged in view.answers.items() if isinstance(ask, LagAsk)}
    return PageSection(
        "Lag of replicated groups",
        note="Farthest behind: the most offsets from a position to where readers of committed data"
        " come; the page of the group has all positions. Visible records: those that the group has"
        " not read on the cluster, counted at most twice a minute, and only while this page is"
        " open.",
        age=age_text(status.groups, status.now_ms),
        tables=table(
            "Lag of replicated groups",
            _REPLICATED,
            [_summed(group, lags, status.now_ms) for group in statuses],
            elsewhere="type a part of the name",
        ),
    )


def _summed(
    group: GroupStatus, lags: Mapping[LagAsk, Aged[VisibleLag]], now_ms: int
) -> tuple[Cell, ...]:
    none = Cell(NOTHING, "num")
    lag = lags.get(LagAsk(group.cluster, group.topic, group.group))
    behind = [_behind(it) for it in group.partitions if it.offset is not None]
    return (
        group_cell(group.cluster, group.group),
        topic_cell(group.cluster, group.topic),
        Cell(group.cluster),
        number(len(behind)),
        number(max(behind)) if behind else none,
        *((none, none) if lag is None else _lag(lag, now_ms)),
    )


def _behind(partition: GroupPartition) -> int:
    """Offsets from the position to where readers of committed data come."""
    return max(0, partition.decided_end - (partition.offset or 0))


def _position_table(view: PageView, statuses: Sequence[GroupStatus]) -> PageSection:
    return PageSection(
        "Positions of the group",
        note="Position: the committed offset. Readers of committed data come to the offset in the"
        " next column.",
        empty="No partition could be read.",
        tables=table(
            "Positions of the group", _PARTITIONS, _positions(statuses, view.status.now_ms)
        ),
    )


def _listing(view: PageView, cluster: ClusterSeen) -> PageSection:
    """All groups of a cluster, those of Stilltide itself last."""
    query = view.query
    first = number_in(query, "first") or 0
    ask = GroupsAsk(cluster.name, query.get("text", ""), first)
    aged: Aged[ListedGroups] = view.answers.get(ask, Aged())
    listed = aged.value.groups if aged.value else ()
    total = aged.value.total if aged.value else 0
    replicated: dict[str, set[str]] = {}
    for status in view.status.groups.value or ():
        if status.cluster == cluster.name:
            replicated.setdefault(status.group, set()).add(status.topic)
    ordered = sorted(listed, key=lambda group: group.name.startswith(OWN))
    problems = "".join(
        f" Not known: {text}." for text in (aged.value.problems if aged.value else ())
    )
    return PageSection(
        f"Groups on {cluster.name}",
        note="All consumer groups. Lag in offsets counts markers and aborted records, too. A dash:"
        f" the group has committed nothing.{problems}",
        age=age_text(aged, view.status.now_ms),
        problem=aged.problem or cluster.brokers.problem,
        hint=aged.hint or cluster.brokers.hint,
        empty="" if aged.value is None else "No group has a name like this.",
        tables=table(
            f"Groups on {cluster.name}",
            _GROUPS,
            [_group(group, cluster, replicated.get(group.name, set())) for group in ordered],
            max(0, total - first),
            "type a part of the name, or go on to later names",
        ),
        links=pages_of(
            NAME, first, len(listed), total, cluster=cluster.name, text=query.get("text")
        ),
    )


def _group(group: ListedGroup, cluster: ClusterSeen, replicated: set[str]) -> tuple[Cell, ...]:
    more = len(group.topics) - _TOPICS_SHOWN
    lag = number(group.lag) if group.lag is not None or group.topics else Cell(NOTHING, "num")
    return (
        group_cell(
            cluster.name,
            group.name,
            note="of Stilltide itself" if group.name.startswith(OWN) else "",
        ),
        _state(group),
        number(group.members),
        lag,
        Cell(
            "" if group.topics else NOTHING,
            note=f"and {more:,} more" if more > 0 else "",
            parts=tuple(topic_cell(cluster.name, it) for it in group.topics[:_TOPICS_SHOWN]),
        ),
        Cell(
            "" if replicated else "no",
            "soft",
            parts=tuple(topic_cell(cluster.name, topic) for topic in sorted(replicated)),
        ),
    )


def _state(group: ListedGroup) -> Cell:
    return Cell(
        in_words(group.state),
        _STATE_KINDS.get(group.state, "warn"),
        _STATE_NOTES.get(group.state, ""),
    )


def _one_group(view: PageView, cluster: ClusterSeen, name: str) -> list[PageSection]:
    """Who is in a group, and where it stands."""
    aged: Aged[DescribedGroup] = view.answers.get(GroupAsk(cluster.name, name), Aged())
    age, group = age_text(aged, view.status.now_ms), aged.value
    replicated = {
        status.topic
        for status in view.status.groups.value or ()
        if (status.cluster, status.group) == (cluster.name, name)
    }
    rows = [] if group is None else [_group(group.group, cluster, replicated)]
    sections = [
        PageSection(
            f"Group {name} on {cluster.name}",
            age=age,
            problem=aged.problem or cluster.brokers.problem,
            hint=aged.hint or cluster.brokers.hint,
            tables=table(f"Group {name}", _GROUPS, rows),
        )
    ]
    if group is None:
        return sections
    members = [
        (Cell(member.client, "id"), Cell(member.host, "code"), number(member.partitions))
        for member in group.members
    ]
    places = [_place(place, cluster) for place in group.places]
    return [
        *sections,
        PageSection(
            f"Members of {name}",
            age=age,
            empty="No member: nobody reads, or consumers choose their partitions themselves.",
            tables=table(f"Members of {name}", _MEMBERS, members, group.group.members),
        ),
        PageSection(
            f"Partitions of {name}",
            age=age,
            empty="The group has committed nothing, and no member has a partition.",
            tables=table(f"Partitions of {name}", _PLACES, places, group.place_total),
        ),
    ]


def _place(place: ReadPlace, cluster: ClusterSeen) -> tuple[Cell, ...]:
    data = place.data
    none = Cell(NOTHING, "num")
    lag = None
    if place.committed is not None and place.end is not None:
        lag = max(0, place.end - place.committed)
    return (
        partition_cell(cluster.name, data),
        none if place.committed is None else number(place.committed),
        number(place.end),
        none if place.committed is None else number(lag),
        Cell(place.client or NOTHING, "id" if place.client else "soft"),
    )


def _lag(aged: Aged[VisibleLag], now_ms: int) -> tuple[Cell, Cell]:
    lag = aged.value
    text = UNKNOWN if lag is None else f"{'at least ' * lag.at_least}{lag.visible:,}"
    return Cell(text, "num", note=aged.problem), read_age(aged.read_ms, now_ms)


def _matrix(statuses: Iterable[GroupStatus], names: Sequence[str]) -> list[tuple[Cell, ...]]:
    by_name: dict[tuple[str, str], dict[str, GroupStatus]] = {}
    for status in statuses:
        by_name.setdefault((status.group, status.topic), {})[status.cluster] = status
    return [
        (
            group_cell(next(iter(there.values())).cluster, group),
            topic_cell(next(iter(there.values())).cluster, topic),
            *(_crossing(there.get(name)) for name in names),
        )
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
        topic_cell(group.cluster, group.topic),
        Cell(group.cluster),
        number(partition.partition),
        Cell("none", "num") if partition.offset is None else number(partition.offset),
        number(partition.decided_end),
        number(partition.read_again),
        number(partition.read_again_others),
        Cell(STANDING_WORDS[partition.standing], kind, note=why),
        read_age(group.read_ms, now_ms),
    )
