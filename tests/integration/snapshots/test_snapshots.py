"""Snapshots of aborted transactions on a real broker (E), whose cleaner runs all the time."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.client import Subscription
from stilltide.pipeline.drivers.snapshots.owner import SnapshotOwner
from stilltide.schemas.coordinator import markers
from stilltide.schemas.snapshots.snapshots import end_key
from stilltide.schemas.topics import TXN_MARKERS, TXN_SNAPSHOTS, TopicSpec, system_topics
from stilltide.schemas.values import EndOffset, TopicPartition, TxnId
from tests.support.processes.child import Child
from tests.support.processes.operator import Operator, get
from tests.support.processes.worker_process import ModuleWorker, running_worker
from tests.support.snapshots.client import (
    WAIT_S,
    Sent,
    SnapshotClient,
    eventually,
    read_all,
    snapshot_client,
)
from tests.support.snapshots.lone_writer import (
    COORDINATORS,
    EAGER,
    PARTITIONS,
    FastClock,
    HoldingConnector,
    lone_writer,
)

CHANGES_MAX = 20

ORPHAN = TxnId(0, 2**40)
"""A transaction that nobody registered: only a snapshot decides its records."""

FEW = 12
"""Aborted transactions; twice as many fill a part of the lone writer."""

RECORDS_MIN = 3
"""Of a snapshot of the lone writer: a part, the end, and `*`."""

CLEANED = {
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "max.compaction.lag.ms": "1",
    "delete.retention.ms": "0",
}
"""Has superseded records removed within seconds of the next append."""

SETTINGS = {
    "coordinators": COORDINATORS,
    "partitions": PARTITIONS,
    "snapshot_changes_max": CHANGES_MAX,
    "snapshot_interval_ms": 600_000,
    "snapshot_part_bytes_max": 1024,
    "marker_retention_ms": 0,
}


@pytest.fixture(scope="module")
def bootstrap(empty_kafka: LocalCluster) -> str:
    """Address of a broker whose system topics are the module's own."""
    asyncio.run(create_system_topics(empty_kafka.bootstrap))
    return empty_kafka.bootstrap


async def create_system_topics(bootstrap: str) -> None:
    """As a worker would, but with a busy cleaner."""
    specs = system_topics(coordinators=COORDINATORS, partitions=PARTITIONS)
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    await admin.ensure_topics(
        [
            TopicSpec(it.name, it.partition_count, {**it.configs, **CLEANED})
            if it.name in {TXN_MARKERS, TXN_SNAPSHOTS}
            else it
            for it in specs
        ]
    )
    await admin.close()


@pytest.fixture(scope="module")
def worker(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleWorker]:
    """A worker that serves."""
    log_path = tmp_path_factory.mktemp("worker") / "worker.log"
    with running_worker(bootstrap, log_path, "--instance-id", "snapshots", **SETTINGS) as made:
        yield made


@pytest.fixture
async def client(bootstrap: str, worker: ModuleWorker) -> AsyncIterator[SnapshotClient]:
    """Transactions on a topic of the test's own."""
    connector = KafkaConnector(KafkaConfig(bootstrap))
    data = TopicPartition(f"orders-{uuid4().hex[:8]}", 0)
    admin = connector.admin()
    await admin.ensure_topics([TopicSpec(data.topic, 1)])
    await admin.close()
    async with snapshot_client(connector, data, partitions=PARTITIONS) as made:
        yield made


