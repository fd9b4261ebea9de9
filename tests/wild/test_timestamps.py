"""Timestamps that a Kafka record may have, and that a copy has to have, too.

What a user saw: records of an old client have timestamp 0. `stilltide publish` copied them with the
present time, since Kafka's client takes 0 for "now": retention and queries by time were wrong.
"""

import asyncio

import pytest

from stilltide.connectors.errors import FencedError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.kafka.raw import exact_copying
from stilltide.connectors.ports.copying import Copies, CopyWriter, Span
from stilltide.connectors.ports.readers import NewRecord, TimedRecord
from stilltide.schemas.replication.origins import PublishRoute
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.foreign_producer import ForeignRecord, write_foreign
from tests.support.links.copied import KEPT, columns, create, joined
from tests.support.links.publishing import publishing

LATIN = b"stra\xdfe"


async def test_copies_have_the_times_and_bytes_of_their_records(bootstrap: str, topic_name: str):
    """H11: 0, no time, times before 1970 and names that are not UTF-8; the rest goes the quick way.

    A second publish goes on behind the first one's copies.
    """
    await create(bootstrap, topic_name)
    odd = [(b"a", b""), (LATIN, b"1"), (LATIN, b"2"), (b"", b"3")]
    times = (0, -1, 1, 1000, -5000, 0, 1_700_000_000_000)
    records = [
        *(ForeignRecord(b"%d" % it, timestamp_ms=it) for it in times),
        ForeignRecord(b"named", None, odd, 5),
        ForeignRecord(None, b"tombstone", odd, 0),
    ]
    write_foreign(bootstrap, topic_name, records)
    publish = PublishRoute(topic_name, f"{topic_name}.out")
    async with publishing(bootstrap, publish) as link:
        copies = joined(await columns(bootstrap, publish.target, len(records)))
        assert copies == joined(await columns(bootstrap, topic_name, len(records)))
        assert [it[2] for it in copies] == [*times, 5, 0]
        latin = "stra\udcdfe"
        assert copies[-1][3] == [("a", b""), (latin, b"1"), (latin, b"2"), ("", b"3")]
        assert link.last_error is None
    write_foreign(bootstrap, topic_name, [ForeignRecord(b"later", timestamp_ms=0)])
    async with publishing(bootstrap, publish):
        again = joined(await columns(bootstrap, publish.target, len(records) + 1))
    assert again == [*copies, (b"k", b"later", 0, [])]


async def test_the_quick_writer_comes_back(
    bootstrap: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
):
    """H11: after enough records that librdkafka would not alter, and no record is copied twice."""
    monkeypatch.setattr(exact_copying, "QUIET_RECORDS", 500)
    await create(bootstrap, topic_name)
    publish = PublishRoute(topic_name, f"{topic_name}.out")
    async with publishing(bootstrap, publish) as link:
        for first in range(0, 3000, 1000):
            written = [
                ForeignRecord(b"%d" % number, timestamp_ms=number % 1000)
                for number in range(first, first + 1000)
            ]
            write_foreign(bootstrap, topic_name, written)
            await columns(bootstrap, publish.target, first + 1000)
        for first, count in ((3000, 600), (3600, 1)):
            written = [ForeignRecord(b"%d" % (first + n), timestamp_ms=7) for n in range(count)]
            write_foreign(bootstrap, topic_name, written)
            copies = joined(await columns(bootstrap, publish.target, first + count))
        assert link.last_error is None
        connector = link._ends[1][1]
        assert isinstance(connector, KafkaConnector)
        assert connector._transactional_ids.exact == set()
        assert [it[1] for it in copies] == [b"%d" % number for number in range(3601)]
        assert [it[2] for it in copies] == [*(n % 1000 for n in range(3000)), *[7] * 601]


@pytest.mark.parametrize("exact_first", [True, False])
async def test_a_writer_that_was_replaced_is_refused(
    bootstrap: str, topic_name: str, *, exact_first: bool
):
    """H2: whichever kind of writer comes later has the id; nothing of the other one is visible."""
    await create(bootstrap, topic_name)
    connector, data = KafkaConnector(KafkaConfig(bootstrap)), TopicPartition(topic_name, 0)
    own = connector.own_id(topic_name)
    writers: list[CopyWriter] = []
    for exact in (exact_first, not exact_first):
        connector._transactional_ids.exact = {own} if exact else set()
        writer = connector.copy_writer(own)
        assert isinstance(writer, exact_copying.ExactCopyWriter) == exact
        await writer.fence()
        await writer.begin()
        made_ms = 0 if exact else 1
        await writer.copy(data, Copies([b"k"], [b"%d" % exact], [made_ms], [[]]), Span())
        await writer.flush()
        writers.append(writer)
    with pytest.raises(FencedError):
        await writers[0].commit([])
    span = Span()
    await writers[1].copy(data, Copies([b"k"], [b"last"], [2], [[]]), span)
    await writers[1].flush()
    assert span.first is not None
    assert span.end == span.first + 1
    await writers[1].commit([NewRecord(data, b"position", b"1")])
    await asyncio.gather(*(it.close() for it in writers))
    values = [it[1] for it in joined(await columns(bootstrap, topic_name, 3))]
    assert values == [b"%d" % (not exact_first), b"last", b"1"]


async def test_an_open_transaction_is_aborted_by_close(bootstrap: str, topic_name: str):
    """H2: what the exact writer has copied and not committed is never visible."""
    await create(bootstrap, topic_name)
    connector, data = KafkaConnector(KafkaConfig(bootstrap)), TopicPartition(topic_name, 0)
    own = connector.own_id(topic_name)
    connector._transactional_ids.exact.add(own)
    for end in ("close", "commit"):
        writer = connector.copy_writer(own)
        await writer.fence()
        await writer.begin()
        await writer.copy(data, Copies([b"k"], [end.encode()], [0], [[]]), Span())
        if end == "commit":
            await writer.commit([])
        await writer.close()
    assert [it[1] for it in joined(await columns(bootstrap, topic_name, 1))] == [b"commit"]


async def test_the_time_of_appending_is_copied(bootstrap: str, topic_name: str):
    """A copy of a record with LogAppendTime has that time, whatever the producer has said."""
    await create(bootstrap, topic_name, message_timestamp_type="LogAppendTime")
    write_foreign(bootstrap, topic_name, [ForeignRecord(b"v", timestamp_ms=0)])
    connector = KafkaConnector(KafkaConfig(bootstrap))
    reader = connector.reader("test", timestamps=True)
    await reader.assign({TopicPartition(topic_name, 0): Offset(0)})
    record = next(it for it in await reader.read() if isinstance(it, TimedRecord))
    await reader.close()
    publish = PublishRoute(topic_name, f"{topic_name}.out")
    admin = connector.admin()
    await admin.ensure_topics([TopicSpec(publish.target, 1, KEPT)])
    await admin.close()
    async with publishing(bootstrap, publish):
        ((_, _, copied_ms, _),) = joined(await columns(bootstrap, publish.target, 1))
    assert copied_ms == record.timestamp_ms
    assert copied_ms > 1_600_000_000_000
