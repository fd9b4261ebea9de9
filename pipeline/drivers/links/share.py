"""Which part of its links a process runs (H12)."""

import asyncio
from collections.abc import Container

LEADING_PARTITION = 0
"""The process with this partition does what is done once for a link, see `LinkShare.leads`."""

_ALL: Container[int] = range(2**31)


class LinkShare:
    """The partitions of replication-positions to which the links of a process copy (H12).

    Args:
        partitions: numbers of the partitions; the default: all.
        assigned: whether an assignment gives the partitions, and takes them away: see `assign`.

    Attributes:
        is_assigned: as above.
        watchers: events that `assign` sets.
    """

    def __init__(self, partitions: Container[int] = _ALL, *, assigned: bool = False) -> None:
        self.is_assigned = assigned
        self.watchers: set[asyncio.Event] = set()
        self._partitions = partitions

    @classmethod
    def of(cls, number: int, count: int) -> "LinkShare":
        """The share of process `number`, from 0 on, of `count` processes: every count-th one."""
        return cls(range(number, 2**31, count))

    @property
    def leads(self) -> bool:
        """Whether this process creates topics, adds partitions and follows configs (H12)."""
        return LEADING_PARTITION in self

    def __contains__(self, partition: int) -> bool:
        """Whether this process copies to a partition."""
        return partition in self._partitions

    def part_of(self, amount: float | None, count: int) -> float | None:
        """The part of an amount that falls to this process, by its part of so many partitions."""
        return amount and amount * sum(number in self for number in range(count)) / count

    def assign(self, partitions: Container[int]) -> None:
        """These partitions are the process's from now on, and no others."""
        self._partitions = partitions
        for event in self.watchers:
            event.set()
