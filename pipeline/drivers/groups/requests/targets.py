"""The offsets that a reset names: an edge of the log, a time, or an offset.

*Source*: docs/protocols I10, I14; docs/failures.md.
"""

from collections.abc import Sequence
from typing import NamedTuple

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.pipeline.drivers.groups.outside import log_ranges
from stilltide.schemas.replication.requests import AtOffset, AtTime, Edge, ResetTarget
from stilltide.schemas.values import Offset, Range, TopicPartition


class NamedOffset(NamedTuple):
    """What a target means in one log.

    Attributes:
        log: what the log holds.
        offset: the offset; None: the log has no such offset.
    """

    log: Range
    offset: Offset | None


async def named_offsets(
    admin: LogAdmin, partitions: Sequence[TopicPartition], target: ResetTarget
) -> dict[TopicPartition, NamedOffset]:
    """What a target means in each of these logs; a partition that does not exist is left out.

    Raises:
        RetriableError: the cluster is away.
    """
    ranges = await log_ranges(admin, list(partitions))
    since = {}
    if isinstance(target, AtTime):
        since = await admin.start_offsets(list(ranges), since_ms=target.at_ms)
    found: dict[TopicPartition, NamedOffset] = {}
    for data, log in ranges.items():
        match target:
            case Edge.EARLIEST:
                offset = log.first
            case Edge.LATEST:
                offset = Offset(log.end)
            case AtOffset(wanted):
                offset = wanted if log.first <= wanted <= log.end else None
            case AtTime():
                offset = since.get(data)
        found[data] = NamedOffset(log, offset)
    return found
