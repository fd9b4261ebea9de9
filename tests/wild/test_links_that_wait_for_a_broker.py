"""`stilltide replicate` ended when a broker gave no answer for ten seconds, and did not try again.

First: a line to a broker was dead in one direction for some seconds, and the link ended with
"cannot commit a copy: 1 message(s) failed delivery (_INCONSISTENT)". The last records of the
transaction had not been delivered in time, which passes by itself. Second: a broker was frozen, and
`stilltide publish` ended with "cannot see the producers of stilltide.replication-positions:
UnknownBrokerIdError(3)". The leader had left the metadata before it was asked.
"""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import kafka.errors as kafka_errors
import pytest
from kafka.protocol.metadata import MetadataRequest

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.kafka.raw.line import Line, RawClient, SharedLine, translate_raw
from stilltide.connectors.local.addresses import Listener, free_port
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.ports.copying import Copies, Span
from stilltide.connectors.ports.readers import NewRecord, Record
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.processes.proxy import Proxy, Way

DELIVERY_S = 1.0
_NOBODY = 99
"""Id of no broker."""

DATA = TopicPartition("orders", 0)


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[tuple[Proxy, KafkaConnector]]:
    """A proxy before a broker, and a connector that does without the proxy."""
    port = free_port()
    made = Proxy(port)
    listener = Listener("PROXIED", "PLAINTEXT", port, advertised=made.address)
    with LocalCluster("a", tmp_path, fast_start=True, listeners=[listener]) as cluster:
        async with made:
            connector = KafkaConnector(KafkaConfig(cluster.bootstrap))
            admin = connector.admin()
            await admin.ensure_topics([TopicSpec(DATA.topic, 1)])
            await admin.close()
            yield made, connector


async def test_a_commit_without_an_answer_may_be_tried_again(proxy: tuple[Proxy, KafkaConnector]):
    """The commit fails as one that passes; the next writer writes the copies once."""
    line, connector = proxy
    config = KafkaConfig(line.address, delivery_timeout_s=DELIVERY_S)
    writer = KafkaConnector(config).copy_writer("link")
    writer._timeout_s = 10 * DELIVERY_S  # pyright: ignore[reportAttributeAccessIssue] - so that the records fail first
    copies = Copies([b"k"] * 3, [b"1", b"2", b"3"], [1] * 3, [[]] * 3)
    note = NewRecord(DATA, b"k", b"4")
    await writer.fence()
    await writer.begin()
    await writer.copy(DATA, copies, Span())
    line.valves[Way.TO_BROKER].shut()
    with pytest.raises(RetriableError) as caught:
        await writer.commit([note])
    assert "link" in caught.value.primary
    assert caught.value.hint
    line.mend()
    await writer.close()
    writer = connector.copy_writer("link")
    await writer.fence()
    await writer.begin()
    await writer.copy(DATA, copies, Span())
    await writer.flush()
    await writer.commit([note])
    await writer.close()
    reader = connector.reader("test", committed=True)
    await reader.assign({DATA: Offset(0)})
    written: list[bytes | None] = []
    while len(written) < len(copies.values) + 1:
        written += [it.value for it in await reader.read() if isinstance(it, Record)]
    await reader.close()
    assert written == [b"1", b"2", b"3", b"4"]


async def test_a_leader_that_has_left_the_metadata_may_be_asked_again(bootstrap: str):
    """A broker without an address is looked for until the time is up; the error is not fatal."""
    client = RawClient(
        SharedLine(KafkaConfig(bootstrap, request_timeout_s=10.0), "test"), "an admin"
    )
    tries = 0

    async def ask(line: Line) -> None:
        nonlocal tries
        tries += 1
        await line.send(MetadataRequest(topics=None, allow_auto_topic_creation=False), _NOBODY)

    try:
        with pytest.raises(kafka_errors.KafkaError, match="broker 99") as caught:
            await client.call(
                lambda line: line.persist(lambda: ask(line), time.monotonic() + DELIVERY_S)
            )
    finally:
        await client.close()
    assert tries > 1
    assert isinstance(translate_raw(caught.value, bootstrap, "cannot ask"), RetriableError)
