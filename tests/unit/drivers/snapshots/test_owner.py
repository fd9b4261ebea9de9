"""Snapshot writers with their coordinators on the memory broker (E)."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.errors import FatalError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits
from stilltide.pipeline.drivers.snapshots import owner as module
from stilltide.pipeline.errors import (
    MarkersTrimmedError,
    RefusedError,
    SnapshotPartError,
)
from stilltide.schemas.coordinator.markers import Marker, encode_key, encode_value
from stilltide.schemas.errors import DecodeError, StilltideError
from stilltide.schemas.framing import decode_value
from stilltide.schemas.service.envelopes import Refused, Request
from stilltide.schemas.snapshots.requests import decode_response, encode_request
from stilltide.schemas.snapshots.snapshots import part_key
from stilltide.schemas.topics import (
    PREFIX,
    SNAPSHOT_REQUESTS,
    TXN_MARKERS,
    TXN_RESPONSES,
    TXN_SNAPSHOTS,
    TopicSpec,
    system_partition,
    system_topics,
)
from stilltide.schemas.values import EndOffset, Offset, TopicPartition, TxnId
from tests.support.coordinator.worker_memory import PARTITIONS, MemoryWorker, until
from tests.support.snapshots.client import SnapshotClient, eventually, snapshot_client

COORDINATORS = 2
ORDERS = TopicPartition("orders", 0)

pytestmark = pytest.mark.topics(TopicSpec(ORDERS.topic, 1))
SERVING = system_partition(ORDERS, PARTITIONS)
MARKERS = TopicPartition(TXN_MARKERS, SERVING)
SNAPSHOTS = TopicPartition(TXN_SNAPSHOTS, SERVING)
TRANSACTIONAL_ID = f"{PREFIX}snapshots-{SERVING}"

CLIENT = bytes(range(16))

ON_REQUEST = SnapshotLimits(changes_max=1_000_000, interval_ms=600_000, part_bytes_max=30)
"""No snapshot comes by itself, and a part holds few ids."""


def made_worker(broker: MemoryBroker, limits: SnapshotLimits = ON_REQUEST) -> MemoryWorker:
    """A worker, not yet entered."""
    return MemoryWorker(
        MemoryConnector(broker),
        coordinators=COORDINATORS,
        snapshots=limits,
    )


@pytest.fixture
async def worker(broker: MemoryBroker) -> AsyncIterator[MemoryWorker]:
    """A worker that takes snapshots on request only."""
    async with made_worker(broker) as made:
        yield made


@pytest.fixture
async def client(broker: MemoryBroker, worker: MemoryWorker) -> AsyncIterator[SnapshotClient]:
    """Who writes to the data partition, and asks for snapshots of it."""
    async with snapshot_client(MemoryConnector(broker), ORDERS, partitions=PARTITIONS) as made:
        yield made


def count(worker: MemoryWorker, name: str) -> float | None:
    """A sample of the writer in whose care the data partition is."""
    labels = {"cluster": "test", "partition": str(SERVING)}
    return worker.metrics.registry.get_sample_value(f"stilltide_snapshot_{name}", labels)


async def failure(worker: MemoryWorker) -> StilltideError:
    """What the writer of the data partition has ended with."""
    await until(lambda: worker.ends)
    error = worker.ends[f"snapshots {SERVING}"].error
    assert isinstance(error, StilltideError)
    return error


async def test_a_snapshot_stands_for_the_markers_it_has_absorbed(client: SnapshotClient):
    """D4, E1: up to the first open transaction everything is decided without a marker."""
    committed, aborted = await client.committed(0), await client.aborted(1)
    still_open = await client.write(0)
    taken = await client.take()
    assert (taken.topic_id, taken.aborted_count) == (await client.topic_id(), 1)
    assert taken.max_read_position == still_open.offset
    assert await client.seen(committed, aborted, still_open) == [True, False, None]
    assert await client.outcomes() == []
    await client.end(still_open, committed=True)
    taken = await client.take()
    assert taken.max_read_position == still_open.offset + 1
    assert await client.seen(committed, aborted, still_open) == [True, False, True]


async def absorbed(client: SnapshotClient) -> bool:
    """Whether no outcome is left in the marker partition."""
    return not await client.outcomes()


@pytest.mark.parametrize(
    "limits",
    [
        SnapshotLimits(interval_ms=1, marker_retention_ms=0),
        SnapshotLimits(changes_max=1, interval_ms=600_000, marker_retention_ms=0),
    ],
)
async def test_a_snapshot_comes_by_itself(broker: MemoryBroker, limits: SnapshotLimits):
    """E7: after some time or so many changes, without anybody asking; the markers go."""
    connector = MemoryConnector(broker)
    async with (
        made_worker(broker, limits),
        snapshot_client(connector, ORDERS, partitions=PARTITIONS) as client,
    ):
        aborted = await client.aborted()
        await eventually(lambda: absorbed(client))
        assert await client.seen(aborted) == [False]


async def test_the_first_registration_makes_the_first_snapshot(broker: MemoryBroker):
    """E7: while the first transaction of a partition is still open, a snapshot says so far."""
    connector = MemoryConnector(broker)
    async with (
        made_worker(broker, SnapshotLimits(interval_ms=1)),
        snapshot_client(connector, ORDERS, partitions=PARTITIONS) as client,
    ):
        still_open = await client.write(0)
        await until(lambda: broker.log(SNAPSHOTS).end > 0)  # pyright: ignore[reportOptionalMemberAccess]
        assert await client.seen(still_open) == [None]
        assert (await client.snapshot()).max_read_position == still_open.offset


async def test_many_askers_share_a_probe(client: SnapshotClient, worker: MemoryWorker):
    """E7: those that come during a probe share the next one, and all are answered."""
    await client.aborted()
    taken = await asyncio.gather(*(client.take() for _ in range(50)))
    assert len(set(taken)) == 1
    assert count(worker, "answers_total") == 50
    assert count(worker, "taken_total") == 2  # of the first one, and of the others


async def test_figures_follow_the_writer(
    broker: MemoryBroker, client: SnapshotClient, worker: MemoryWorker
):
    """What is known, how far behind the last snapshot was, how far the markers were trimmed."""
    await client.aborted()
    await client.write(0)
    await client.take()
    stats = worker.snapshots[SERVING].stats()
    assert (stats.data_partitions, stats.aborted_count, stats.requests_held) == (1, 1, 0)
    assert stats.max_read_position_lag == 1
    await until(lambda: worker.snapshots[SERVING].stats().markers_trimmed_to > 0)
    assert stats.markers_read_to >= stats.markers_trimmed_to
    assert count(worker, "written_bytes_total") == sum(
        len(it.key or b"") + len(it.value or b"") for it in broker.records(SNAPSHOTS)
    )


async def test_a_partition_that_is_not_there_is_refused(
    worker: MemoryWorker, client: SnapshotClient
):
    """Neither an unknown topic nor a partition beyond the last one, nor what cannot be a topic."""
    for data in (
        TopicPartition("nothing", 0),
        TopicPartition(ORDERS.topic, 7),
        TopicPartition("no topic", 0),
    ):
        async with snapshot_client(client.connector, data, partitions=PARTITIONS) as other:
            with pytest.raises(RefusedError, match="no snapshot was taken"):
                await other.take()
    assert (await client.table()).ends == {}
    assert [it.stats().data_partitions for it in worker.snapshots] == [0, 0]


def ask_raw(broker: MemoryBroker, partition: int, request: Request) -> None:
    """Sends a request as a client would."""
    target = TopicPartition(SNAPSHOT_REQUESTS, partition)
    broker.append(target, request.client_id, encode_request(request), None)


async def test_a_writer_serves_its_own_data_partitions_only(
    broker: MemoryBroker, worker: MemoryWorker
):
    """A client that counts partitions differently is told, and no second snapshot begins."""
    ask_raw(broker, 1 - SERVING, Request(CLIENT, 1, 0, 0, ORDERS))
    answers = TopicPartition(TXN_RESPONSES, 0)
    await until(lambda: broker.records(answers))
    (record,) = broker.records(answers)
    assert decode_response(decode_value(record.value)[0]).answer == Refused(
        f"snapshot writer {SERVING} of {PARTITIONS} serves {ORDERS}, "
        f"and this is writer {1 - SERVING}"
    )


async def test_a_request_that_comes_again_is_answered_once(
    broker: MemoryBroker, worker: MemoryWorker, client: SnapshotClient
):
    """C1b: a client repeats what was not answered yet."""
    broker.hold(TXN_SNAPSHOTS)
    await client.aborted()
    for _ in range(3):
        ask_raw(broker, SERVING, Request(CLIENT, 1, 0, 0, ORDERS))
    await until(lambda: count(worker, "requests_total") == 3)
    broker.release()
    await client.take()
    assert count(worker, "answers_total") == 2


async def test_requests_are_bounded(
    broker: MemoryBroker,
    worker: MemoryWorker,
    client: SnapshotClient,
    monkeypatch: pytest.MonkeyPatch,
):
    """What is beyond the bound is dropped, and served when it is repeated."""
    monkeypatch.setattr(module, "REQUESTS_HELD_MAX", 1)
    broker.hold(TXN_SNAPSHOTS)
    await client.aborted()
    asking = [asyncio.create_task(client.take()) for _ in range(2)]
    await until(lambda: count(worker, "requests_total") == 2)
    assert worker.snapshots[SERVING].stats().requests_held == 1
    broker.release()
    first, second = await asyncio.gather(*asking)
    assert first == second


async def test_a_writer_that_was_fenced_begins_again(
    broker: MemoryBroker, worker: MemoryWorker, client: SnapshotClient
):
    """B4: the fence may be the late one of a dead process; who asked is answered all the same."""
    first = await client.aborted(0)
    await client.take()
    broker.transactions.fence(TRANSACTIONAL_ID)
    second = await client.aborted(1)
    taken = await client.take()
    assert taken.aborted_count == 2
    assert count(worker, "fenced_total") == 1
    assert await client.seen(first, second) == [False, False]


async def test_a_writer_that_was_replaced_ends(
    broker: MemoryBroker, worker: MemoryWorker, client: SnapshotClient
):
    """Another worker has the partition: nothing of this one is written, and it does not return."""
    worker.revoke()
    broker.transactions.fence(TRANSACTIONAL_ID)
    await client.aborted()
    asking = asyncio.create_task(client.take())
    await until(lambda: not worker.snapshots[SERVING].serving)
    assert not worker.ends
    assert broker.records(SNAPSHOTS) == ()
    asking.cancel()


async def test_a_write_of_which_nobody_knows_ends_the_machine(
    broker: MemoryBroker, worker: MemoryWorker, client: SnapshotClient
):
    """E3: the next machine begins from what the broker has; nothing is counted twice."""
    aborted = [await client.aborted(it % 2) for it in range(30)]
    broker.reports.lose(TXN_SNAPSHOTS)
    taken = await client.take()
    assert taken.aborted_count == 30
    assert count(worker, "failed_total") == 1
    assert await client.seen(*aborted) == [False] * 30


async def test_an_outage_is_ridden_out(
    broker: MemoryBroker, worker: MemoryWorker, client: SnapshotClient
):
    """A request that was held meanwhile is served when the broker is back."""
    aborted = await client.aborted()
    broker.hold(TXN_SNAPSHOTS)
    asking = asyncio.create_task(client.take())
    written = len(broker.records(MARKERS)) + COORDINATORS
    await until(lambda: len(broker.records(MARKERS)) == written)
    for _ in range(100):  # the end of the markers is read, and the write has begun
        await asyncio.sleep(0)
    broker.down()
    broker.release()
    await until(lambda: not worker.snapshots[SERVING].serving)
    broker.up()
    assert (await asking).aborted_count == 1
    assert await client.seen(aborted) == [False]


async def test_the_next_writer_goes_on_from_parts_and_end(
    broker: MemoryBroker, worker: MemoryWorker, client: SnapshotClient
):
    """E4, E6: of another worker, with what was sealed; parts are not written again."""
    aborted = [await client.aborted(it % 2) for it in range(30)]
    await client.take()
    sealed = (await client.snapshot()).end
    assert len(sealed.part_checksums) > 1
    worker.revoke()
    async with made_worker(broker) as other:
        aborted.append(await client.aborted())
        broker.topics[TXN_SNAPSHOTS].compact()
        assert (await client.take()).aborted_count == 31
        assert count(other, "parts_total") in {0, 1}
    assert (await client.snapshot()).end.part_checksums[: len(sealed.part_checksums)] == (
        sealed.part_checksums
    )
    assert await client.seen(*aborted) == [False] * 31


async def next_failure(broker: MemoryBroker) -> StilltideError:
    """What the writer of the next worker ends with."""
    async with made_worker(broker) as worker:
        return await failure(worker)


async def test_a_part_that_is_missing_stops_the_worker(
    broker: MemoryBroker, client: SnapshotClient
):
    """E4: with its number and place; nothing is taken for an empty set."""
    for it in range(30):
        await client.aborted(it % 2)
    await client.take()
    broker.append(SNAPSHOTS, part_key(ORDERS, 1), None, None)
    error = await next_failure(broker)
    assert isinstance(error, SnapshotPartError)
    assert (error.topic, error.partition) == (TXN_SNAPSHOTS, SERVING)
    assert "part 1 of the snapshot of orders/0 is missing" in error.primary


async def test_markers_that_nobody_has_absorbed_stop_the_worker(
    broker: MemoryBroker, client: SnapshotClient
):
    """E4: records were deleted by hand; the error names where the log begins."""
    await client.aborted()
    broker.delete_records(MARKERS, Offset(1))
    error = await next_failure(broker)
    assert isinstance(error, MarkersTrimmedError)
    assert (error.topic, error.partition, error.offset) == (TXN_MARKERS, SERVING, 1)


async def test_markers_that_were_deleted_with_their_topic_stop_the_worker(
    broker: MemoryBroker, worker: MemoryWorker, client: SnapshotClient
):
    """E4: a marker topic that was created anew ends before what snapshots have absorbed."""
    await client.aborted()
    await client.take()
    await worker.owners.stop()
    broker.delete_topic(TXN_MARKERS)
    error = await next_failure(broker)
    assert isinstance(error, MarkersTrimmedError)
    assert "ends before" in error.primary


def mark_again(broker: MemoryBroker) -> None:
    """A damaged marker, and behind it the marker of the same transaction."""
    end = EndOffset(1)
    marker = Marker(ORDERS, TxnId(0, 7), False, EndOffset(0), end, 0, bytes(16))
    key = encode_key(ORDERS, marker.txn)
    broker.append(MARKERS, key, b"?", None)
    broker.append(MARKERS, key, encode_value(marker), None)


async def test_a_marker_that_was_written_again_before_is_passed_over(broker: MemoryBroker):
    """B10: of each key the last value counts."""
    connector = MemoryConnector(broker)
    async with MemoryWorker(connector, snapshots=SnapshotLimits()):
        """The system topics are made."""
    mark_again(broker)
    async with MemoryWorker(connector, snapshots=SnapshotLimits()) as made:
        await until(lambda: made.snapshots[SERVING].stats().markers_read_to >= 2)
        assert not made.ends


async def test_a_marker_that_was_written_again_meanwhile_ends_the_writer(
    broker: MemoryBroker, worker: MemoryWorker
):
    """B10: a barrier of this ownership may lie between, so that a snapshot would lack the abort."""
    mark_again(broker)
    error = await failure(worker)
    assert isinstance(error, DecodeError)
    assert (error.topic, error.partition, error.offset) == (TXN_MARKERS, SERVING, 0)


async def test_snapshots_in_a_topic_that_is_not_compacted_are_refused(broker: MemoryBroker):
    """A worker does not begin where parts would be deleted by age."""
    specs = system_topics(coordinators=COORDINATORS, partitions=PARTITIONS)
    wrong = TopicSpec(TXN_SNAPSHOTS, PARTITIONS, {"cleanup.policy": "delete"})
    broker.create_topic(wrong)
    with pytest.raises(FatalError, match=r"cleanup\.policy"):
        await MemoryConnector(broker).admin().ensure_topics(specs)
