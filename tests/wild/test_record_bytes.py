"""Bytes that a Kafka record may hold, and that a reader of ours did not expect.

What a user saw: a program of another company wrote header names in Latin-1. A subscription ended
with `SystemError: returned a result with an exception set`, without topic or offset, and again at
each start; so did `stilltide publish` and `stilltide group lag`. Later a read that does not wait
made a reader touch such a message again, which ended the process. Headers without a value, without
a name and with one name twice had been read all the time, and still are.
"""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from stilltide import sync
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.readers import EndReached, Record
from stilltide.pipeline.cli.main import run
from stilltide.pipeline.client.subscription import Subscription
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TxnId
from tests.contract.rig import Reports, read_records
from tests.support.coordinator.coordinated import CoordinatedTopic
from tests.support.foreign_producer import ForeignRecord, write_foreign

LATIN = b"stra\xdfe"
DECODED = "stra\udcdfe"
"""The same name as a reader returns it: its bytes by `surrogateescape`."""
CODECS = ("gzip", "snappy", "lz4", "zstd")
WAIT_S = 120.0


@pytest.fixture
async def topic(bootstrap: str, topic_name: str) -> AsyncIterator[CoordinatedTopic]:
    """A topic of two partitions."""
    made = await CoordinatedTopic.create(KafkaConnector(KafkaConfig(bootstrap)), topic_name, 2)
    yield made
    await made.close()


def subscribed(bootstrap: str, topic: CoordinatedTopic) -> Subscription:
    """A subscription of the topic's own group."""
    return Subscription([topic.name], group=topic.name, bootstrap_servers=bootstrap)


async def test_odd_headers_are_delivered_as_they_are(bootstrap: str, topic: CoordinatedTopic):
    """Headers without value, with an empty value or an empty name, and a name twice, arrive."""
    headers = [("none", None), ("empty", b""), ("", b"nameless"), ("twice", b"1"), ("twice", b"2")]
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic.name, b"odd", headers=headers)
    assert producer.flush(30) == 0
    async with subscribed(bootstrap, topic) as records, asyncio.timeout(WAIT_S):
        assert (await anext(records)).headers == headers


async def test_a_name_that_is_not_utf_8_is_delivered(bootstrap: str, topic: CoordinatedTopic):
    """D9: all records arrive in order, each with its headers, names by `surrogateescape`."""
    named = [(LATIN, b"1"), (b"", b""), (b"plain", b"2"), (b"\xff\xfe", b"3"), (LATIN, b"4")]
    written = [
        ForeignRecord(b"%d" % n, None, named if n % 3 == 1 else [(b"plain", b"p")])
        for n in range(3000)
    ]
    write_foreign(bootstrap, topic.name, written, compression_type="gzip")
    odd = [(DECODED, b"1"), ("", b""), ("plain", b"2"), ("\udcff\udcfe", b"3"), (DECODED, b"4")]
    async with subscribed(bootstrap, topic) as records, asyncio.timeout(WAIT_S):
        for n in range(3000):
            record = await anext(records)
            assert (record.offset, record.value) == (n, b"%d" % n)
            assert record.headers == (odd if n % 3 == 1 else [("plain", b"p")])


async def test_transactions_are_decided_beside_such_names(bootstrap: str, topic: CoordinatedTopic):
    """D1: the `txn` header counts beside a name that is not UTF-8, whatever the client shows."""
    seen, hidden = TxnId(0, 1), TxnId(0, 2)
    write_foreign(
        bootstrap,
        topic.name,
        [
            ForeignRecord(b"aborted", headers=[(LATIN, b""), (b"txn", hidden.to_bytes())]),
            ForeignRecord(b"committed", headers=[(b"txn", seen.to_bytes()), (LATIN, b"")]),
            ForeignRecord(b"malformed", headers=[(b"txn", b"\xff\xfe"), (LATIN, b"")]),
            ForeignRecord(b"another name", headers=[("t\u0445n".encode("koi8-r"), b"x")]),
        ],
    )
    await topic.abort(0, hidden)
    await topic.commit(0, seen, 2)
    async with subscribed(bootstrap, topic) as records, asyncio.timeout(WAIT_S):
        assert [(await anext(records)).value for _ in range(2)] == [b"committed", b"another name"]
        (counts,) = [it for data, it in records.statistics().items() if data.partition == 0]
        assert counts.malformed == 1


async def test_every_reader_reads_on_after_a_cancelled_read(
    bootstrap: str, topic: CoordinatedTopic
):
    """A read that ends while headers are fetched again gives nothing away: the next one has all."""
    records = [ForeignRecord(b"%d" % n, headers=[(LATIN, b"%d" % n)]) for n in range(500)]
    write_foreign(bootstrap, topic.name, records)
    connector = KafkaConnector(KafkaConfig(bootstrap))
    for reader in (connector.reader("cancelled"), connector.column_reader("cancelled")):
        await reader.assign({topic.at(0): Offset(0)})
        offsets: list[int] = []
        delay_s = 0.0005
        async with asyncio.timeout(WAIT_S):
            while len(offsets) < len(records):
                reading = asyncio.ensure_future(reader.read())
                await asyncio.wait([reading], timeout=delay_s)
                if not reading.done():
                    delay_s *= 2
                    reading.cancel()
                    await asyncio.wait([reading])
                for item in () if reading.cancelled() else reading.result():
                    if isinstance(item, Record):
                        offsets.append(item.offset)
                    elif not isinstance(item, EndReached):
                        offsets += item.offsets
        assert offsets == list(range(500))
        await reader.close()


