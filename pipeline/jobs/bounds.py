"""The part of each log that a job reads: offsets, or moments that are resolved to offsets once.

*Source*: Spark resolves "latest" at each evaluation again, so every bound becomes an offset first.

*Invariants*: no end is above the last stable offset that was read with it.

Refuses: offsets outside the log, bounds of partitions that are not read.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import cast

from stilltide.connectors.errors import OffsetOutOfRangeError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.pipeline.errors import ConfigError
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

Bounds = Mapping[TopicPartition | None, int]
"""Offsets by partition; the offset under None is for every other partition."""

Bound = int | datetime | Mapping[TopicPartition, int]
"""An offset of every partition, offsets of some of them, or a moment with its time zone."""


def extent(reads: Sequence[OffsetRange]) -> str:
    """How much there is to read, as text."""
    return f"{sum(read.end - read.start for read in reads)} offsets of {len(reads)} partitions"


def narrowed(logs: Sequence[OffsetRange], first: Bounds, until: Bounds) -> tuple[OffsetRange, ...]:
    """The parts of the logs between the bounds; a log without a bound is read to its end.

    Args:
        logs: `[log start, last stable offset)` of each partition.
        first: offsets to begin at.
        until: offsets to end at, exclusive.

    Raises:
        ConfigError: a bound names a partition that is not read, or a range ends before it begins.
        OffsetOutOfRangeError: a bound is outside the log.
    """
    known = {log.data for log in logs}
    for bounds, what in ((first, "begin"), (until, "end")):
        for data in bounds:
            if data is not None and data not in known:
                raise ConfigError(
                    f"{data} is not read, and cannot {what} anywhere",
                    hint="name a partition of the topics that are read",
                )
    return tuple(_narrowed(log, first, until) for log in logs)


async def resolved(
    admin: LogAdmin, logs: Sequence[OffsetRange], bound: Bound | None, *, by_time: bool
) -> Bounds:
    """The offsets of a bound.

    Args:
        admin: of the cluster.
        logs: `[log start, last stable offset)` of each partition.
        bound: the bound, None for none.
        by_time: whether numbers are milliseconds since 1970 instead of offsets; a `datetime` is a
            moment in any case. The offset of a moment is that of the first record whose timestamp
            is not below it, at most the last stable offset.

    Raises:
        ConfigError: a moment has no time zone, or is by partition.
        RetriableError: the broker is away.
    """
    if bound is None:
        return {}
    if isinstance(bound, datetime):
        if bound.tzinfo is None:
            raise ConfigError(
                f"the moment {bound} has no time zone",
                hint="datetime(2026, 11, 26, tzinfo=UTC), for example",
            )
        bound, by_time = int(bound.timestamp() * 1000), True
    if isinstance(bound, Mapping):
        if by_time:
            raise ConfigError(
                "a moment is one for all partitions", hint="give offsets, or a moment"
            )
        return cast("Bounds", bound)
    if not by_time:
        return {None: bound}
    starts = await admin.start_offsets([log.data for log in logs], since_ms=bound)
    return {log.data: min(max(starts.get(log.data, log.end), log.start), log.end) for log in logs}


def _narrowed(log: OffsetRange, first: Bounds, until: Bounds) -> OffsetRange:
    start = first.get(log.data, first.get(None, log.start))
    end = until.get(log.data, until.get(None, log.end))
    for bound in (start, end):
        if not log.start <= bound <= log.end:
            raise OffsetOutOfRangeError(
                "the log does not hold this offset",
                detail=f"the log holds [{log.start}, {log.end}), up to the last stable offset",
                hint="bounds are offsets; name a partition's own as TOPIC/PARTITION=OFFSET",
                data=log.data,
                offset=bound,
            )
    if start > end:
        raise ConfigError(
            f"{log.data} would be read from {start} to {end}", hint="begin before the end"
        )
    return OffsetRange(log.data, Offset(start), EndOffset(end))
