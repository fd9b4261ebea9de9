"""What Faust's consumer runs on, and how long its fetches wait."""

import struct
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.protocol.types import Int32
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition
from faust.types import TP
from kafka.record.default_records import DefaultRecordBatchBuilder

from stilltide.pipeline.agents.apps import cluster_app
from stilltide.pipeline.agents.transport import (
    FETCH_WAIT_MS,
    REST_AFTER_S,
    REST_FETCH_WAIT_MS,
    DecodableRecords,
    FetchWait,
)
from stilltide.pipeline.config.settings import Settings
from tests.support.foreign_producer import HeaderName


async def test_requests_cross_no_thread(tmp_path: Path):
    """What Faust would call on a thread of its consumer's is called by the one that asks."""

    async def nothing(*_: object) -> None: ...

    def where() -> int:
        return threading.get_ident()

    app = cluster_app(Settings(bootstrap_servers="nowhere:1", cluster="a"), tmp_path)
    consumer: Any = app.transport.create_consumer(
        nothing, on_partitions_revoked=nothing, on_partitions_assigned=nothing
    )
    assert await consumer._thread.call_thread(where) == threading.get_ident()


async def test_a_partition_whose_position_is_not_known_does_not_end_the_worker(tmp_path: Path):
    """Faust's check for partitions that stand still bears a position that is being looked up."""

    async def nothing(*_: object) -> None: ...

    app = cluster_app(Settings(bootstrap_servers="nowhere:1", cluster="a"), tmp_path)
    consumer: Any = app.transport.create_consumer(
        nothing, on_partitions_revoked=nothing, on_partitions_assigned=nothing
    )
    thread = consumer._thread
    client = thread._create_worker_consumer(app.transport)
    thread._consumer = client
    client._fetcher = SimpleNamespace(_subscriptions=client._subscription)  # made by `start`
    thread.time_started = 100.0
    now_s = 101.0
    partition = TopicPartition("requests", 0)
    thread.verify_event_path(now_s, TP(*partition))  # not assigned
    client._subscription.assign_from_user({partition})
    state = client._subscription.subscription.assignment.state_value(partition)
    state.timestamp = now_s * 1000  # it was fetched from
    state.await_reset(-2)  # and its offset was out of range
    thread.verify_event_path(now_s, TP(*partition))
    thread.verify_event_path(now_s, TP("requests", 1))  # another member's by now


@pytest.mark.parametrize("session_s", [6.0, 10.0, 60.0])
def test_a_connection_that_passes_nothing_is_given_up(tmp_path: Path, session_s: float):
    """A request fails within 15 s, and the time for which a broker may keep a member waiting."""
    settings = Settings(bootstrap_servers="nowhere:1", cluster="a", session_timeout_s=session_s)
    conf = cluster_app(settings, tmp_path).conf
    rebalance_s = conf.broker_rebalance_timeout
    assert rebalance_s < conf.broker_request_timeout <= rebalance_s + 15
    assert conf.broker_session_timeout <= conf.broker_request_timeout
    assert conf.broker_request_timeout * 1000 > REST_FETCH_WAIT_MS


def test_fetches_wait_longer_at_rest():
    """Records end the rest at once; the rest begins some seconds after the last record."""
    now_s = 100.0
    wait: Any = FetchWait(lambda: now_s)

    def encoded_ms() -> int:
        return int.from_bytes(Int32.encode(wait), "big")

    assert encoded_ms() == FETCH_WAIT_MS
    now_s += REST_AFTER_S
    assert encoded_ms() == FETCH_WAIT_MS
    now_s += 0.1
    assert encoded_ms() == REST_FETCH_WAIT_MS
    wait.records_came()
    assert encoded_ms() == FETCH_WAIT_MS


def batch_bytes(offset: int, *names: bytes) -> bytes:
    """A batch of records from an offset on, each with a header of one of the names."""
    batch: Any = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 10_000)
    for at, name in enumerate(names):
        batch.append(at, 1000, None, b"%d" % (offset + at), [(HeaderName.of(name), b"v")])
    return struct.pack(">q", offset) + bytes(batch.build())[8:]


def test_a_batch_with_a_name_that_is_not_utf_8_is_passed_over():
    """D9: the records of other batches are taken, and the position goes on behind all of them."""
    odd = batch_bytes(2, b"c", b"\xdf", b"d")
    fetched = MemoryRecords(batch_bytes(0, b"a", b"b") + odd + batch_bytes(5, b"e"))
    tp = TopicPartition("t", 0)
    records: Any = DecodableRecords(tp, fetched, [], 1, None, None, True, 0)
    assert [it.value for it in records] == [b"1", b"5"]
    assert records.next_fetch_offset == 6
