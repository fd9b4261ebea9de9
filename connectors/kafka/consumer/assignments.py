"""The partitions that each reader of one consumer reads.

*Source*: connectors.ports, `LogReader`; docs/internals/kafka-clients.md, Consumers.

*Invariants*: nothing is paused after an assignment, whatever the client has kept paused. Readers
that share a consumer read different partitions.

Everything here is used on the consumer's thread only; the inbox of a slot on the loop only.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from confluent_kafka import OFFSET_END, Consumer, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from stilltide.connectors.kafka.consumer.inbox import Inbox, place_of_message
from stilltide.schemas.values import Offset, TopicPartition

Positions = Mapping[TopicPartition, Offset]

_MEET_S = 1.0
_WAKE_S = 0.2
"""How long a thread waits for a broker's answer that only wakes the client and has no other use."""


def client_partitions(positions: Positions) -> list[ClientPartition]:
    """Positions in the type of the client library."""
    return [ClientPartition(data[0], data[1], offset) for data, offset in positions.items()]


def client_names(partitions: Iterable[TopicPartition]) -> list[ClientPartition]:
    """Partitions in the type of the client library."""
    return [ClientPartition(data[0], data[1]) for data in partitions]


class ReaderSlot:
    """One reader's assignment.

    Args:
        inbox: receives the messages.
        shown_out: called on the loop when the consumer no longer reads for a reader that has fallen
            behind others; takes the reader's generation and the positions that it has reached.
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
        """Makes these partitions the assignment; none is paused."""
        self.generation = generation
        self.assigned = positions
        self.fetched = frozenset(positions)

    def clear(self) -> None:
        """Removes the assignment."""
        self.assigned, self.fetched = {}, frozenset()

    def pause(
        self, consumer: Consumer, partitions: AbstractSet[TopicPartition]
    ) -> AbstractSet[TopicPartition]:
        """Pauses those of the partitions that are assigned, and returns them.

        The client drops messages that it fetched ahead from a paused partition.
        """
        chosen = partitions & self.assigned.keys()
        consumer.pause(client_names(chosen))
        self.fetched -= chosen
        return chosen

    def resume(
        self, consumer: Consumer, partitions: AbstractSet[TopicPartition]
    ) -> AbstractSet[TopicPartition]:
        """Resumes those of the partitions that are assigned, and returns them."""
        chosen = partitions & self.assigned.keys()
        consumer.resume(client_names(chosen))
        self.fetched |= chosen
        return chosen

    def positions(self, consumer: Consumer) -> Positions:
        """The offset after the last message that was read, for each partition."""
        positions = dict(self.assigned)
        for place in consumer.position(client_names(positions)):
            if place.offset >= 0:
                positions[TopicPartition(place.topic, place.partition)] = Offset(place.offset)
        return positions


class Reached(NamedTuple):
    """The positions and the paused partitions of a slot when its consumer is replaced."""

    slot: ReaderSlot
    positions: Positions
    paused: AbstractSet[TopicPartition]


class Assignments:
    """The slots of one consumer, and of the consumers that replace it.

    Args:
        only: the slot of the only reader; None: several readers share the consumer, each with its
            own slot.

    Attributes:
        slots: slots of the readers that have an assignment now.
        reading: whether the consumer has to be polled.
    """

    def __init__(self, only: ReaderSlot | None) -> None:
        self.only = only
        self.slots = [] if only is None else [only]
        self.reading = False
        self._met = set[str]()
        self._paused = set[TopicPartition]()

    def assign(
        self, consumer: Consumer, slot: ReaderSlot, positions: Positions, generation: int
    ) -> None:
        """Replaces the assignment of this slot."""
        if self.only is None:
            self.leave(consumer, slot)
            consumer.incremental_assign(client_partitions(positions))
            self.slots = [*self.slots, slot]
        else:
            consumer.assign(client_partitions(positions))
        slot.take_up(positions, generation)
        # The client keeps a partition paused over assignments, and while it is not assigned.
        if paused := self._paused & positions.keys():
            self.resume(consumer, slot, paused)
        self._meet(consumer, {data.topic for data in positions})
        self.reading = self.reading or bool(positions)

    def unassign(self, consumer: Consumer, slot: ReaderSlot) -> None:
        """Removes the assignment of the only slot."""
        slot.clear()
        consumer.unassign()

    def leave(self, consumer: Consumer, slot: ReaderSlot) -> None:
        """Removes the assignment of one of several slots."""
        if slot in self.slots:
            self.slots = [it for it in self.slots if it is not slot]
            consumer.incremental_unassign(client_names(slot.assigned))
            slot.clear()

    def pause(
        self, consumer: Consumer, slot: ReaderSlot, partitions: AbstractSet[TopicPartition]
    ) -> None:
        """Pauses those of the partitions that are assigned."""
        self._paused |= slot.pause(consumer, partitions)

    def resume(
        self, consumer: Consumer, slot: ReaderSlot, partitions: AbstractSet[TopicPartition]
    ) -> None:
        """Resumes those of the partitions that are assigned, from their positions.

        Also wakes the client's threads, which look at resumed partitions only once a second.
        """
        resumed = slot.resume(consumer, partitions)
        self._paused -= resumed
        if resumed:
            newest = [ClientPartition(it.topic, it.partition, OFFSET_END) for it in resumed]
            with contextlib.suppress(KafkaException):
                consumer.offsets_for_times(newest, timeout=_WAKE_S)

    def by_slot(self, messages: list[Message]) -> Iterable[tuple[ReaderSlot | None, list[Message]]]:
        """Groups messages by the slot that reads their partition.

        None: the message names no partition, or a partition that no reader reads now.
        """
        if self.only is not None or not messages:
            return [(self.only, messages)] if messages else []
        owners = {data: slot for slot in self.slots for data in slot.assigned}
        shares: dict[ReaderSlot | None, list[Message]] = {}
        for message in messages:
            data = place_of_message(message)
            slot = None if data is None else owners.get(data)
            shares.setdefault(slot, []).append(message)
        return shares.items()

    def reached(self, consumer: Consumer) -> list[Reached]:
        """The positions and the paused partitions of each slot."""
        return [
            Reached(slot, slot.positions(consumer), slot.assigned.keys() - slot.fetched)
            for slot in self.slots
        ]

    def forget_consumer(self) -> None:
        """Forgets known topics and pauses: another consumer takes over, which has neither.

        Slots that share the consumer have to be assigned again.
        """
        self._met.clear()
        self._paused.clear()
        if self.only is None:
            self.slots = []

    def _meet(self, consumer: Consumer, topics: set[str]) -> None:
        """Asks for the leaders of new topics now; by itself the client asks within a second."""
        new = topics - self._met
        if self._met and new:
            with contextlib.suppress(KafkaException):
                consumer.list_topics(*(new if len(new) == 1 else ()), timeout=_MEET_S)
        self._met |= new
