"""Which data partitions the snapshot writers have been sent an announcement of.

*Source*: protocols.md E7.
"""

from collections.abc import Sequence

from stilltide.schemas.coordinator.transactions import Registered
from stilltide.schemas.values import TopicPartition

ANNOUNCED_MAX = 100_000
"""Data partitions known to be announced; with more of them, some are announced again."""


class Announced:
    """Data partitions that this ownership has announced."""

    def __init__(self) -> None:
        self._announced: set[TopicPartition] = set()

    def new_among(self, registered: Sequence[Registered]) -> list[TopicPartition]:
        """Those that were not announced yet; they count as announced from now on."""
        new = [one.data for one in registered if one.data not in self._announced]
        if new:
            if len(self._announced) > ANNOUNCED_MAX:
                self._announced.clear()
            self._announced.update(new)
        return new
