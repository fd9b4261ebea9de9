"""Repairs on the memory broker: what is found, what is refused, and what is right afterwards."""

from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import TransactionClient
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits
from stilltide.pipeline.drivers.repair.repairing import find, repair
from stilltide.pipeline.drivers.snapshots.client import SnapshotLine
from stilltide.schemas.coordinator import markers
from stilltide.schemas.headers import EntryStamp
from stilltide.schemas.replication.positions import (
    BeatKey,
    LastErrorKey,
    encode_beat_key,
    encode_last_error_key,
)
from stilltide.schemas.snapshots.snapshots import STAR_KEY, encode_part, end_key, part_key
from stilltide.schemas.topics import (
    REPLICATION_POSITIONS,
    TXN_LOG,
    TXN_MARKERS,
    TXN_SNAPSHOTS,
    TopicSpec,
    system_partition,
)
from stilltide.schemas.values import ClusterName, Offset, TopicPartition, TxnId
from tests.support.coordinator.worker_memory import PARTITIONS, MemoryWorker, until

ORDERS = TopicPartition("orders", 0)

pytestmark = pytest.mark.topics(TopicSpec(ORDERS.topic, 1))
SERVING = system_partition(ORDERS, PARTITIONS)
LOG = TopicPartition(TXN_LOG, 0)
MARKERS = TopicPartition(TXN_MARKERS, SERVING)
SNAPSHOTS = TopicPartition(TXN_SNAPSHOTS, SERVING)
GARBAGE = b"\xff\xff"
NOW_MS = 10**12


@pytest.fixture
async def worker(connector: MemoryConnector) -> AsyncIterator[MemoryWorker]:
    """A worker that serves until its test damages something."""
    async with MemoryWorker(connector, snapshots=SnapshotLimits()) as made:
        yield made


async def test_a_damaged_entry_is_skipped_and_the_rest_is_kept(
    broker: MemoryBroker, connector: MemoryConnector, worker: MemoryWorker
):
    """B10: a transaction that was open before the damage is open afterwards, and commits."""
    async with TransactionClient(connector=connector, resend_s=0.1) as client:
        txn = client.transaction()
        await txn.__aenter__()
        await txn.send(ORDERS.topic, b"before")
        epoch = worker.coordinators[0].stats().log.epoch
        headers = EntryStamp(Offset(epoch), 1 << 40).to_headers()
        offset = broker.append(LOG, None, GARBAGE, headers)
        await until(lambda: worker.ends)
        error = str(worker.ends["coordinator 0"].error)
        assert error.count("stilltide repair stilltide.txn-log") == 1
        admin = connector.admin()
        (damage,) = await find(connector, admin, TXN_LOG, None, NOW_MS)
        assert (damage.record.offset, damage.repairable) == (offset, True)
        assert [one.record.offset for one in await repair(connector, admin, [damage], NOW_MS)] == [
            offset
        ]
        assert await find(connector, admin, TXN_LOG, None, NOW_MS) == []
        assert (await admin.start_offsets([LOG]))[LOG] > offset
        worker.owners.retry_now()
        await txn.__aexit__(None, None, None)
        assert txn.state == "committed"
        await admin.close()


async def committed(connector: MemoryConnector) -> None:
    """A transaction commits, and its marker is read by the snapshot writer."""
    async with TransactionClient(connector=connector) as client, client.transaction() as txn:
        await txn.send(ORDERS.topic, b"v")


async def test_a_marker_is_written_again(
    broker: MemoryBroker, connector: MemoryConnector, worker: MemoryWorker
):
    """The outcome that lies in front of the damage; the repaired partition is sound."""
    await committed(connector)
    await until(lambda: [it for it in broker.records(MARKERS) if not markers.is_barrier(it.key)])
    marker = next(it for it in broker.records(MARKERS) if not markers.is_barrier(it.key))
    broker.append(MARKERS, marker.key, GARBAGE, None)
    admin = connector.admin()
    (damage,) = await find(connector, admin, TXN_MARKERS, SERVING, NOW_MS)
    await repair(connector, admin, [damage], NOW_MS)
    assert broker.records(MARKERS)[-1][3:5] == (marker.key, marker.value)
    assert await find(connector, admin, TXN_MARKERS, None, NOW_MS) == []
    del worker


