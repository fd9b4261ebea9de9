"""Finds the groups of a cluster whose commits lie outside of their logs.

*Source*: docs/failures.md. *Invariants*: what is read is bounded; system topics are left out, since
their readers do not go by commits of groups.
"""

from collections.abc import Mapping

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import GroupAdmin
from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.core.outside_log import OutsideLog, outside_log
from stilltide.schemas.topics import is_system_topic
from stilltide.schemas.values import Range, TopicPartition

GROUPS_MAX = 1000
"""Groups of a cluster whose commits are compared with the logs: the first ones by name."""


async def log_ranges(
    admin: LogAdmin, partitions: list[TopicPartition]
) -> dict[TopicPartition, Range]:
    """What each of these logs holds; a partition that does not exist is left out.

    Raises:
        RetriableError: the cluster is away.
    """
    if not partitions:
        return {}
    starts = await admin.start_offsets(partitions)
    ends = await admin.end_offsets(partitions)  # after the starts: never below them
    return {data: Range(starts[data], ends[data]) for data in starts if data in ends}


async def outside_logs(
    admin: LogAdmin, commits: Mapping[str, Mapping[TopicPartition, Committed]]
) -> list[OutsideLog]:
    """The commits of these groups that lie outside of their logs; raises as `log_ranges`."""
    wanted = {data for held in commits.values() for data in held}
    ranges = await log_ranges(admin, sorted(it for it in wanted if not is_system_topic(it.topic)))
    positions = [
        outside_log(data, group, commit_of[data].offset, *ranges[data])
        for group, commit_of in sorted(commits.items())
        for data in sorted(commit_of.keys() & ranges.keys())
    ]
    return [one for one in positions if one is not None]


async def groups_outside(groups: GroupAdmin, admin: LogAdmin) -> tuple[OutsideLog, ...]:
    """The commits of any group of the cluster that lie outside of their logs.

    Raises:
        ConnectorError: the cluster is away, or forbids the question.
    """
    listed = sorted(await groups.listed())[:GROUPS_MAX]
    return tuple(await outside_logs(admin, await groups.commits_of(listed)))
