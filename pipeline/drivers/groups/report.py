"""Describes replicated groups to an operator: the position on each cluster, and the cause.

*Source*: docs/protocols I.
*Invariants*: the number of records to be read again is never too low: it counts every record that
the group is known to have read on any cluster, and that a member here would get.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from stilltide.connectors.errors import ActiveGroupError, RetriableError
from stilltide.connectors.ports.connector import GroupConnector, closing
from stilltide.connectors.ports.copying import COPY_TIMEOUT_S
from stilltide.pipeline.config.clusters import unknown_cluster
from stilltide.pipeline.core.groups.frontier import LogView, read_again
from stilltide.pipeline.core.groups.group import GroupSeen, Standing
from stilltide.pipeline.core.link_liveness import CONNECTED_MS
from stilltide.pipeline.core.offset_index import claims, intervals
from stilltide.pipeline.core.status.findings import shown_age
from stilltide.pipeline.drivers.groups.places import GroupPlace, GroupPlaces, ReadingProgress, Told
from stilltide.pipeline.errors import UnavailableError, UnknownGroupError
from stilltide.schemas.replication.origins import Claims
from stilltide.schemas.replication.signals import PositionSnapshots
from stilltide.schemas.retry import FAIL_OVER
from stilltide.schemas.values import ClusterName, EndOffset, Offset, TopicPartition


class Standpoint(NamedTuple):
    """A group on one data partition of one cluster.

    Attributes:
        cluster: name of the cluster.
        data: the data partition.
        seen: state of the group.
        standing: cause of the group's position.
        view: log of the data partition.
        updated: committed offset in the last update of this cluster; None: no update was written.
        snapshots: position snapshots of the data partition.
        links: for each other cluster, the offsets that its link to this cluster has not passed;
            None: the link has no bucket of the present topic.
        stopped: clusters of which a link, from or to them, does not run (I13).
        unasked: clusters whose links have copied to this one, and that were not asked, since they
            are away or were not named; with the age of the last sign of each that has come here, in
            ms; None: none has.
        open_at: where a link's open transaction keeps the controller from moving the group; None:
            nowhere.
        told_by: clusters whose updates of the group have arrived here.
        read_again: records that a `Subscription` reads again if it begins here now.
        read_again_foreign: most records that any other consumer reads again.
        has_workers: whether a worker runs on the cluster; None: not asked, or not known.
    """

    cluster: ClusterName
    data: TopicPartition
    seen: GroupSeen
    standing: Standing
    view: LogView
    updated: Offset | None
    snapshots: PositionSnapshots | None
    links: Mapping[ClusterName, int | None]
    stopped: Collection[ClusterName]
    unasked: Mapping[ClusterName, int | None]
    open_at: tuple[TopicPartition, EndOffset] | None
    told_by: Collection[ClusterName]
    read_again: int
    read_again_foreign: int
    has_workers: bool | None = None


async def describe_group(
    connectors: Mapping[ClusterName, GroupConnector],
    topic: str,
    group: str,
    *,
    timeout_s: float,
    report: Told = lambda _text: None,
) -> list[Standpoint]:
    """The group on each data partition of each cluster in `connectors`; as `describe_groups`."""
    by_group = await describe_groups(connectors, topic, [group], timeout_s=timeout_s, report=report)
    return by_group[group]


async def describe_groups(
    connectors: Mapping[ClusterName, GroupConnector],
    topic: str,
    groups: Collection[str],
    *,
    timeout_s: float,
    report: Told = lambda _text: None,
) -> dict[str, list[Standpoint]]:
    """Each of these groups on each data partition of each cluster in `connectors`.

    Signals, buckets and logs are read once for all groups. Reads the whole log above the newest
    snapshot's max read position; between a group's offset and that position, reads only the parts
    with records to count. `report` is called with the progress.

    Raises:
        FatalError: the topic, or a system topic, does not exist on a cluster.
        UnavailableError, RetriableError: a cluster is away.
        DecodeError: a signal, bucket or commit cannot be decoded.
    """
    progress = ReadingProgress(report)
    readers = [
        GroupPlaces(name, connector, connectors.keys() - {name}, timeout_s, progress)
        for name, connector in connectors.items()
    ]
    try:
        # Each place reads index, log and index again (see `GroupPlaces.read`), so that a copy that
        # becomes visible in between is counted twice rather than not at all.
        places = [place for reader in readers for place in await reader.read(topic, groups)]
        standpoints = {
            group: await _standpoints([it for it in places if it.group == group])
            for group in groups
        }
        every = [standpoint for of_group in standpoints.values() for standpoint in of_group]
        moving = {it.cluster for it in every if it.standing is Standing.MOVING}
        has_workers = {it.cluster: await it.has_workers() for it in readers if it.cluster in moving}
        return {
            group: [it._replace(has_workers=has_workers.get(it.cluster)) for it in of_group]
            for group, of_group in standpoints.items()
        }
    finally:
        for reader in readers:
            await reader.close()


def require_group(standpoints: Collection[Standpoint], topic: str, group: str) -> None:
    """Refuses a group that no cluster knows: a mistyped name would seem to have nothing to read.

    A cluster knows a group that has members, a committed offset on the topic, or an update in the
    signals.

    Raises:
        UnknownGroupError: no cluster knows the group.
    """
    if any(one.seen.active or one.seen.offset is not None or one.told_by for one in standpoints):
        return
    clusters = ", ".join(sorted({one.cluster for one in standpoints}))
    raise UnknownGroupError(
        f"no such group: {group}",
        detail=f"it has no members and has committed nothing of the topic on {clusters}",
        hint="check the name; a group comes to be when a consumer joins it or commits",
        topic=topic,
    )


async def _standpoints(places: Sequence[GroupPlace]) -> list[Standpoint]:
    """One group at all its places."""
    known: dict[TopicPartition, Claims] = {}
    for place in places:
        generations = [one.signals.generation for one in places if one.data == place.data]
        current = place.signals.generation == max(generations)
        claimed = place.signals.claimed if current else {}
        here = await place.read_here()
        known[place.data] = claims.join(known.get(place.data, {}), claimed, here)
    return [await _standpoint(place, places, known[place.data]) for place in places]


async def _standpoint(place: GroupPlace, places: Sequence[GroupPlace], known: Claims) -> Standpoint:
    skips = place.signals.for_member(place.committed, place.topic_id).claimed
    own = place.signals.updates.get(place.cluster)
    asked = {other.cluster for other in places}
    return Standpoint(
        place.cluster,
        place.data,
        place.seen,
        await place.standing(),
        place.view,
        own.offset if own else None,
        place.snapshots,
        {
            source.cluster: _not_passed(place, source)
            for source in places
            if source.data == place.data and source is not place
        },
        place.links.stopped,
        {name: age for name, age in place.links.heard_ms.items() if name not in asked},
        place.links.open_at,
        frozenset(place.signals.updates),
        await _read_again(place, places, claims.minus(known, skips)),
        await _read_again(place, places, known),
    )


def _not_passed(place: GroupPlace, source: GroupPlace) -> int | None:
    newest = place.copied[source.cluster]
    if newest is None or newest.source_incarnation != source.view.incarnation.topic:
        return None
    return max(0, source.view.decided_end - newest.source_to)


async def _read_again(place: GroupPlace, places: Sequence[GroupPlace], known: Claims) -> int:
    """Number of known records at or above the group's offset, or still to be copied here."""
    offset = place.seen.offset
    position = place.view.log_start if offset is None else offset
    count = await place.run(read_again(place.view, place.index_list, known, position))
    for source in places:
        if source.data != place.data or source is place:
            continue
        newest = place.copied[source.cluster]
        here = source.view.incarnation
        copied = 0
        if newest is not None and newest.source_incarnation == here.topic:
            copied = newest.source_to
        left = intervals.minus(known.get(here, ()), intervals.below(copied))
        if left:
            begin = Offset(max(copied, source.view.log_start))
            reading = read_again(source.view, source.index_list, {here: left}, begin)
            count += await source.run(reading)
    return count


