"""How long a `Subscription` waits: `read_to` for a partition, `batches` for enough records."""

import asyncio
from collections.abc import Mapping

from stilltide.pipeline.client.subscription_options import SubscriptionLimits
from stilltide.pipeline.drivers.pending_ack.acknowledgements import AcknowledgingDriver
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


class BatchWait:
    """Waits until a partition has records for a batch, or until a time after the first record.

    Once that time is over, each partition is returned with what it has: a partition with few
    records does not wait for one with many.

    Args:
        driver: reads the records.
        source: has the records to take; the same driver, or the one that acknowledges.
        records_max: largest number of records in a batch.
        wait_s_max: longest wait for that number, seconds.
    """

    def __init__(
        self,
        driver: SubscriptionDriver,
        source: SubscriptionDriver | AcknowledgingDriver,
        records_max: int,
        wait_s_max: float,
    ) -> None:
        self._driver = driver
        self._source = source
        self._records_max = records_max
        self._wait_s_max = wait_s_max
        self._due_s: float | None = None
        self._left = 0  # partitions that are returned with what they have

    async def records_min(self) -> int:
        """The records that a partition must have to be returned now."""
        now_s = asyncio.get_running_loop().time
        while True:
            self._driver.look()
            counts = [count for count in self._source.counts().values() if count]
            if self._left and counts:
                self._left -= 1
                return 1
            self._left = 0
            if not counts:
                self._due_s = None
                if not self._driver.fetch():
                    await self._driver.changed()
                continue
            if self._due_s is None:
                self._due_s = now_s() + self._wait_s_max
            left_s = self._due_s - now_s()
            if left_s <= 0:
                self._due_s, self._left = None, len(counts)
            elif max(counts) >= self._records_max:
                return self._records_max
            else:
                await self._driver.changed(left_s)
