"""How long `Subscription.read_to` waits for a partition, and the errors of a wait that is over."""

import asyncio
from collections.abc import Mapping

from stilltide.pipeline.client.subscription_options import SubscriptionLimits
from stilltide.pipeline.drivers.read_committed.decided import Blocked
from stilltide.pipeline.drivers.subscription.subscription import SubscriptionDriver
from stilltide.pipeline.errors import NotAssignedError, UndecidedError
from stilltide.schemas.values import EndOffset, TopicPartition


def patience_s(
    driver: SubscriptionDriver,
    limits: SubscriptionLimits,
    group: str,
    remaining: Mapping[TopicPartition, EndOffset],
    began: float,
) -> float | None:
    """Seconds until the next time-out of a remaining partition; None: none of them waits.

    Time before this call of `read_to` does not count, so each call has the whole time-out.

    Args:
        driver: the subscription's driver.
        limits: the time-outs.
        group: the consumer group's name, for the error.
        remaining: end offsets of the partitions that are not read to their ends yet.
        began: when this call of `read_to` began, on the event loop's clock.

    Raises:
        UndecidedError: a record below an end offset has been undecided for too long.
        NotAssignedError: a partition has not been assigned to this member in time.
    """
    now = asyncio.get_running_loop().time()
    left_s: list[float] = []
    blocked = driver.blocked()
    for data, end_offset in remaining.items():
        if driver.position(data) is None:
            waited_s = now - max(began, driver.joined.commits.rebalanced_at)
            left_s.append(limits.assignment_timeout_s - waited_s)
            if left_s[-1] <= 0:
                raise _not_assigned(data, group, waited_s)
        elif data in blocked and blocked[data].offset < end_offset:
            waited_s = min(now - began, blocked[data].waited_s)
            left_s.append(limits.undecided_timeout_s - waited_s)
            if left_s[-1] <= 0:
                raise _undecided(blocked[data])
    return min(left_s, default=None)


def _undecided(blocked: Blocked) -> UndecidedError:
    return UndecidedError(
        f"transaction {blocked.txn} has been undecided for {blocked.waited_s:.1f} s",
        detail="no marker of the transaction was read, and no record past its record is delivered",
        hint="check that a worker is running; an open transaction ends at its time-out, and of a "
        f"prepared one `stilltide txn describe {blocked.txn}` says who decides",
        data=blocked.data,
        offset=blocked.offset,
    )


def _not_assigned(data: TopicPartition, group: str, waited_s: float) -> NotAssignedError:
    return NotAssignedError(
        f"group {group!r} has not assigned the partition to this member for {waited_s:.1f} s",
        hint="check that the partition exists, and that no other member of the group reads it",
        data=data,
    )
