"""What one reader has of a consumer.

*Source*: connectors.ports, `LogReader`.

Belongs to the consumer's thread; its inbox to the loop.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from stilltide.connectors.kafka.consumer.inbox import Inbox
from stilltide.schemas.values import Offset, TopicPartition

Positions = Mapping[TopicPartition, Offset]


def client_partitions(positions: Positions) -> list[ClientPartition]:
    """Positions as the client library takes them."""
    return [ClientPartition(data[0], data[1], offset) for data, offset in positions.items()]


def client_names(partitions: Iterable[TopicPartition]) -> list[ClientPartition]:
    """Partitions as the client library takes them."""
    return [ClientPartition(data[0], data[1]) for data in partitions]


class ReaderSlot:
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

    def pause(
        self, consumer: Consumer, partitions: AbstractSet[TopicPartition]
    ) -> AbstractSet[TopicPartition]:
        """Stops fetching those of the partitions that are assigned; which they are."""
        chosen = partitions & self.assigned.keys()
        consumer.pause(client_names(chosen))
        self.fetched -= chosen
        return chosen

    def resume(
        self, consumer: Consumer, partitions: AbstractSet[TopicPartition]
    ) -> AbstractSet[TopicPartition]:
        """Fetches those of them that are assigned again, from where they stand; which they are."""
        chosen = partitions & self.assigned.keys()
        consumer.resume(client_names(chosen))
        self.fetched |= chosen
        return chosen

    def positions(self, consumer: Consumer) -> Positions:
        """Behind what was read."""
        positions = dict(self.assigned)
        for it in consumer.position(client_names(positions)):
            if it.offset >= 0:
                positions[TopicPartition(it.topic, it.partition)] = Offset(it.offset)
        return positions
