"""What a reader sees of topics that nobody writes to any more."""

from typing import NamedTuple

from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.client import Subscription
from stilltide.schemas.values import EndOffset, Offset, TopicPartition
from tests.support.brokers.group import AWAY_S
from tests.support.processes.worker_process import PARTITIONS

Place = tuple[int, int]
"""Partition and offset of a message."""


class Seen(NamedTuple):
    """A message of a topic."""

    place: Place
    key: bytes
    value: bytes


async def ends_of(
    connector: Connector, *topics: str, committed: bool = False
) -> dict[TopicPartition, EndOffset]:
    """The end offsets of topics, or their last stable offsets when `committed`."""
    admin = connector.admin()
    partitions = [TopicPartition(topic, it) for topic in topics for it in range(PARTITIONS)]
    try:
        return await admin.end_offsets(partitions, committed=committed)
    finally:
        await admin.close()


async def visible(
    connector: Connector, topic: str, group: str, *, acknowledgements: bool = False
) -> list[Seen]:
    """What a group is given of a topic, to its present ends; nothing twice.

    Args:
        connector: of the cluster.
        topic: the topic.
        group: begins at its committed positions, or at the log start.
        acknowledgements: whether the group acknowledges.
    """
    found: list[Seen] = []
    async with Subscription(
        [topic],
        group=group,
        connector=connector,
        acknowledgements=acknowledgements,
        unacknowledged_records_max=1_000_000,
        unavailable_timeout_s=AWAY_S,
    ) as subscription:
        async for message in subscription.read_to(await ends_of(connector, topic)):
            place = message.partition, message.offset
            found.append(Seen(place, message.key or b"", message.value or b""))
    places = [it.place for it in found]
    assert len(set(places)) == len(places), f"{topic}: a message was delivered twice"
    return found


async def records(connector: Connector, topic: str, *, committed: bool) -> list[Record]:
    """All records of a topic as Kafka's own consumers see them; each partition in offset order.

    Args:
        connector: of the cluster.
        topic: the topic.
        committed: whether records of Kafka's own transactions that aborted are left out.
    """
    ends = await ends_of(connector, topic, committed=committed)
    reader = connector.reader("all", committed=committed)
    found: list[Record] = []
    try:
        await reader.assign(dict.fromkeys(ends, Offset(0)))
        left = {it for it, end in ends.items() if end}
        while left:
            for item in await reader.read():
                if isinstance(item, Record):
                    found.append(item)
                elif item.end_offset >= ends[item.data]:
                    left.discard(item.data)
    finally:
        await reader.close()
    return found
