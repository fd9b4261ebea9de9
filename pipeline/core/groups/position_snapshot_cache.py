"""Which snapshots of a data partition are kept.

*Source*: docs/protocols I5; pulsar.md 6.2.
*Invariants*: local ends ascend; never more than the limit; the oldest and the newest one stay, so
that a group that lags far behind still finds one. Of the inner ones the closest to its neighbours
goes first.
"""

from bisect import bisect_right
from collections.abc import Sequence

from stilltide.schemas.replication.signals import PositionSnapshot
from stilltide.schemas.values import EndOffset

SNAPSHOTS_MAX = 30
SNAPSHOTS_MIN = 3
"""The least that a limit may be: both ends and one between them."""


def with_snapshot(
    cached: Sequence[PositionSnapshot],
    snapshot: PositionSnapshot,
    snapshots_max: int = SNAPSHOTS_MAX,
) -> tuple[PositionSnapshot, ...]:
    """The cache with a new snapshot.

    One at the newest local end replaces it: nothing was written here, but the others went on. One
    in front of it means that the log was cut off: only the new one stays.
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
    """The newest snapshot that a committed offset has passed."""
    count = bisect_right(cached, offset, key=lambda one: one.local_end)
    return cached[count - 1] if count else None
