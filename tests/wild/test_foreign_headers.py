"""Headers `origin` and `txn` that strangers have written: names that Stilltide uses, too.

What a user saw: a web service wrote `origin: https://shop.example` into each record, as browsers
do. A link took that value for its own kind, since its length fits, and its copies lost the header;
dead letters lost it, too. Of another topic, whose program had a `txn` header of its own, a link
logged each record, and no metric counted them.
"""

import asyncio
from collections.abc import Mapping, Sequence

from confluent_kafka import Producer

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.client.subscription import Subscription
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits
from stilltide.pipeline.drivers.links.offset_translation import translate
from stilltide.schemas.headers import TXN, Headers
from stilltide.schemas.replication.origins import ORIGIN, Incarnation, OriginStamp, PublishRoute
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.v1 import replication_pb2 as pb
from stilltide.schemas.values import ClusterName, EndOffset, Offset, TopicPartition, TxnId
from tests.support.coordinator.coordinated import CoordinatedTopic
from tests.support.coordinator.worker_memory import MemoryWorker
from tests.support.groups.clusters import DATA, Site, Sites, replicated
from tests.support.links.memory_link import MemoryCluster, linked, published, until
from tests.support.links.publishing import publishing

WAIT_S = 90.0
URL = "https://shop.example/cart"
OTHER = pb.OffsetBucket(source_incarnation=bytes(range(8)), source_from=7, target_to=2**40)

TEXTS: Mapping[str, bytes | None] = {
    "none": None,
    "empty": b"",
    "text": URL.encode(),
    "short": b"shop",
    "latin": b"stra\xdfe und mehr \xdf",
    "utf-16": URL.encode("utf-16"),
    "utf-16-be": URL.encode("utf-16-be"),
    "utf-32-be": URL.encode("utf-32-be"),
    "zeros": bytes(24),
    "ones": b"\xff" * 24,
    "protobuf": OTHER.SerializeToString(),
    "huge": URL.encode() * 1000,
    "huge zeros": bytes(40_000),
}
"""Values that no link and no client of Stilltide has written, but for their names."""

FORWARDED = OriginStamp(Incarnation(ClusterName("elsewhere"), bytes(8))).value(Offset(5))
"""What a link to another topic has written, and an application has passed on."""


def origins() -> list[list[tuple[str, bytes | None]]]:
    """Headers of records with each value, alone, twice, and beside one that a link wrote."""
    alone = [[(ORIGIN, value)] for value in TEXTS.values()]
    twice = [[(ORIGIN, value), ("k", b"1"), (ORIGIN, value)] for value in TEXTS.values()]
    before = [[(ORIGIN, FORWARDED), (ORIGIN, value)] for value in TEXTS.values()]
    behind = [[(ORIGIN, value), (ORIGIN, FORWARDED)] for value in TEXTS.values()]
    return [*alone, *twice, *before, *behind, [(ORIGIN, FORWARDED)] * 2]


def of_application(headers: Headers | None) -> list[tuple[str, bytes | None]]:
    """The headers that a copy has to keep (H1)."""
    return [it for it in headers or () if it != (ORIGIN, FORWARDED) and it[0] != TXN]


def write_origins(broker: MemoryBroker, data: TopicPartition) -> int:
    """Writes a record with each of the headers; returns how many."""
    for number, headers in enumerate(origins()):
        broker.append(data, b"k", b"%d" % number, headers)
    return len(origins())


def content(records: Sequence[Record], own: Incarnation) -> list[tuple[bytes | None, Headers]]:
    """Values and headers of copies, without the last one, which the link wrote."""
    for number, record in enumerate(records):
        assert record.headers
        assert record.headers[-1] == (ORIGIN, OriginStamp(own).value(Offset(number)))
    return [(it.value, list(it.headers or ())[:-1]) for it in records]


async def test_links_copy_records_with_any_origin_once():
    """H1: both ways at a time; a copy keeps each header that no link can have written."""
    a, b = MemoryCluster("a"), MemoryCluster("b", orders=0)
    data = TopicPartition("orders", 0)
    count = write_origins(a.broker, data)
    async with linked(a, b), asyncio.timeout(WAIT_S):
        await until(lambda: len(b.values()) == count)
        async with linked(b, a):
            b.write(b"last of b")
            await until(lambda: a.values()[count:] == [b"last of b"])
            a.write(b"last of a")
            await until(lambda: b.values()[-1] == b"last of a")
    own = Incarnation(ClusterName("a"), a.incarnation())
    assert len(a.values()) == len(b.values()) == count + 2
    assert content(b.broker.records(data)[:count], own) == [
        (b"%d" % number, of_application(headers)) for number, headers in enumerate(origins())
    ]


async def test_publishes_copy_records_with_any_origin_once():
    """H7: the same within a cluster, also after another driver has begun."""
    a = MemoryCluster("a")
    data, copies = TopicPartition("orders", 0), TopicPartition("orders.out", 0)
    publish = PublishRoute("orders", "orders.out")
    count = write_origins(a.broker, data)
    async with published(a, publish), asyncio.timeout(WAIT_S):
        await until(lambda: len(a.values(copies)) == count)
    a.write(b"last")
    async with published(a, publish), asyncio.timeout(WAIT_S):
        await until(lambda: len(a.values(copies)) == count + 1)
    own = Incarnation(ClusterName("a"), a.incarnation())
    assert content(a.broker.records(copies)[:count], own) == [
        (b"%d" % number, of_application(headers)) for number, headers in enumerate(origins())
    ]


