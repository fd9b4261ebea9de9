"""A subscription ended at the metadata of its group's commit, or took memory for acknowledgements.

The client library reads metadata up to a NUL, which only librdkafka itself commits. Behind the text
that `stilltide group reset`, a controller of replicated groups or a program in Java had committed,
the member read whatever stood in memory there: `UnicodeDecodeError` at its start, "commit metadata
that is not base64", or some letters more, which counted as acknowledged messages.
"""

import asyncio

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition
from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as ForeignPartition

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.drivers.groups.read_elsewhere import moved, reset
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TopicPartition

WAIT_S = 60
PARTITIONS = 8
READS = 4
"""Members, one after the other: what stands in memory behind a text is a matter of chance."""

CLIENT_READS = 100


async def commits_of_a_member(
    connector: KafkaConnector, topic_name: str, partitions: list[TopicPartition]
) -> dict[TopicPartition, Committed | None]:
    """What a new member of the group finds committed."""
    member, assigned = connector.group_reader("m", topic_name), asyncio.Event()
    try:
        await member.subscribe(
            [topic_name], assigned=lambda _: assigned.set(), revoked=lambda _: None
        )
        async with asyncio.timeout(WAIT_S):
            await assigned.wait()
        return {data: member.committed(data) for data in partitions}
    finally:
        await member.close()


@pytest.fixture
async def expected(bootstrap: str, topic_name: str) -> dict[TopicPartition, str]:
    """A text for each partition of a new topic, each of another length."""
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    await admin.ensure_topics([TopicSpec(topic_name, PARTITIONS)])
    await admin.close()
    return {TopicPartition(topic_name, n): "abc" * (n * n + 1) for n in range(PARTITIONS)}


async def test_metadata_of_any_client_is_read_as_written(
    bootstrap: str, topic_name: str, expected: dict[TopicPartition, str]
):
    """G: a member gets each byte that another program has committed, and none of its memory."""
    foreign = KafkaConsumer(
        bootstrap_servers=bootstrap, group_id=topic_name, enable_auto_commit=False
    )
    commits = {
        ForeignPartition(*data): OffsetAndMetadata(0, text, -1) for data, text in expected.items()
    }
    await asyncio.to_thread(foreign.commit, commits)
    await asyncio.to_thread(foreign.close)
    connector = KafkaConnector(KafkaConfig(bootstrap))
    for _ in range(READS):
        found = await commits_of_a_member(connector, topic_name, list(expected))
        assert found == {data: Committed(Offset(0), text) for data, text in expected.items()}


async def test_other_members_read_what_is_committed_from_outside(
    bootstrap: str, topic_name: str, expected: dict[TopicPartition, str]
):
    """I11: a member of an earlier version, which reads to a NUL, finds one behind the text."""
    groups = KafkaConnector(KafkaConfig(bootstrap)).group_admin()
    await groups.move(
        topic_name, {data: Committed(Offset(0), text) for data, text in expected.items()}
    )
    found = (await groups.committed([topic_name], list(expected)))[topic_name]
    await groups.close()
    assert {data: it.metadata for data, it in found.items()} == expected

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic_name})
    asked = [ClientPartition(*data) for data in expected]
    for _ in range(CLIENT_READS):
        committed = await asyncio.to_thread(consumer.committed, asked, WAIT_S)
        assert [it.metadata for it in committed] == list(expected.values())
    await asyncio.to_thread(consumer.close)


def test_a_reset_to_where_a_group_stands_forgets_acknowledgements():
    """Each record from the position on is read again, those acknowledged above it, too."""
    acknowledged = Committed(Offset(4), "st1;a=bVQE")
    assert reset(acknowledged, Offset(4)) == Committed(Offset(4), "")


def test_a_group_is_moved_behind_what_it_has_acknowledged():
    """A user's group got a message again that it had acknowledged before it left the cluster.

    The group was moved to just this message, and metadata holds what lies above the offset only.
    """
    acknowledged = Committed(Offset(12), "st1;a=bDw")  # 13 to 16
    assert moved(acknowledged, Offset(14), 3) == Committed(Offset(17), "st1;g=3")
    assert moved(acknowledged, Offset(12), 3) == Committed(Offset(12), "st1;a=bDw;g=3")
    assert moved(acknowledged, Offset(12), 3, adopts=True) == Committed(Offset(12), "st1;g=3")
    assert moved(None, Offset(5), 3) == Committed(Offset(5), "st1;g=3")
