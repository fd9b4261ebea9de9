"""Groups of Kafka's newer protocol were seen as empty while their members read.

An application of which the consumers had `group.protocol=consumer` (KIP-848) had members, and
`stilltide group describe` said that the group had none: the classic question about such a group is
answered as if the group did not exist. A reset waited for ever for a group that was never moved,
since Kafka refused the commit for a group with members.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import pytest
from confluent_kafka import Consumer

from stilltide.connectors.errors import ActiveGroupError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.connector import GroupAdmin
from stilltide.connectors.ports.readers import Committed
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TopicPartition

WAIT_S = 180


@asynccontextmanager
async def newer_member(bootstrap: str, topic: str) -> AsyncIterator[Consumer]:
    """A member of the newer protocol, in a group with the topic's name, with its partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "client.id": "newer",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    try:
        async with asyncio.timeout(WAIT_S):
            while not consumer.assignment():
                await asyncio.to_thread(consumer.poll, 0.1)
        yield consumer
    finally:
        await asyncio.to_thread(consumer.close)


async def move_emptied(
    groups: GroupAdmin, group: str, positions: Mapping[TopicPartition, Committed]
) -> None:
    """Removes the members and moves the group, again if a member has joined in between."""
    async with asyncio.timeout(WAIT_S):
        while True:
            await groups.remove_members(group)
            with suppress(ActiveGroupError):
                return await groups.move(group, positions)


async def test_a_group_of_the_newer_protocol_has_members(bootstrap: str, topic_name: str):
    """Its members are described with their partitions, no reset moves it, and it can be emptied."""
    connector = KafkaConnector(KafkaConfig(bootstrap))
    admin, groups = connector.admin(), connector.group_admin()
    data = TopicPartition(topic_name, 0)
    moved = Committed(Offset(0), "")
    try:
        await admin.ensure_topics([TopicSpec(topic_name, 1)])
        async with newer_member(bootstrap, topic_name):
            assert topic_name in await groups.listed()
            assert await groups.active([topic_name, f"{topic_name}-absent"]) == {topic_name}
            (member,) = await groups.described_members(topic_name)
            assert (member.client_id, member.partitions) == ("newer", (data,))
            assert await groups.members(topic_name) == {member.member_id}
            with pytest.raises(ActiveGroupError, match=topic_name):
                await groups.move(topic_name, {data: moved})
            await move_emptied(groups, topic_name, {data: moved})
        assert await groups.committed([topic_name], [data]) == {topic_name: {data: moved}}
        assert await groups.active([topic_name]) == set()
    finally:
        await groups.close()
        await admin.close()
