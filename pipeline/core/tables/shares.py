"""How many offsets of each partition a bounded read takes; pure."""

from collections.abc import Sequence

from stilltide.schemas.values import EndOffset, OffsetRange


def bounded_shares(left: Sequence[OffsetRange], offsets_max: int) -> tuple[OffsetRange, ...]:
    """The beginnings of the ranges, together of about `offsets_max` offsets.

    Partitions that have little left leave their share to the others. Each range that is not empty
    gets one offset at least, so the result may have as many offsets as there are ranges.
    """
    taken = dict.fromkeys((one.data for one in left), 0)
    free, waiting = offsets_max, [one for one in left if one.end > one.start]
    for number, one in enumerate(sorted(waiting, key=lambda it: it.end - it.start)):
        share = min(one.end - one.start, max(1, free // (len(waiting) - number)))
        taken[one.data] = share
        free -= share
    return tuple(one._replace(end=EndOffset(one.start + taken[one.data])) for one in left)
