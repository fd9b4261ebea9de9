"""The rows of tables and JSON about native transactions.

*Source*: KIP-664.
"""

from collections.abc import Mapping, Sequence

from stilltide.pipeline.cli.common.output import Row
from stilltide.pipeline.cli.common.times import utc
from stilltide.pipeline.core.native.hanging import OpenNativeTransaction
from stilltide.pipeline.drivers.native.open_transactions import StablePosition
from stilltide.schemas.native.transactions import (
    ActiveProducer,
    DescribedTransaction,
    ListedTransaction,
)
from stilltide.schemas.values import TopicPartition


def listed_row(one: ListedTransaction) -> Row:
    """The row of a transactional id."""
    return {
        "transactional_id": one.transactional_id,
        "producer_id": one.producer_id,
        "state": one.state,
    }


def described_row(one: DescribedTransaction, now_ms: int) -> Row:
    """The row of everything that a coordinator reports of a transactional id."""
    started_ms = one.started_at_ms
    return {
        "transactional_id": one.transactional_id,
        "coordinator": one.coordinator,
        "state": one.state,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "timeout_s": one.timeout_ms / 1000,
        "started_at": None if started_ms is None else utc(started_ms),
        "age_s": None if started_ms is None else _since_s(started_ms, now_ms),
        "partitions": [str(data) for data in one.partitions],
    }


def producer_rows(
    producers: Mapping[TopicPartition, Sequence[ActiveProducer]], now_ms: int
) -> list[Row]:
    """A row for each producer of each partition."""
    return [
        {
            "topic": data.topic,
            "partition": data.partition,
            "producer_id": one.producer_id,
            "producer_epoch": one.producer_epoch,
            "open_from": one.open_from,
            "last_sequence": one.last_sequence,
            "last_write_at": utc(one.last_timestamp_ms) if one.last_timestamp_ms >= 0 else None,
            "idle_s": _idle_s(one, now_ms),
            "coordinator_epoch": one.coordinator_epoch,
        }
        for data, them in sorted(producers.items())
        for one in them
    ]


def open_row(one: OpenNativeTransaction, now_ms: int) -> Row:
    """The row of a transaction that is open in a partition."""
    transaction = one.transaction
    return {
        "topic": one.data.topic,
        "partition": one.data.partition,
        "open_from": one.open_from,
        "producer_id": one.producer.producer_id,
        "producer_epoch": one.producer.producer_epoch,
        "transactional_id": one.transactional_id,
        "state": "hanging" if one.hanging or transaction is None else transaction.state,
        "idle_s": _idle_s(one.producer, now_ms),
    }


def position_row(one: StablePosition, now_ms: int) -> Row:
    """The row of a partition: the position of committed readers, and the transaction there."""
    first = one.open[0] if one.open else None
    held = None if first is None else open_row(first, now_ms)
    return {
        "topic": one.data.topic,
        "partition": one.data.partition,
        "last_stable_offset": one.last_stable_offset,
        "high_watermark": one.high_watermark,
        "lag": max(0, one.high_watermark - one.last_stable_offset),
        "open": len(one.open),
        "held_by": held and (held["transactional_id"] or f"producer {held['producer_id']}"),
        "state": held and held["state"],
        "idle_s": held and held["idle_s"],
    }


def _idle_s(one: ActiveProducer, now_ms: int) -> float | None:
    """Seconds since the producer's last write, by that write's timestamp."""
    return None if one.last_timestamp_ms < 0 else _since_s(one.last_timestamp_ms, now_ms)


def _since_s(at_ms: int, now_ms: int) -> float:
    return max(0, now_ms - at_ms) / 1000
