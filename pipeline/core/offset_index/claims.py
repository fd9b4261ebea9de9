"""Claims: which records a group has read, whichever cluster it read them on.

*Source*: docs/protocols I. *Invariants*: an incarnation without intervals is left out, so that equal
claims are equal values; what is limited says less, never more.
"""

from collections.abc import Mapping

from stilltide.pipeline.core.offset_index import intervals
from stilltide.schemas.replication.origins import Claims, Incarnation, Interval, Intervals, Origin

INTERVALS_MAX = 16
"""Intervals of one incarnation in what is written."""

NO_CLAIMS: Claims = {}


def join(*claims: Claims) -> dict[Incarnation, Intervals]:
    """What any of them claims."""
    return {
        one: intervals.union(*(each.get(one, ()) for each in claims))
        for one in dict.fromkeys(one for each in claims for one in each)
    }


def minus(claims: Claims, taken: Claims) -> dict[Incarnation, Intervals]:
    """What the first claims and the second does not."""
    left = {one: intervals.minus(held, taken.get(one, ())) for one, held in claims.items()}
    return {one: held for one, held in left.items() if held}


def within(claims: Claims, others: Claims) -> bool:
    """Whether the second claims everything that the first does."""
    return not minus(claims, others)


def holds(claims: Claims, origin: Origin) -> bool:
    """Whether the record is claimed; a dict look-up and a bisection."""
    return intervals.holds(claims.get(origin.incarnation, ()), origin.offset)


def limited(claims: Claims) -> Mapping[Incarnation, Intervals]:
    """The lowest intervals of each incarnation: a smaller claim is always safe."""
    return {one: held[:INTERVALS_MAX] for one, held in claims.items()}


def widened(taken: Claims) -> Mapping[Incarnation, Intervals]:
    """What must not be claimed, in as few intervals: the gaps between the lowest ones are closed.

    The opposite of `limited`: here more is always safe.
    """
    found: dict[Incarnation, Intervals] = {}
    for one, held in taken.items():
        closed = max(0, len(held) - INTERVALS_MAX)
        first = Interval(held[0].first, held[closed].end)
        found[one] = (first, *held[closed + 1 :])
    return found
