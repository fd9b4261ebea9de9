"""Reads the content of a memory broker after a client's transactions, and its visible part."""

import asyncio
from collections import Counter
from typing import Any

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import Message, Subscription
from stilltide.schemas.coordinator import markers
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.coordinator.requests import decode_request
from stilltide.schemas.framing import decode_value
from stilltide.schemas.service.envelopes import Request
from stilltide.schemas.topics import TXN_MARKERS, TXN_REQUESTS
from stilltide.schemas.values import TopicPartition

TOPICS = ("orders", "payments")
"""Data topics, with three partitions each."""


async def take(subscription: Subscription, count: int = 1) -> list[Message]:
    """The next messages of a subscription."""
    async with asyncio.timeout(20):
        return [await anext(subscription) for _ in range(count)]


async def visible(connector: MemoryConnector) -> Counter[tuple[str, bytes | None]]:
    """Counts (topic, value) of visible records of the two topics, once all are decided."""
    admin = connector.admin()
    found = await admin.describe_topics(TOPICS)
    ends = await admin.end_offsets(
        [TopicPartition(it.name, n) for it in found.values() for n in range(it.partition_count)]
    )
    async with Subscription(TOPICS, group="test", connector=connector) as subscription:
        return Counter([(it.topic, it.value) async for it in subscription.read_to(ends)])


def written(broker: MemoryBroker, topic: str) -> list[tuple[int, bytes | None, list[Any]]]:
    """Every record of a topic, visible or not: partition, value and headers."""
    return [
        (number, it.value, list(it.headers or ()))
        for number in range(len(broker.topics[topic].logs))
        for it in broker.records(TopicPartition(topic, number))
    ]


def requests_in(broker: MemoryBroker) -> list[Request]:
    """All requests to coordinators."""
    return [
        decode_request(data)
        for requests in broker.partitions([TXN_REQUESTS])
        for it in broker.records(requests)
        for data in decode_value(it.value)
    ]


def markers_in(broker: MemoryBroker) -> list[Marker]:
    """All markers."""
    found = [
        markers.decode(it.key, it.value)
        for number in range(2)
        for it in broker.records(TopicPartition(TXN_MARKERS, number))
    ]
    return [it for it in found if isinstance(it, Marker)]