_STEPS = {
    Standing.ACTIVE: "stop the members so that the group takes over what it has read elsewhere",
    Standing.RESET_BY_HAND: "let the group read on, or set it to its former offset",
    Standing.BEYOND_THE_END: "set the group to an offset of this log",
    Standing.BEYOND_WHAT_IS_DECIDED: "`stilltide txn slow` names the undecided transactions",
    Standing.PUBLISHED_LATELY: "check again in a moment",
}

LAG_MAX = 10_000
"""Offsets that a link may still have to copy without being mentioned."""


def reason(
    standpoint: Standpoint,
    *,
    disabled: Collection[ClusterName],
    away: Collection[ClusterName] = (),
) -> str:
    """The first cause that keeps the group from advancing on its cluster, and the next step.

    Args:
        standpoint: the group on a data partition of the cluster.
        disabled: clusters on which the group is not replicated.
        away: clusters that do not answer.
    """
    here, topic = standpoint.cluster, standpoint.data.topic
    if here in disabled:
        return f"the group is not replicated here; `stilltide group enable {topic} GROUP`"
    held_up = _link_reason(standpoint)
    if held_up is not None:
        return held_up
    unasked = _unasked(standpoint, away)
    step = _STEPS.get(standpoint.standing, "")
    if standpoint.standing is Standing.MOVING:
        step = _move_step(standpoint)
    elif standpoint.standing is Standing.ACTIVE and unasked:
        step = ""  # after a fail-over the members belong here
    if step or unasked:
        return "; ".join(filter(None, (standpoint.standing, step, unasked)))
    silent = sorted(standpoint.links.keys() - standpoint.told_by)
    if silent:
        return (
            f"{standpoint.standing}; no update of the group has come from {', '.join(silent)}:"
            " the group has read nothing there, or no worker runs there"
        )
    return f"{standpoint.standing}; the next record here was not read elsewhere"


