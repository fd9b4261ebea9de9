"""Which data partitions a coordinator has already announced to the snapshot writers.

*Source*: docs/protocols E7.
"""

from collections.abc import Sequence

from stilltide.schemas.coordinator.transactions import Registered
from stilltide.schemas.values import TopicPartition

ANNOUNCED_MAX = 100_000
"""Data partitions remembered as announced; beyond, all are forgotten and announced again."""


class Announced:
    """Data partitions that this coordinator's owner has announced."""

    def __init__(self) -> None:
        self._announced: set[TopicPartition] = set()

    def new_among(self, registered: Sequence[Registered]) -> list[TopicPartition]:
        """The partitions not announced before; they count as announced from now on."""
        new = [one.data for one in registered if one.data not in self._announced]
        if new:
            if len(self._announced) > ANNOUNCED_MAX:
                self._announced.clear()
            self._announced.update(new)
        return new