async def test_a_read_that_does_not_wait_leaves_the_record_to_the_next(
    bootstrap: str, topic: CoordinatedTopic
):
    """While headers are fetched again nothing can be read at once, and nothing is forgotten."""
    write_foreign(
        bootstrap, topic.name, [ForeignRecord(b"%d" % n, headers=[(LATIN, b"")]) for n in range(9)]
    )
    reader, seen = KafkaConnector(KafkaConfig(bootstrap)).group_reader("test", topic.name), []
    await reader.subscribe([topic.name], assigned=lambda _: None, revoked=lambda _: None)
    async with asyncio.timeout(WAIT_S):
        while len(seen) < 9:
            reading = asyncio.ensure_future(reader.read())
            while not reading.done():
                assert reader.read_now() == []
                await asyncio.sleep(0)
            for item in reading.result():
                seen += [] if isinstance(item, EndReached) else item.records
    assert [it.offset for it in seen] == [*range(9)]
    assert {tuple(it.headers) for it in seen} == {((DECODED, b""),)}
    await reader.close()


def test_commands_and_programs_without_a_loop_read_on(
    bootstrap: str, topic_name: str, capsys: pytest.CaptureFixture[str]
):
    """`group lag` counts such records, and `stilltide.sync` delivers them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic_name, 1)])[topic_name].result()
    names = [LATIN, b"plain", b"\xff\xfe"]
    write_foreign(
        bootstrap, topic_name, [ForeignRecord(name, headers=[(name, b"1")]) for name in names]
    )
    words = ["group", "lag", topic_name, "nobody", "--bootstrap-servers", bootstrap, "-o", "json"]
    assert run(["--log-level", "error", *words]) == 0
    assert [it["visible"] for it in json.loads(capsys.readouterr().out)] == [3]
    group = f"{topic_name}-sync"
    with sync.Subscription([topic_name], group=group, bootstrap_servers=bootstrap) as records:
        seen = [record.headers for _, record in zip(names, records, strict=False)]
    assert seen == [[(name.decode("utf-8", "surrogateescape"), b"1")] for name in names]


async def test_every_codec_and_size_is_read(bootstrap: str, topic: CoordinatedTopic):
    """Large keys and headers arrive, however the broker compresses the batch.

    A broker that compresses a batch itself replaces what is not UTF-8 in names; so names here are.
    """
    connector = KafkaConnector(KafkaConfig(bootstrap))
    names = [f"{topic.name}-{codec}" for codec in CODECS]
    admin = connector.admin()
    configs = [{"compression.type": codec, "max.message.bytes": "2000000"} for codec in CODECS]
    await admin.ensure_topics([TopicSpec(*it) for it in zip(names, [1] * 4, configs, strict=True)])
    await admin.close()
    large = [(b"n" * 64 + "é".encode(), b"h" * 1024)] * 1024  # more than 1 MiB
    records = [
        ForeignRecord(b"small", b"k" * 65536, [("straße".encode(), b"")]),
        ForeignRecord(b"headers", b"", large),
        ForeignRecord(b"last", b"\x00"),
    ]
    for name in names:
        write_foreign(bootstrap, name, records, max_request_size=2_000_000)
    seen: dict[str, list[Record]] = {name: [] for name in names}
    subscription = Subscription(names, group=topic.name, bootstrap_servers=bootstrap)
    async with subscription, asyncio.timeout(WAIT_S):
        for _ in range(3 * len(names)):
            record = await anext(subscription)
            seen[record.topic].append(record)
    for small, headers, last in seen.values():
        assert (small.key, small.headers) == (b"k" * 65536, [("straße", b"")])
        assert headers.headers == [("n" * 64 + "é", b"h" * 1024)] * 1024
        assert (last.key, last.value, last.headers) == (b"\x00", b"last", None)


async def test_a_value_of_the_largest_size_is_refused_with_its_header(
    bootstrap: str, topic: CoordinatedTopic
):
    """A value of `max.message.bytes` does not fit with headers; the error names the setting.

    Nothing of the record is written, and the records before and after it are.
    """
    connector = KafkaConnector(KafkaConfig(bootstrap))
    admin = connector.topic_admin()
    await admin.alter_configs({topic.name: {"max.message.bytes": "100000"}})
    await admin.close()
    writer, headers = connector.writer("largest"), [("txn", TxnId(0, 1).to_bytes())]
    reports = Reports()
    for number, size in enumerate((10, 100_000, 20)):
        writer.append(topic.at(0), b"v" * size, reports.of(number), headers=headers)
        await reports.wait_for(number + 1)
    errors = [error for _, error, _ in reports.seen]
    assert [error is None for error in errors] == [True, False, True]
    assert "max.message.bytes" in str(errors[1])
    assert topic.name in str(errors[1])
    await writer.close()
    reader = connector.reader("largest")
    await reader.assign({topic.at(0): Offset(0)})
    assert [len(it.value or b"") for it in await read_records(reader, 2)] == [10, 20]
    await reader.close()