async def test_snapshots_come_by_trigger_and_on_request(
    client: SnapshotClient, worker: ModuleWorker, bootstrap: str, tmp_path: Path
):
    """E7: after so many changes, and when the command asks; markers go, and a crash costs none."""
    async with asyncio.TaskGroup() as group:
        aborting = [group.create_task(client.aborted(it % 2)) for it in range(CHANGES_MAX)]
    aborted = [it.result() for it in aborting]

    async def is_there() -> bool:
        return client.data in (await client.table()).ends and not await client.outcomes()

    await eventually(is_there)
    still_open, committed = await client.write(0), await client.committed(1)
    (row,) = await Operator(bootstrap, tmp_path).ask(f"snapshot take {client.data.topic}")
    assert row == {
        "topic": client.data.topic,
        "partition": 0,
        "max_read_position": still_open.offset,
        "behind": 2,
        "aborted": CHANGES_MAX,
    }
    assert await client.seen(*aborted) == [False] * CHANGES_MAX
    assert await client.seen(still_open, committed) == [None, None]
    await client.end(still_open, committed=True)
    await asyncio.to_thread(worker.kill)
    await asyncio.to_thread(worker.start)
    last = await client.aborted(1)
    assert (await client.take()).aborted_count == CHANGES_MAX + 1
    seen = await client.seen(*aborted, last, still_open, committed)
    assert seen == [False] * (CHANGES_MAX + 1) + [True, True]
    _, ready = await get(worker, "/readyz")
    assert "snapshot writers: [0]" in ready
    _, metrics = await get(worker, "/metrics")
    assert re.search(r'stilltide_snapshot_taken_total\{cluster="a",partition="0"\} [1-9]', metrics)


async def die_after(bootstrap: str, records_max: int) -> None:
    """Another process takes the partition over, and is killed in its first write."""
    module = "tests.support.snapshots.lone_writer"
    async with Child.of_module(module, bootstrap, str(records_max)) as child:
        assert await child.ended(WAIT_S) == -signal.SIGKILL


@pytest.mark.slow
async def test_a_writer_killed_between_any_two_records_leaves_nothing_torn(
    client: SnapshotClient, bootstrap: str
):
    """E3, E4: whatever part of a snapshot lies in the log, the next writer begins from a whole."""
    aborted: list[Sent] = []
    await client.take()
    for records_max in range(2 * FEW):
        async with asyncio.TaskGroup() as group:
            aborting = [group.create_task(client.aborted(it % 2)) for it in range(FEW)]
        aborted += [it.result() for it in aborting]
        before = (await client.snapshot()).end
        await die_after(bootstrap, records_max)
        all_of_it = (await client.snapshot()).end != before
        assert (await client.take()).aborted_count == len(aborted)
        assert set(await client.seen(*aborted)) == {False}
        if all_of_it:
            assert records_max > RECORDS_MIN
            return
    raise AssertionError("a snapshot of the lone writer has too many records")


async def test_an_older_writer_never_overwrites_a_newer_one(client: SnapshotClient, bootstrap: str):
    """E3: it was held in front of its write; the broker refuses it, and it ends."""
    connector = HoldingConnector(KafkaConfig(bootstrap))
    first = await client.aborted()
    async with lone_writer(connector, EAGER) as older:
        await asyncio.wait_for(connector.waits.wait(), WAIT_S)
        second = await client.aborted(1)
        taken = await client.take()  # the worker's writer is fenced, and fences the older one
        assert taken.aborted_count == 2
        newer = (await client.snapshot()).end
        connector.may_write.set()

        async def has_ended() -> bool:
            return not older.serving

        await eventually(has_ended)
        assert (await client.snapshot()).end == newer
    assert await client.seen(first, second) == [False, False]


async def test_a_trimmed_transaction_stays_hidden(client: SnapshotClient):
    """E5: its id leaves with its records; a zombie's record that lands later is below the floor."""
    aborted = [await client.aborted(it % 2) for it in range(FEW)]
    for _ in range(2):  # the low watermarks of one probe go with the end of the next
        await client.take()
    kept = await client.committed()
    assert (await client.take()).aborted_count == FEW
    await client.admin.delete_records({client.data: kept.offset})
    await client.take()
    assert (await client.take()).aborted_count == 0
    end = (await client.snapshot()).end
    assert end.unsealed == {}
    assert end.part_checksums == ()
    assert end.floors_valid_from <= kept.offset
    zombie = aborted[0]._replace(offset=await client.append(aborted[0].txn))
    late = await client.aborted()
    assert await client.seen(zombie, kept) == [False, True]
    await client.take()
    assert await client.seen(zombie, kept, late) == [False, True, False]


