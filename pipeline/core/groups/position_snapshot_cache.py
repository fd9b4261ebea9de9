"""Which position snapshots of a data partition are kept.

*Source*: docs/protocols I5; PIP-33, Pulsar's replicated subscriptions.
*Invariants*: local ends ascend; there are never more than the limit; the oldest and the newest one
stay, so that a group far behind still finds one. Of the inner ones, the one whose neighbours are
closest to each other is dropped first.
"""

from bisect import bisect_right
from collections.abc import Sequence

from stilltide.schemas.replication.signals import PositionSnapshot
from stilltide.schemas.values import EndOffset

SNAPSHOTS_MAX = 30
SNAPSHOTS_MIN = 3
"""Lowest limit: the oldest, the newest and one between them."""


def with_snapshot(
    cached: Sequence[PositionSnapshot],
    snapshot: PositionSnapshot,
    snapshots_max: int = SNAPSHOTS_MAX,
) -> tuple[PositionSnapshot, ...]:
    """The cache with a new position snapshot.

    A snapshot with the newest local end replaces the newest one: nothing was written here, but
    other clusters went on. A lower local end means that the log lost its end: only the new
    snapshot stays.
    """
    assert snapshots_max >= SNAPSHOTS_MIN
    if cached and snapshot.local_end < cached[-1].local_end:
        return (snapshot,)
    kept = [one for one in cached if one.local_end < snapshot.local_end]
    kept.append(snapshot)
    if len(kept) > snapshots_max:
        inner = range(1, len(kept) - 1)
        del kept[min(inner, key=lambda at: kept[at + 1].local_end - kept[at - 1].local_end)]
    return tuple(kept)


def passed(cached: Sequence[PositionSnapshot], offset: EndOffset) -> PositionSnapshot | None:
    """The newest position snapshot whose local end a committed offset has reached, or None."""
    count = bisect_right(cached, offset, key=lambda one: one.local_end)
    return cached[count - 1] if count else None
