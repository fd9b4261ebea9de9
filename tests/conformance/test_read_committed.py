"""Everybody's read_committed on the same logs (F1, F2); README.md says who is wrong, and where."""

import random
import struct
from collections import Counter
from collections.abc import Iterator

import kafka.errors
import pytest
from aiokafka.errors import KafkaError as AioKafkaError
from py4j.java_gateway import JavaGateway

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.raw.fetch import KafkaBatchReader, parse_batches
from stilltide.schemas.native.transactions import Batch, Control
from stilltide.schemas.values import EndOffset, Offset, TopicPartition
from tests.conformance import clients
from tests.conformance.clients import Client
from tests.conformance.conftest import World
from tests.support.native.batch_bytes import encode_batch
from tests.support.native.open_transactions import AbortedEntry, OpenTransactions
from tests.support.native.transaction_index import TransactionIndex

ROUNDS = 3
"""From the log starts, then from anywhere."""


def rounds(
    world: World, client: Client, skipped: frozenset[TopicPartition] = frozenset()
) -> list[tuple[object, object]]:
    """What the client shows and what committed, from several starts."""
    rng = random.Random(2)
    found: list[tuple[object, object]] = []
    for round_ in range(ROUNDS):
        starts = world.starts(rng) if round_ else world.first()
        starts = {data: start for data, start in starts.items() if data not in skipped}
        ends = {data: world.ends[data] for data in starts}
        seen = client(world.bootstrap, starts, ends)
        found.append(({data: seen[data] for data in starts}, world.expected(starts)))
    return found


def with_emptied_markers(world: World) -> frozenset[TopicPartition]:
    """Partitions with a control batch whose record the cleaner has taken."""
    return frozenset(
        data
        for data, log in world.logs.items()
        if any(it.control and not it.offsets and it.base < log.stable for it in log.pieces)
    )


def test_the_histories_hold_every_shape(world: World):
    """What these tests are about is there: else they would prove nothing."""
    pieces = [(log, piece) for log in world.logs.values() for piece in log.pieces]
    shapes = {
        "emptied marker": any(it.control and not it.offsets for _, it in pieces),
        "empty data batch": any(it.control is None and not it.offsets for _, it in pieces),
        "marker without data": any(it.control and it.txn is None for _, it in pieces),
        "trimmed": any(log.start for log in world.logs.values()),
        "open at the end": any(log.open for log in world.logs.values()),
        "gap": any(len(it.offsets) <= it.last - it.base for _, it in pieces if it.offsets),
    }
    assert shapes == dict.fromkeys(shapes, True)
    fates = [fate for found in world.written.values() for fate in found.values()]
    assert min(fates.count(True), fates.count(False)) > 10


def test_ours(world: World):
    """F2: the batch filter, fed with raw fetches."""
    for shown, committed in rounds(world, clients.ours):
        assert shown == committed


def test_java(world: World, java_client: Client):
    """The consumer of Kafka itself."""
    for shown, committed in rounds(world, java_client):
        assert shown == committed


def test_librdkafka(world: World):
    """confluent-kafka, on which our readers stand."""
    for shown, committed in rounds(world, clients.librdkafka):
        assert shown == committed


def test_keys_of_control_records_are_read_as_java_reads_them(gateway: JavaGateway):
    """F2: any version, fields that a later Kafka appends, unknown types, keys that were cut off."""
    rng = random.Random(11)
    names = {"ABORT": Control.ABORT, "COMMIT": Control.COMMIT}
    seen: Counter[str | None] = Counter()
    for _ in range(300):
        version, kind = rng.choice([0, 0, 1, 2, 32767, -1]), rng.choice([0, 1, 1, 2, 5, 99, -3])
        key = struct.pack(">hh", version, kind) + rng.randbytes(rng.choice([0, 0, 1, 4, 23]))
        key = key[: rng.choice([3, 0])] if rng.randrange(10) == 0 else key
        java = clients.java_type(gateway, key)
        seen[java] += 1
        data = encode_batch(
            base=5, last=5, producer=7, transactional=True, control=True, records=[(0, key, b"")]
        )
        if java is None:
            with pytest.raises(kafka.errors.CorruptRecordError):
                list(parse_batches(data))
        else:
            ((*_, control, _),) = parse_batches(data)
            assert control is names.get(java, Control.OTHER), key
    assert min(seen[name] for name in ("ABORT", "COMMIT", "UNKNOWN", None)) > 10


@pytest.mark.parametrize("client", [clients.kafka_python, clients.aiokafka])
def test_python_clients(world: World, client: Client):
    """Both agree wherever no control batch has lost its record."""
    for shown, committed in rounds(world, client, with_emptied_markers(world)):
        assert shown == committed


@pytest.mark.parametrize("client", [clients.kafka_python, clients.aiokafka])
def test_python_clients_stand_still_at_an_emptied_marker(world: World, client: Client):
    """Their bug, told in README.md: this fails when they have repaired it."""
    data = min(with_emptied_markers(world))
    with pytest.raises((RuntimeError, kafka.errors.KafkaError, AioKafkaError)):
        client(world.bootstrap, {data: world.logs[data].start}, {data: world.ends[data]})


_ROW = struct.Struct(">hqqqq")


def rows_of_the_broker(world: World, data: TopicPartition) -> Iterator[AbortedEntry]:
    """What lies in the partition's transaction index files."""
    for path in sorted((world.log_dir / f"{data.topic}-{data.partition}").glob("*.txnindex")):
        for _, producer, first, last, stable in _ROW.iter_unpack(path.read_bytes()):
            yield AbortedEntry(producer, Offset(first), Offset(last), EndOffset(stable))


async def batches_of(reader: KafkaBatchReader, data: TopicPartition, start: int) -> list[Batch]:
    """All batches, read uncommitted."""
    found: list[Batch] = []
    position = Offset(start)
    while (answer := await reader.fetch(data, position, committed=False)).batches:
        found += answer.batches
        position = Offset(found[-1].last_offset + 1)
    return found


async def test_the_index_of_a_walk_is_that_of_the_broker(world: World):
    """F1: row by row, with last stable offsets; and searches list at most what the broker does.

    A broker may list more: the end of its search comes from a sparse index.
    """
    reader = KafkaBatchReader(KafkaConfig(world.bootstrap), "index")
    rng, count = random.Random(3), 0
    for data, start in world.first().items():
        walk, index = OpenTransactions(), TransactionIndex()
        batches = await batches_of(reader, data, start)
        for batch in batches:
            row = walk.batch_read(batch)
            if row is not None:
                index.append(row)
        rows = list(rows_of_the_broker(world, data))
        assert list(index) == rows, data
        count += len(rows)
        for _ in range(10):
            position = Offset(rng.randint(start, world.ends[data]))
            answer = await reader.fetch(data, position, bytes_max=clients.FETCH_BYTES)
            if answer.batches:
                until = EndOffset(answer.batches[-1].last_offset + 1)
                found = index.search(position, until).entries
                assert {(it.producer_id, it.first_offset) for it in found} <= set(answer.aborted)
    await reader.close()
    assert count > 100