async def test_groups_stand_right_behind_records_with_any_origin():
    """H3, I7: each offset is translated exactly, and a group is moved behind what it has read."""
    async with replicated("ab", "g") as sites, asyncio.timeout(WAIT_S):
        a, b = sites["a"], sites["b"]
        count = write_origins(a.broker, DATA)
        await sites.until(lambda: len(b.values()) == count)
        own = write_origins(b.broker, DATA)
        await sites.until(lambda: len(a.values()) == len(b.values()) == count + own)
        await _translates(sites, count)
        for read in (1, count // 2, count):
            a.commit("g", read)
            await sites.until(lambda read=read: _has_read(b) == read)
        b.commit("g", b.end())
        await sites.until(lambda: _has_read(a) == count + own)


def _has_read(site: Site) -> int:
    """How many records lie below the group's position."""
    return len(site.visible(0, site.committed("g") or 0))


async def _translates(sites: Sites, count: int) -> None:
    a, b = ClusterName("a"), ClusterName("b")
    ends = sites.connectors[a], sites.connectors[b]
    for offset in range(count):
        found = await translate(*ends, (a, b), DATA, Offset(offset), timeout_s=WAIT_S)
        assert found == (offset, offset)


def txns() -> list[list[tuple[str, bytes | None]]]:
    """Malformed `txn` headers: of each value, and valid ones beside any other."""
    valid = TxnId(0, 1).to_bytes()
    alone = [[(TXN, value)] for value in TEXTS.values()]
    behind = [[(TXN, valid), (TXN, value)] for value in TEXTS.values()]
    before = [[(TXN, value), ("k", b""), (TXN, valid)] for value in TEXTS.values()]
    return [*alone, *behind, *before, [(TXN, valid)] * 2]


async def test_malformed_transactions_are_withheld_and_counted(bootstrap: str, topic_name: str):
    """D3: the records around them are delivered and published, and the counts say how many."""
    connector = KafkaConnector(KafkaConfig(bootstrap))
    topic = await CoordinatedTopic.create(connector, topic_name, 1)
    producer = Producer({"bootstrap.servers": bootstrap})
    plain: list[tuple[bytes, list[tuple[str, bytes | None]]]] = []
    for number, (txn, origin) in enumerate(zip(txns(), origins(), strict=False)):
        value, headers = b"%d" % number, [*origin, (TXN.upper(), b"mine")]
        plain.append((value, headers))
        producer.produce(topic_name, value, partition=0, headers=headers)
        producer.produce(topic_name, b"malformed", partition=0, headers=[*txn])
    assert producer.flush(30) == 0
    group, publish = f"{topic_name}-group", PublishRoute(topic_name, f"{topic_name}.out")
    end = {topic.at(0): EndOffset(2 * len(plain))}
    async with asyncio.timeout(WAIT_S), publishing(bootstrap, publish) as link:
        async with Subscription([topic_name], group=group, connector=connector) as records:
            seen = [it async for it in records.read_to(end)]
            counts = records.statistics()[topic.at(0)]
            await records.commit()
        assert [(it.value, it.headers) for it in seen] == plain
        assert (counts.malformed, counts.delivered) == (len(plain), len(plain))
        async with Subscription([publish.target], group=group, connector=connector) as copies:
            copied = [await anext(copies) for _ in plain]
        assert link.last_error is None
        assert link.progress.of(TopicPartition(publish.target, 0)).withheld == len(plain)
    own = [(it.value, of_application((it.headers or ())[:-1])) for it in copied]
    assert own == [(value, of_application(headers)) for value, headers in plain]
    async with Subscription([topic_name], group=group, connector=connector) as again:
        assert [it async for it in again.read_to(end)] == []
    await topic.close()


STRANGE_IDS = [
    "shop-42".encode("utf-16"),
    b"\xff" * 16,
    b"shop-42-checkout",
    TxnId(2**32, 2**40).to_bytes(),
    TxnId(0, 2**63).to_bytes(),
]


async def test_transactions_that_nobody_opened_wait_for_a_snapshot():
    """D2, D6: 16 bytes of a stranger hold up their partition, until a snapshot passes them."""
    broker = MemoryBroker()
    broker.create_topic(TopicSpec("orders", 1))
    connector, data = MemoryConnector(broker), TopicPartition("orders", 0)
    for number, txn in enumerate(STRANGE_IDS):
        assert len(txn) == 16
        broker.append(data, b"k", b"%d" % number, [(TXN, txn)])
    broker.append(data, b"k", b"plain", None)
    snapshots = SnapshotLimits(interval_ms=50)
    async with asyncio.timeout(WAIT_S), MemoryWorker(connector, snapshots=snapshots) as worker:
        async with Subscription("orders", group="g", connector=connector) as records:
            seen = [(await anext(records)).value for _ in range(len(STRANGE_IDS) + 1)]
            assert seen == [*(b"%d" % number for number in range(len(STRANGE_IDS))), b"plain"]
            assert records.position(data) == len(seen)
        assert not worker.ends
