"""Lists the consumer groups of a cluster, replicated or not: state, members, lag in offsets.

*Source*: docs/console.md. *Invariants*: no group is joined; what is asked for is bounded.
"""

from collections.abc import Iterable, Mapping

from stilltide.connectors.errors import NotAuthorizedError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import GroupAdmin, GroupDescription
from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.core.status.asks import (
    GROUPS_MAX,
    MEMBERS_MAX,
    PLACES_MAX,
    DescribedGroup,
    GroupAsk,
    GroupsAsk,
    ListedGroup,
    ListedGroups,
    MemberSeen,
    ReadPlace,
)
from stilltide.schemas.values import EndOffset, TopicPartition

GROUPS_REST_S = 5.0

ENDS_MAX = 5000
"""Partitions whose ends are asked for with a list of groups; of further groups no lag is known."""


async def consumer_groups(groups: GroupAdmin, admin: LogAdmin, ask: GroupsAsk) -> ListedGroups:
    """The groups that the user may describe.

    Raises:
        ConnectorError: the cluster is away, or forbids the question.
    """
    names = sorted(name for name in await groups.listed() if ask.text in name)
    shown = names[ask.first : ask.first + GROUPS_MAX]
    described = await groups.described(shown)
    commits = await groups.commits_of(shown)
    wanted: set[TopicPartition] = set()
    for name in shown:
        if len(wanted) + len(commits[name]) <= ENDS_MAX:
            wanted |= commits[name].keys()
    problems: list[str] = []
    ends: Mapping[TopicPartition, EndOffset] = {}
    try:
        ends = await admin.end_offsets(sorted(wanted)) if wanted else {}
    except NotAuthorizedError as error:
        problems.append(error.primary)
    return ListedGroups(
        tuple(_listed(name, described[name], commits[name], ends) for name in shown),
        len(names),
        tuple(problems),
    )


async def consumer_group(groups: GroupAdmin, admin: LogAdmin, ask: GroupAsk) -> DescribedGroup:
    """A group with members and positions; one that is not there has the state `Dead`.

    Raises:
        ConnectorError: the cluster is away, or forbids the question.
    """
    described = (await groups.described([ask.group]))[ask.group]
    commits = (await groups.commits_of([ask.group]))[ask.group]
    client_of = {
        data: member.client_id for member in described.members for data in member.partitions
    }
    places = sorted(commits.keys() | client_of.keys())
    ends = await admin.end_offsets(places[:ENDS_MAX]) if places else {}
    return DescribedGroup(
        _listed(ask.group, described, commits, ends),
        tuple(
            MemberSeen(member.client_id, member.host, len(member.partitions))
            for member in described.members[:MEMBERS_MAX]
        ),
        tuple(
            ReadPlace(
                data,
                commits[data].offset if data in commits else None,
                ends.get(data),
                client_of.get(data, ""),
            )
            for data in places[:PLACES_MAX]
        ),
        len(places),
    )


def _listed(
    name: str,
    described: GroupDescription,
    commits: Mapping[TopicPartition, Committed],
    ends: Mapping[TopicPartition, EndOffset],
) -> ListedGroup:
    return ListedGroup(
        name,
        described.state,
        len(described.members),
        tuple(sorted({data.topic for data in commits})),
        _lag(commits, ends) if commits else None,
    )


def _lag(
    commits: Mapping[TopicPartition, Committed], ends: Mapping[TopicPartition, EndOffset]
) -> int | None:
    """Offsets that are not read; None: the end of a partition is not known."""
    lags: Iterable[int] = (
        max(0, ends[data] - commit.offset) for data, commit in commits.items() if data in ends
    )
    return sum(lags) if commits.keys() <= ends.keys() else None
