"""Claims: the records that a group has read, on any cluster.

*Source*: docs/protocols H5, I6, I9. *Invariants*: an incarnation without intervals is left out, so
that equal claims are equal values; limiting claims only removes records, never adds any.
"""

from collections.abc import Mapping

from stilltide.pipeline.core.offset_index import intervals
from stilltide.schemas.replication.origins import Claims, Incarnation, Origin
from stilltide.schemas.values import Range, Ranges

INTERVALS_MAX = 16
"""Most intervals of one incarnation in claims that are written to a topic."""

NO_CLAIMS: Claims = {}


def join(*claims: Claims) -> dict[Incarnation, Ranges]:
    """The records that any of the claims contains."""
    return {
        incarnation: intervals.union(*(each.get(incarnation, ()) for each in claims))
        for incarnation in dict.fromkeys(incarnation for each in claims for incarnation in each)
    }


def minus(claims: Claims, taken: Claims) -> dict[Incarnation, Ranges]:
    """The records in `claims` that are not in `taken`."""
    left = {
        incarnation: intervals.minus(ranges, taken.get(incarnation, ()))
        for incarnation, ranges in claims.items()
    }
    return {incarnation: ranges for incarnation, ranges in left.items() if ranges}


def within(claims: Claims, others: Claims) -> bool:
    """Whether `others` contain every record of `claims`."""
    return not minus(claims, others)


def holds(claims: Claims, origin: Origin) -> bool:
    """Whether the record is claimed; a dict look-up and a bisection."""
    return intervals.holds(claims.get(origin.incarnation, ()), origin.offset)


def limited(claims: Claims) -> Mapping[Incarnation, Ranges]:
    """The lowest `INTERVALS_MAX` intervals of each incarnation: a smaller claim is always safe."""
    return {incarnation: ranges[:INTERVALS_MAX] for incarnation, ranges in claims.items()}


def widened(taken: Claims) -> Mapping[Incarnation, Ranges]:
    """Records that must not be claimed (H5, I9), with gaps between the lowest intervals closed.

    At most `INTERVALS_MAX` intervals of each incarnation are left. Unlike in `limited`, more
    records are always safe here.
    """
    closed_ranges: dict[Incarnation, Ranges] = {}
    for incarnation, ranges in taken.items():
        closed = max(0, len(ranges) - INTERVALS_MAX)
        first = Range(ranges[0].first, ranges[closed].end)
        closed_ranges[incarnation] = (first, *ranges[closed + 1 :])
    return closed_ranges
