"""Takes the records of a subscription through its deserializers.

*Source*: docs/schemas.md; docs/protocols D2 and G2. Records are decoded at the rim, after it was
decided that they are visible.

*Invariants*:
- A record leaves its queue when its message is returned, or when it is passed over, and not before:
  no position passes a record that is being decoded, and no record of a lost partition is returned.
- A record leaves its queue as well with the `UndecodableError` that returns it.
- A failure of the registry moves nothing.
- Without acknowledgements, records that are passed over are committed here, since an application
  that is given no message never commits; never behind a message that was not committed.
"""

import asyncio
from collections import deque
from collections.abc import Collection
from itertools import islice
from typing import Any

from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.client.serializers import FieldSerializers, field_serializers
from stilltide.pipeline.client.subscription_options import OnUndecodable, SubscriptionLimits
from stilltide.pipeline.drivers.pending_ack.acknowledgements import AcknowledgingDriver
from stilltide.pipeline.drivers.subscription.deliveries import TURN_RECORDS
from stilltide.pipeline.drivers.subscription.subscription import SubscriptionDriver
from stilltide.pipeline.errors import SerializerError, UndecodableError


class Decoding:
    """Decodes what an open subscription returns; used by one task at a time.

    Args:
        deserializers: of keys and values.
        on_undecodable: what becomes of a record that one of them refuses.
        driver: reads the records.
        source: has the records to take; the same driver, or the one that acknowledges.
    """

    def __init__(
        self,
        deserializers: FieldSerializers,
        on_undecodable: OnUndecodable,
        driver: SubscriptionDriver,
        source: SubscriptionDriver | AcknowledgingDriver,
    ) -> None:
        self._deserializers = deserializers
        self._on_undecodable = on_undecodable
        self._driver = driver
        self._source = source
        commits = driver.joined.commits
        commits.some_passed_over = source is driver and on_undecodable is OnUndecodable.SKIP
        self._commits = commits if commits.some_passed_over else None
        self._ahead: deque[tuple[Record, Record | UndecodableError | SerializerError]] = deque()
        self._turn: deque[Record] = deque()  # the records of the partition that `next` takes now
        self._turn_left = 0

    async def next(self) -> Any:
        """The next message; raises what reading raises, and as `take`."""
        while True:
            if not self._turn or not self._turn_left:
                self._turn, self._turn_left = self._source.next_queue(), TURN_RECORDS
                if not self._turn:
                    await self._driver.changed()
                    continue
            self._turn_left -= 1
            if messages := await self.take(self._turn, 1):
                return messages[0]

    async def take(self, queue: deque[Record], records_max: int) -> list[Any]:
        """Takes messages of one partition from the left of its queue, which is not empty.

        Returns none if all were passed over, or the queue has changed meanwhile: look again.

        Raises:
            UndecodableError: the first record cannot be decoded; it was taken.
            SerializerError: what the deserializer asks does not answer; nothing was taken.
        """
        if not self._fits(queue):
            # What goes to a thread goes there together; the rest is decoded when it is asked for.
            ahead = TURN_RECORDS if self._deserializers.blocks(queue[0].topic) else 1
            records = [*islice(queue, max(records_max, ahead))]
            outcomes = await self._deserializers.deserialized(records)
            self._ahead = deque(zip(records, outcomes, strict=False))
        messages: list[Record] = []
        passed_over = False
        while len(messages) < records_max and self._fits(queue):
            record, outcome = self._ahead[0]
            is_message = isinstance(outcome, Record)
            if messages and not is_message:
                break  # the next call raises it, or passes it over
            self._ahead.popleft()
            if isinstance(outcome, SerializerError):
                raise outcome
            queue.popleft()
            if isinstance(outcome, Record):
                messages.append(outcome)
                if self._commits is not None:
                    self._commits.returned(record.data, record.offset + 1)
                continue
            self._pass_over(record, outcome)
            passed_over = True
        if passed_over and not messages:
            await asyncio.sleep(0)  # a topic of such records does not keep the loop for itself
            if self._commits is not None:
                await self._commits.commit_due()
        return messages

    def fields(self, topic: str) -> Collection[str]:
        """Which of a topic's key and value a deserializer makes."""
        return self._deserializers.fields(topic)

    def _fits(self, queue: deque[Record]) -> bool:
        """Whether what was decoded ahead is of the record that is next."""
        return bool(queue and self._ahead and self._ahead[0][0] is queue[0])

    def _pass_over(self, record: Record, error: UndecodableError) -> None:
        if self._on_undecodable is OnUndecodable.RAISE:
            raise error
        self._driver.joined.intake.undecodable(record.data, error)
        if self._commits is not None:
            self._commits.passed_over()
        if isinstance(self._source, AcknowledgingDriver):
            if self._on_undecodable is OnUndecodable.DEAD_LETTER:
                why = f"{error.field}: {error.detail}"
                self._source.negative_acknowledge(record, why, undecodable=True)
            else:
                self._source.acknowledge(record)


def decoding_of(
    limits: SubscriptionLimits,
    driver: SubscriptionDriver,
    source: SubscriptionDriver | AcknowledgingDriver,
) -> Decoding | None:
    """What decodes for an open subscription; None: its messages are bytes."""
    deserializers = field_serializers(limits.key_deserializer, limits.value_deserializer)
    if deserializers is None:
        return None
    return Decoding(deserializers, OnUndecodable(limits.on_undecodable), driver, source)