@pytest.mark.parametrize("has_records", [True, False])
async def test_the_only_marker_is_dropped_only_if_nobody_waits_for_it(
    broker: MemoryBroker, connector: MemoryConnector, worker: MemoryWorker, *, has_records: bool
):
    """A tombstone would leave records undecided for ever."""
    del worker
    txn = TxnId(0, 77)
    if has_records:
        broker.append(ORDERS, None, b"v", [("txn", txn.to_bytes())])
    broker.append(MARKERS, markers.encode_key(ORDERS, txn), GARBAGE, None)
    admin = connector.admin()
    (damage,) = await find(connector, admin, TXN_MARKERS, None, NOW_MS)
    assert damage.repairable is not has_records
    done = await repair(connector, admin, [damage], NOW_MS)
    assert len(done) == (0 if has_records else 1)
    assert len(await find(connector, admin, TXN_MARKERS, None, NOW_MS)) == has_records


@pytest.mark.parametrize("key", [end_key(ORDERS), STAR_KEY])
async def test_a_snapshot_is_written_again_only_if_the_markers_still_fit(
    broker: MemoryBroker, connector: MemoryConnector, worker: MemoryWorker, key: bytes
):
    """E4: markers that the earlier snapshot lacks must be in the log; else it is refused."""
    await committed(connector)
    async with SnapshotLine(connector, "test", timeout_s=10) as line:
        await line.take(ORDERS)
    await worker.owners.stop()
    assert any(it.key == key for it in broker.records(SNAPSHOTS))
    broker.append(SNAPSHOTS, key, GARBAGE, None)
    admin = connector.admin()
    (damage,) = await find(connector, admin, TXN_SNAPSHOTS, None, NOW_MS)
    assert damage.repairable
    last = broker.append(MARKERS, b"filler", b"", None)
    broker.delete_records(MARKERS, Offset(last + 1))
    (refused,) = await find(connector, admin, TXN_SNAPSHOTS, None, NOW_MS)
    assert "outcomes are missing" in refused.remedy.loses
    assert await repair(connector, admin, [damage], NOW_MS) == []
    await admin.close()


@pytest.mark.parametrize("exists", [True, False])
async def test_parts_without_an_end_are_shown_and_dropped_with_their_topic(
    broker: MemoryBroker, connector: MemoryConnector, worker: MemoryWorker, *, exists: bool
):
    """E4: an end cannot be made from parts; without the topic nothing depends on them."""
    del worker
    data = ORDERS if exists else TopicPartition("gone", 0)
    parts = [part_key(data, number) for number in (1, 2)]
    for key in parts:
        broker.append(SNAPSHOTS, key, encode_part({0: [1]}), None)
    admin = connector.admin()
    found = await find(connector, admin, TXN_SNAPSHOTS, None, NOW_MS)
    assert [it.record.key for it in found] == parts
    assert all("has no end" in it.why for it in found)
    assert all(it.repairable is not exists for it in found)
    await repair(connector, admin, found[:1], NOW_MS)
    left = await find(connector, admin, TXN_SNAPSHOTS, None, NOW_MS)
    assert len(left) == (2 if exists else 0)
    await admin.close()


async def test_foreign_records_are_no_damage(
    broker: MemoryBroker, connector: MemoryConnector, worker: MemoryWorker
):
    """They are passed over, so that nothing has to be done about them."""
    del worker
    for data in (MARKERS, SNAPSHOTS):
        broker.append(data, b"?", GARBAGE, None)
    admin = connector.admin()
    for data in (MARKERS, SNAPSHOTS, LOG):
        assert await find(connector, admin, data.topic, None, NOW_MS) == []


@pytest.mark.parametrize(
    "key",
    [
        encode_beat_key(BeatKey(ClusterName("a"), ClusterName("b"), 0)),
        encode_last_error_key(LastErrorKey(ClusterName("a"), ClusterName("b"))),
    ],
    ids=["beat", "last error"],
)
async def test_a_beat_or_last_error_is_dropped(
    broker: MemoryBroker, connector: MemoryConnector, worker: MemoryWorker, key: bytes
):
    """If it is damaged: the link writes its next beat anyway (I13); an error is for people (H9)."""
    del worker
    place = TopicPartition(REPLICATION_POSITIONS, 0)
    broker.append(place, key, GARBAGE, None)
    admin = connector.admin()
    (damage,) = await find(connector, admin, place.topic, None, NOW_MS)
    assert damage.repairable
    await repair(connector, admin, [damage], NOW_MS)
    assert await find(connector, admin, place.topic, None, NOW_MS) == []
    await admin.close()