async def test_a_new_subscription_on_a_long_history_sees_exactly_what_committed(
    client: SnapshotClient,
):
    """D4, D5: from the end, its parts and the markers since; an orphan waits for the next end."""
    history = [await client.committed()]
    aborted: list[Sent] = []
    for _ in range(4):
        async with asyncio.TaskGroup() as group:
            aborting = [group.create_task(client.aborted(it % 2)) for it in range(CHANGES_MAX)]
        aborted += [it.result() for it in aborting]
        history.append(await client.committed(1))
    assert (await client.take()).aborted_count == len(aborted)
    kept = len(await client.outcomes())

    async def is_compacted() -> bool:
        keys = [it.key for it in await read_all(client.connector, client.snapshots)]
        return keys.count(end_key(client.data)) <= 1

    await cleaned(client, is_compacted)
    history += [await client.committed(it % 2) for it in range(3)]
    zombie = await client.append(aborted[0].txn)
    orphan = Sent(ORPHAN, await client.append(ORPHAN))
    history += [orphan, await client.committed()]
    subscription = Subscription([client.data.topic], group="new", connector=client.connector)
    async with subscription as orders:
        ends = {client.data: EndOffset(history[-1].offset + 1)}
        seen = [Sent(it.txn or ORPHAN, it.offset) async for it in orders.read_to(ends)]
        counts = orders.statistics()[client.data]
    assert seen == history
    assert counts.hidden == len({*aborted, Sent(aborted[0].txn, zombie)})
    assert kept == 0
    assert counts.outcomes <= len(history)


async def test_a_deleted_topic_leaves_nothing_behind(client: SnapshotClient, bootstrap: str):
    """E8: no part, no end, no marker, once the cleaner has passed."""
    for it in range(2 * FEW):
        await client.aborted(it % 2)
    await client.take()  # the worker's writer has no change left to write, so that it fences nobody
    connector = KafkaConnector(KafkaConfig(bootstrap))
    admin = AdminClient({"bootstrap.servers": bootstrap})

    async def is_gone() -> bool:
        keys = [it.key or b"" for it in await read_all(connector, client.snapshots)]
        markers = [it.key or b"" for it in await read_all(connector, client.markers)]
        return not any(client.data.topic.encode() in key for key in keys + markers)

    async with lone_writer(connector, EAGER, FastClock(200)) as writer:
        await client.aborted()
        await client.write(0)

        async def has_parts() -> object:
            table = await client.table()
            return client.data in table.ends and table.ends[client.data].part_checksums

        await eventually(has_parts)
        await asyncio.to_thread(admin.delete_topics([client.data.topic])[client.data.topic].result)
        await cleaned(client, lambda: gone_or_fenced(is_gone, writer))
    while (
        not await is_gone()
    ):  # the worker's writer has seen the deletion meanwhile, and has fenced
        async with lone_writer(connector, EAGER, FastClock(200)) as writer:
            await eventually(lambda writer=writer: serves(writer))
            await cleaned(client, lambda writer=writer: gone_or_fenced(is_gone, writer))


async def serves(writer: SnapshotOwner) -> bool:
    """Whether the writer has begun and was not fenced."""
    return writer.serving


async def gone_or_fenced(is_gone: Callable[[], Awaitable[bool]], writer: SnapshotOwner) -> bool:
    """Whether there is nothing to wait for, with this writer."""
    return not writer.serving or await is_gone()


async def cleaned(client: SnapshotClient, holds: Callable[[], Awaitable[object]]) -> None:
    """Lets the cleaner work until something holds.

    A segment is cleaned only when another one has begun, so a little is appended before each look.
    """
    nowhere = TopicPartition("nowhere", 0)
    writer = client.connector.writer("test-roller")

    async def holds_now() -> object:
        for data, key in (
            (client.snapshots, end_key(nowhere)),
            (client.markers, markers.encode_key(nowhere, TxnId(0, 0))),
        ):
            writer.append(data, None, lambda *_: None, key=key)
        await writer.flush(WAIT_S)
        return await holds()

    try:
        await eventually(holds_now)
    finally:
        await writer.close()
