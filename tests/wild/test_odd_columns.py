"""Columns of Arrow of what programs and deserializers write.

What users saw: `TypeError: Cannot convert pyarrow.lib.ChunkedArray to pyarrow.lib.Array`, which
names neither topic nor remedy, for rows of more than 2 GiB; `UnicodeEncodeError` for half of a
surrogate pair, which JSON may hold; and tables that could not be put together, since a batch of
tombstones alone had another type.
"""

import asyncio
import json
import math
from typing import Any

import pyarrow as pa
import pytest

from stilltide import Subscription
from stilltide.connectors.ports.readers import Record, TimedRecord
from stilltide.pipeline.client.batches import MessageBatch
from stilltide.pipeline.errors import UsageError
from stilltide.schemas.values import Offset, TopicPartition
from stilltide.testing import MemoryCluster

ORDERS = TopicPartition("orders", 0)
LARGE = bytes(2**20)


def batch_of(*values: Any, timestamp_ms: int = 0) -> MessageBatch:
    """Messages with these values."""
    records: list[Any] = [
        TimedRecord.at(Record(*ORDERS, Offset(at), None, value, None), timestamp_ms)
        for at, value in enumerate(values)
    ]
    return MessageBatch.of(records)


def test_columns_of_more_than_two_gibibytes_are_refused_by_name():
    """They fit into no column; the error says what to change."""
    with pytest.raises(UsageError, match="orders/0: the values of 2049 messages") as refused:
        batch_of(*[LARGE] * 2049).to_arrow()
    assert "records_max" in (refused.value.hint or "")


@pytest.mark.parametrize("value", ["\ud800", {"name": "\udcff"}, ["\ud83d"]])
def test_half_a_character_is_refused_by_name(value: object):
    """JSON may hold it, and no text of Arrow."""
    with pytest.raises(UsageError, match="orders/0: the messages fit no column"):
        batch_of(value).to_arrow()


async def three_batches(cluster: MemoryCluster, group: str, options: dict[str, Any]) -> list[Any]:
    """Three records, each a batch of Arrow."""
    made: list[Any] = []
    async with (
        asyncio.timeout(60),
        Subscription("orders", group=group, connector=cluster.connector, **options) as orders,
    ):
        async for batch in orders.batches(1):
            made.append(batch.to_arrow())
            if len(made) == 3:
                break
    return made


async def test_batches_of_tombstones_go_with_others():
    """What deserializers make of nothing has the type that goes with every type; bytes stay so."""
    async with MemoryCluster({"orders": 1}) as cluster:
        for value in (b'{"cents": 1}', None, b'{"cents": 2}'):
            cluster.append("orders", value)
        decoding: dict[str, Any] = {"value_deserializer": json.loads}
        batches, plain = [
            await three_batches(cluster, "decoded", decoding),
            await three_batches(cluster, "plain", {}),
        ]
    table = pa.concat_tables(map(_table, batches), promote_options="permissive")
    assert table["value"].to_pylist() == [{"cents": 1}, None, {"cents": 2}]
    assert {str(batch.schema.field("key").type) for batch in batches} == {"binary"}
    assert pa.Table.from_batches(plain).num_rows == 3


def _table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


@pytest.mark.parametrize("timestamp_ms", [0, 2**62, 1_800_000_000_000_000_000])
def test_timestamps_of_any_unit_are_kept(timestamp_ms: int):
    """A producer that counts nanoseconds has its records in the far future."""
    column = batch_of(b"", timestamp_ms=timestamp_ms).to_arrow().column("timestamp")
    assert column.cast(pa.int64()).to_pylist() == [timestamp_ms]


def test_numbers_that_are_none():
    """NaN stays, None is null."""
    first, second = batch_of(math.nan, None).to_arrow().column("value").to_pylist()
    assert math.isnan(first)
    assert second is None