def _move_step(standpoint: Standpoint) -> str:
    """What a move waits for, and what an operator does if it is still to come."""
    here, topic = standpoint.cluster, standpoint.data.topic
    if standpoint.has_workers is False:
        return f"no worker runs on {here}, which would move it: `stilltide worker --cluster {here}`"
    if standpoint.open_at is not None:
        data, offset = standpoint.open_at
        return (
            f"the worker on {here} waits for a link's open transaction at {data}@{offset}: the"
            f" link's next run ends it, else Kafka within {round(2 * COPY_TIMEOUT_S)} s"
        )
    return (
        f"a worker on {here} moves it within a second; if it stays,"
        f" `stilltide group sync-now {topic} GROUP --cluster {here}` asks the worker"
    )


def _unasked(standpoint: Standpoint, away: Collection[ClusterName]) -> str:
    """What is not known because other clusters were not asked; empty: all were."""
    signs: list[str] = []
    for cluster, age_ms in sorted(standpoint.unasked.items()):
        silence = "does not answer" if cluster in away else "was not asked"
        sign = "" if age_ms is None else f" (last sign of it {shown_age(age_ms)} ago)"
        signs.append(f"cluster {cluster} {silence}{sign}")
    if not signs:
        return ""
    unpublished = "what the group has read there and not published here is read again"
    return f"{', '.join(signs)}: {unpublished}"


def _link_reason(standpoint: Standpoint) -> str | None:
    """The first fault of a link of the cluster; None: the links run and keep up."""
    here = standpoint.cluster
    for source, left in sorted(standpoint.links.items()):
        if left is None:
            return (
                f"no link from {source} has copied the topic to this cluster yet;"
                f" run `stilltide replicate --from {source} --to {here}`, and a worker on each"
            )
        if source in standpoint.stopped:
            return (
                f"no sign for {CONNECTED_MS // 1000} s that the links from and to {source} run;"
                f" run `stilltide replicate --from {source} --to {here}`, and the one back"
            )
        if left > LAG_MAX:
            return f"the link from {source} has {left} offsets left to copy; see the link's log"
    return None


AWAY_S = 5.0
"""Time without an answer after which a cluster other than the target counts as away."""

_ARRIVED = (Standing.AT_THE_PREFIX, Standing.NOTHING_CLAIMED)


class FailOver(NamedTuple):
    """The result of a fail-over.

    Attributes:
        target: the group on each data partition of the target cluster.
        away: clusters that did not answer.
        complete: whether all known claims are carried over and no cluster is away.
    """

    target: Sequence[Standpoint]
    away: Sequence[ClusterName]
    complete: bool


async def fail_over(
    connectors: Mapping[ClusterName, GroupConnector],
    topic: str,
    group: str,
    target: ClusterName,
    *,
    dry_run: bool,
    timeout_s: float,
    report: Told = lambda _text: None,
) -> FailOver:
    """Checks the group repeatedly until no claim is left to carry over, at most for `timeout_s`.

    `report` is called with the progress of a long read.

    Raises:
        ConfigError: no cluster has the target's name.
        ActiveGroupError: the group has members on a cluster.
        UnknownGroupError: no cluster knows the group, and no cluster is away.
        FatalError, UnavailableError, DecodeError: see `describe_group`.
    """
    if target not in connectors:
        raise unknown_cluster(target, dict.fromkeys(map(str, connectors)))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    away = await away_clusters(connectors, besides=target)
    reached = {name: one for name, one in connectors.items() if name not in away}
    while True:
        standpoints = await describe_group(
            reached, topic, group, timeout_s=timeout_s, report=report
        )
        if not away:
            require_group(standpoints, topic, group)
        for standpoint in standpoints:
            if standpoint.seen.active:
                raise ActiveGroupError(
                    f"group {group} is to go on at {target},"
                    f" and has members on {standpoint.cluster}",
                    hint="stop them; what they read meanwhile would be read again",
                    topic=topic,
                )
        here = [one for one in standpoints if one.cluster == target]
        settled = all(one.read_again == 0 and one.standing in _ARRIVED for one in here)
        if settled or dry_run or loop.time() > deadline:
            return FailOver(here, away, settled and not away)
        await asyncio.sleep(FAIL_OVER.wait_s())


async def away_clusters(
    connectors: Mapping[ClusterName, GroupConnector], *, besides: ClusterName | None = None
) -> list[ClusterName]:
    """The clusters that do not answer, besides one that is not asked."""

    async def is_away(connector: GroupConnector) -> bool:
        async with closing(connector.admin()) as admin:
            try:
                async with asyncio.timeout(AWAY_S):
                    await admin.cluster_id()
            except (RetriableError, UnavailableError, TimeoutError):
                return True
        return False

    asked = [name for name in connectors if name != besides]
    answers = await asyncio.gather(*(is_away(connectors[name]) for name in asked))
    return [name for name, away in zip(asked, answers, strict=True) if away]
