"""Decides which readers of a consumer receive an error, and when the consumer must be replaced.

*Source*: docs/internals/kafka-clients.md, "Which version, and a known fault"; connectors.ports,
`LogReader.read`.

*Invariants*: an error that names a partition reaches the reader of that partition, any other error
reaches all readers. A temporary error (the broker is away) ends no reader.

Everything here runs on the consumer's thread, within a poll or after it; `sorted_out` also runs on
the loop while the loop holds the consumer's lease.

Detects from librdkafka's own statistics that a consumer is stuck.

*Source*: librdkafka's STATISTICS.md, and its issues 5301 and 5511: a client that receives an answer
without brokers while it looks for brokers may stop looking. The client then reads nothing, and
reports no error.

*Invariants*: a partition counts as served while records arrive, and also at its end: a broker
answers a fetch within `fetch.wait.max.ms`, with or without records. Reports that arrive together,
after a long call on the consumer's thread, are out of date and count as one look.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, Message

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.consumer.assignments import Assignments, ReaderSlot
from stilltide.connectors.kafka.consumer.inbox import Item, place_of_message, sort_out
from stilltide.connectors.kafka.errors import AWAY, on_group, on_topic, place_of, translate
from stilltide.connectors.kafka.logs import LOGGER
from stilltide.schemas.rights import Operation
from stilltide.schemas.values import TopicPartition

LOOKS = 3
"""Looks in a row that show a stuck consumer; more than one, as a leader may just be changing."""


class FetchWatch:
    """Looks at the statistics of one consumer.

    Args:
        period_s: time between two looks.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._looked_s = -math.inf
        self._missed: dict[str, int] = {}

    def look(
        self, statistics: str, fetched: Collection[TopicPartition], now_s: float
    ) -> str | None:
        """What has been missing for `LOOKS` looks, as text for the log; None if nothing.

        Args:
            statistics: one report of the client, as JSON.
            fetched: the partitions that the client should fetch now, without paused ones.
            now_s: the time of a monotonic clock.
        """
        if now_s - self._looked_s < self._period_s / 2:
            return None
        self._looked_s = now_s
        report = json.loads(statistics)
        brokers = [it for it in report["brokers"].values() if it["source"] != "logical"]
        heard = {it["nodeid"] for it in brokers if 0 <= it["rxidle"] < self._period_s * 1e6}
        missing = [] if brokers else ["it knows of no broker"]
        missing += [
            f"no broker serves {data}"
            for data in fetched
            if not _is_served(_partition(report, data), heard)
        ]
        self._missed = {text: self._missed.get(text, 0) + 1 for text in missing}
        return next((text for text, count in self._missed.items() if count >= LOOKS), None)


def _partition(report: Mapping[str, Any], data: TopicPartition) -> Mapping[str, Any]:
    """The statistics of a partition; empty if the client does not know the partition yet."""
    topic = report["topics"].get(data.topic, {"partitions": {}})
    return topic["partitions"].get(str(data.partition), {})


def _is_served(partition: Mapping[str, Any], heard: Collection[int]) -> bool:
    # With enough records fetched ahead, the client sends no fetch.
    return partition.get("fetchq_cnt", 0) > 0 or (
        partition.get("fetch_state") == "active" and partition.get("broker") in heard
    )


class ConsumerHealth:
    """The health of one consumer, and of the consumers that replace it.

    Args:
        config: the cluster.
        client_id: the client's name in the log.
        assignments: the readers of the consumer.
        post: runs a call on the loop.
        group: the group of which the consumer is a member; None: it has named partitions.
        reads_topic: whether a topic is read; errors of other topics are dropped.

    Attributes:
        look_s: time between two looks at the consumer's statistics.
        missing: what the consumer has missed for too long, so that it must be replaced.
    """

    def __init__(
        self,
        config: KafkaConfig,
        client_id: str,
        assignments: Assignments,
        post: Callable[..., None],
        *,
        group: str | None,
        reads_topic: Callable[[str], bool],
    ) -> None:
        self._address = config.caller
        self._client_id = client_id
        self._assignments = assignments
        self._post = post
        self._group = group
        self._reads_topic = reads_topic
        self._fetch_timeout_s = config.fetch_timeout_s
        self.look_s = config.fetch_timeout_s / LOOKS
        self.missing: str | None = None
        self._watch = FetchWatch(self.look_s)
        self._all_down = self._was_replaced = False

    def watch_new_consumer(self) -> None:
        """Forgets the statistics of the old consumer."""
        self._watch = FetchWatch(self.look_s)
        self.missing = None

    def note_statistics(self, statistics: str) -> None:
        """Looks at one report of the client's statistics."""
        fetched = [data for slot in self._assignments.slots for data in slot.fetched]
        self.missing = self._watch.look(statistics, fetched, time.monotonic())

    def note_error(self, error: KafkaError) -> None:
        """Reports an error of the client; ignores that a broker is away unless all brokers are."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - the client's public name
            self._all_down = True
        elif error.code() in AWAY and not self._all_down:
            return
        place = place_of(error)
        readers = [it for it in self._assignments.slots if place is None or place in it.assigned]
        self._fail(error, "cannot read", readers, None if place is None else place.topic)

    def note_replaced(self, missing: str) -> None:
        """Logs that another consumer takes over.

        Warns of the first replacement only: while a broker is away there may be many.
        """
        LOGGER.log(
            logging.DEBUG if self._was_replaced else logging.WARNING,
            "reader %s of %s begins again with a new client: for %g s %s",
            self._client_id,
            self._address,
            self._fetch_timeout_s,
            missing,
        )
        self._was_replaced = True

    def sorted_out(self, messages: list[Message], slot: ReaderSlot | None) -> list[Item]:
        """Returns the records and ends among the messages, and reports the errors among them."""
        items, failed = sort_out(messages)
        if items and slot is not None:
            self._all_down = self._was_replaced = False
        for message in failed:
            self._report(message, slot)
        return items

    def _report(self, message: Message, slot: ReaderSlot | None) -> None:
        """Passes on an error that came as a message."""
        error, data = message.error(), place_of_message(message)
        assert error is not None
        if data is not None and not self._reads_topic(data.topic):
            return
        if data is None or data.partition < 0:
            topic = None if data is None else data.topic
            self._fail(error, "cannot read", self._assignments.slots, topic)
        elif slot is not None:
            self._fail(error, f"cannot read {data}@{message.offset()}", [slot], data.topic)

    def _fail(
        self, error: KafkaError, action: str, slots: Sequence[ReaderSlot], topic: str | None
    ) -> None:
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED and self._group is None:
            return  # the client needs a group's name, and asks for its coordinator for nothing
        asked = [] if topic is None else [on_topic(Operation.READ, topic)]
        if self._group is not None:
            asked.append(on_group(Operation.READ, self._group))
        failure = translate(error, self._address, action, *asked)
        for slot in slots:
            if isinstance(failure, RetriableError):
                self._post(slot.inbox.away, failure)
            else:
                slot.fetched = frozenset()  # the fetch watch expects no more records of this slot
                self._post(slot.inbox.fail, slot.generation, failure)
