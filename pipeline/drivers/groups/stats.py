"""The figures of a data partition's controller, for the metrics.

*Source*: docs/protocols/i-replicated-groups.md.
"""

from collections import Counter
from collections.abc import Collection
from heapq import nsmallest

from stilltide.pipeline.drivers.groups.controller import ControlledPartition, connections
from stilltide.pipeline.metrics.groups import GROUPS_MAX, ControllerStats


def shown_groups(groups: Collection[str]) -> list[str]:
    """Up to `GROUPS_MAX` groups whose figures are shown: the first ones by name."""
    return nsmallest(GROUPS_MAX, groups)


def controller_stats(partition: ControlledPartition, now_ms: int) -> ControllerStats:
    """The figures of one data partition and its groups."""
    builder, machine, groups = partition.builder, partition.machine, partition.groups
    shown, read_again = shown_groups(groups), partition.read_again
    lags = ((group, machine.lag(group, now_ms)) for group in shown)
    return ControllerStats(
        pending=int(builder.pending is not None),
        completed=builder.counts.completed,
        timed_out=builder.counts.timed_out,
        connected=connections(partition, now_ms),
        standings=Counter(map(machine.standing, groups)),
        lags={group: lag for group, lag in lags if lag is not None},
        read_again={group: read_again[group] for group in shown if group in read_again},
    )
