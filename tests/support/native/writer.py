"""Writes native transactions to real topics, offset by offset, and a wrong index of them."""

import time
from collections.abc import Sequence

from stilltide.connectors.kafka.admin.admin import LOG_END, log_bounds
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.schemas.native.aborted_index import (
    Coverage,
    coverage_key,
    encode_coverage,
    encode_run,
    run_key,
)
from stilltide.schemas.topics import ABORTED_INDEX, system_partition
from stilltide.schemas.values import EndOffset, Offset, Range, TopicPartition
from tests.support.native.topics import INDEX_PARTITIONS, TIMEOUT_S, transactional


class NativeWriter:
    """Transactions of one producer on one topic."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self._bootstrap = bootstrap
        self._producer = transactional(bootstrap, topic)

    def transaction(self, partition: int, count: int, *, commit: bool) -> list[int]:
        """Writes one transaction; returns its records' offsets once its marker is written."""
        offsets = self.write(partition, count)
        if commit:
            self._producer.commit_transaction(TIMEOUT_S)
        else:
            self.abort()
        await_stable(self._bootstrap, TopicPartition(self.topic, partition), offsets[-1] + 2)
        return offsets

    def write(self, partition: int, count: int) -> list[int]:
        """Writes records of a transaction that stays open; returns their offsets."""
        offsets: list[int] = []
        self._producer.begin_transaction()
        for number in range(count):
            self._producer.produce(
                self.topic,
                b"%d" % number,
                b"key",
                partition,
                on_delivery=lambda _, message: offsets.append(message.offset()),
            )
        assert self._producer.flush(TIMEOUT_S) == 0
        assert len(offsets) == count
        return offsets

    def abort(self) -> None:
        """Aborts the transaction that `write` began."""
        self._producer.abort_transaction(TIMEOUT_S)


def await_stable(bootstrap: str, data: TopicPartition, end: int) -> None:
    """Returns when the last stable offset has reached `end`."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while log_bounds(KafkaConfig(bootstrap), [data], LOG_END)[data] < end:
        assert time.monotonic() < deadline_s, f"{data} does not become stable up to {end}"


def write_false_index(
    bootstrap: str,
    data: TopicPartition,
    topic_id: bytes,
    ranges: Sequence[tuple[int, int]],
    *,
    end: int,
) -> None:
    """Replaces the only run of `data`, which begins at 0, by ranges that cover offsets below `end`.

    Writes in one transaction with the indexer's transactional id, as the indexer itself does.
    """
    where = system_partition(data, INDEX_PARTITIONS)
    producer = transactional(bootstrap, f"{ABORTED_INDEX}-{where}")
    coverage = Coverage(
        topic_id, Offset(0), EndOffset(end), EndOffset(end), min(1, len(ranges)), len(ranges)
    )
    written = [(run_key(data, Offset(0)), None)]
    if ranges:
        run = [Range(Offset(first), EndOffset(last)) for first, last in ranges]
        written.append((run_key(data, run[0].first), encode_run(topic_id, run)))
    written.append((coverage_key(data), encode_coverage(coverage)))
    producer.begin_transaction()
    for key, value in written:
        producer.produce(ABORTED_INDEX, value, key, where)
    producer.commit_transaction(TIMEOUT_S)
