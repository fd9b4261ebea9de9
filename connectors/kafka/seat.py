"""What one reader has of a consumer.

*Source*: connectors.base, `LogReader`.

Belongs to the consumer's thread; its inbox to the loop.
"""

from collections.abc import Callable, Mapping

from connectors.kafka.inbox import Inbox
from schemas.values import Offset, TopicPartition

Positions = Mapping[TopicPartition, Offset]


class Seat:
    """One reader's assignment.

    Args:
        inbox: takes what is read.
        shown_out: called on the loop when the reader has fallen behind others that share the
            consumer: it is served no longer, and stands at these positions of that generation.
    """

    def __init__(
        self, inbox: Inbox, shown_out: Callable[[int, Positions], None] = lambda *_: None
    ) -> None:
        self.inbox = inbox
        self.shown_out = shown_out
        self.generation = 0
        self.assigned: Positions = {}
        self.fetched: frozenset[TopicPartition] = frozenset()

    def take_up(self, positions: Positions, generation: int) -> None:
        """Reads these partitions from now on; none is paused."""
        self.generation = generation
        self.assigned = positions
        self.fetched = frozenset(positions)

    def clear(self) -> None:
        """Reads nothing any more."""
        self.assigned, self.fetched = {}, frozenset()
