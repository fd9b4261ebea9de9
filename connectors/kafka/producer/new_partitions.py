"""Records of partitions that a topic has gained since the producer last asked for its metadata.

*Source*: docs/protocols C13; docs/internals/kafka-clients.md, Producers: a producer asks for
metadata every five minutes, and refuses a partition that it does not know at once.

*Invariants*: records of a partition are sent in the order of their appends; every record that is
held is either sent or reported as failed.
"""

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from stilltide.connectors.errors import ConnectorError, MissingTopicError, RetriableError
from stilltide.connectors.kafka.authorization import Caller, on_topic
from stilltide.connectors.kafka.config import TOPIC_ABSENT_MS
from stilltide.connectors.kafka.errors import error_of, translate
from stilltide.connectors.ports.writers import Delivered, NewHeaders
from stilltide.schemas.rights import Operation
from stilltide.schemas.values import TopicPartition

_LOOK_AGAIN_S = 0.05
"""Pause between two requests for metadata, and between two looks for room in the queue."""


class UnsentRecord(NamedTuple):
    """A record whose partition the producer does not know yet."""

    value: bytes | None
    key: bytes | None
    headers: NewHeaders | None
    delivered: Delivered


def is_unknown_partition(error: KafkaException) -> bool:
    """Whether the producer's metadata does not have the partition."""
    return error_of(error).code() == KafkaError._UNKNOWN_PARTITION  # noqa: SLF001 - the client's public name


def learn_partition(producer: Producer, data: TopicPartition, request_timeout_s: float) -> bool:
    """Asks for metadata until they show the partition; False: it does not exist.

    Blocks the calling thread for at most `TOPIC_ABSENT_MS` and one request. The request is for all
    topics, because a request about one topic may create it.

    Raises:
        KafkaException: the brokers do not answer.
    """
    deadline_s = time.monotonic() + TOPIC_ABSENT_MS / 1000
    while True:
        found = producer.list_topics(timeout=request_timeout_s).topics.get(data.topic)
        if found is not None and data.partition in found.partitions:
            return True
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_LOOK_AGAIN_S)


class NewPartitions:
    """Holds records of unknown partitions, and sends them once the producer knows the partitions.

    Args:
        producer: gives the producer of the writer, which may change.
        address: the cluster's address and the user, for errors.
        request_timeout_s: time-out of a request for metadata.
        send: queues one record; raises the client's errors.
        failed: called with each held record that is never sent, and the error.

    Attributes:
        held: records that are held, by partition; later ones of these partitions have to wait, too.
    """

    def __init__(
        self,
        producer: Callable[[], Producer],
        address: Caller,
        request_timeout_s: float,
        send: Callable[[TopicPartition, UnsentRecord], None],
        failed: Callable[[UnsentRecord, ConnectorError], None],
    ) -> None:
        self._producer = producer
        self._address = address
        self._request_timeout_s = request_timeout_s
        self._send = send
        self._failed = failed
        self.held: dict[TopicPartition, list[UnsentRecord]] = {}
        self._learning: dict[TopicPartition, asyncio.Task[None]] = {}

    def hold(self, data: TopicPartition, record: UnsentRecord) -> None:
        """Keeps a record until the producer knows its partition."""
        held = self.held.setdefault(data, [])
        held.append(record)
        if data not in self._learning:
            self._learning[data] = asyncio.create_task(self._learn(data))

    async def close(self) -> None:
        """Reports the records that are still held as failed."""
        tasks = list(self._learning.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for data in list(self.held):
            self._fail(data, RetriableError("the writer was closed"))

    async def _learn(self, data: TopicPartition) -> None:
        try:
            known = await asyncio.to_thread(
                learn_partition, self._producer(), data, self._request_timeout_s
            )
            if known:
                await self._release(data)
            else:
                hint = "create the topic, or correct the name or partition"
                missing = f"{data} does not exist at {self._address}"
                self._fail(data, MissingTopicError(missing, hint=hint))
        except KafkaException as error:
            asked = on_topic(Operation.WRITE, data.topic)
            self._fail(data, translate(error, self._address, f"cannot write to {data}", asked))
        finally:
            del self._learning[data]

    async def _release(self, data: TopicPartition) -> None:
        """Sends the held records in order; the list may grow meanwhile."""
        held = self.held[data]
        while held:
            try:
                self._send(data, held[0])
            except BufferError:  # the client's limit of bytes
                await asyncio.sleep(_LOOK_AGAIN_S)
            else:
                del held[0]
        del self.held[data]

    def _fail(self, data: TopicPartition, error: ConnectorError) -> None:
        for record in self.held.pop(data, ()):
            self._failed(record, error)
