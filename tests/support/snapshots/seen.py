"""What snapshots alone say of every record: the markers may be gone, the outcome must not."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable

from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.core.snapshots.recovery import Snapshot, SnapshotTable
from stilltide.pipeline.drivers.snapshots.client import SnapshotLine
from stilltide.schemas.headers import txn_header
from stilltide.schemas.topics import TXN_SNAPSHOTS, system_partition
from stilltide.schemas.values import TopicPartition, TxnId
from tests.support.snapshots.client import read_all
from tests.support.snapshots.recovered import recover

TAKE_S = 180.0


async def seen_by_snapshots(
    connector: Connector, topics: Iterable[str], partition_count: int
) -> dict[str, int]:
    """How often each value is visible once a snapshot of every partition was taken."""
    data = [TopicPartition(topic, it) for topic in topics for it in range(partition_count)]
    admin = connector.admin()
    described = await admin.describe_topics([*topics, TXN_SNAPSHOTS])
    await admin.close()
    async with SnapshotLine(connector, "check", timeout_s=TAKE_S) as line:
        await asyncio.gather(*map(line.take, data))
    seen: defaultdict[str, int] = defaultdict(int)
    for one in data:
        number = system_partition(one, described[TXN_SNAPSHOTS].partition_count)
        table = await _table(connector, number)
        snapshot = table.snapshot(one, described[one.topic].topic_id)
        assert snapshot is not None, one
        for record in await read_all(connector, one):
            if _visible(snapshot, record):
                assert record.value is not None
                seen[record.value.decode()] += 1
    return seen


async def _table(connector: Connector, number: int) -> SnapshotTable:
    found = await read_all(connector, TopicPartition(TXN_SNAPSHOTS, number))
    return recover(number, ((it.offset, it.key, it.value) for it in found))


def _visible(snapshot: Snapshot, record: Record) -> bool:
    header = txn_header(record.headers)
    assert header is not None, record
    visible = snapshot.visible(record.offset, *TxnId.from_bytes(header))
    assert visible is not None, f"undecided when every transaction has ended: {record}"
    return visible
