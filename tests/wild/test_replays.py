"""Starts that take longer the busier the day before was.

What a user saw: a group that commits twenty times a second for a day left 1.7 million updates, and
each reader that began at the start decoded each one, which took 70 s: a link, a subscription in a
replicated group, `stilltide group describe`. The last value of each key is enough.
"""

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.drivers.groups.read_elsewhere import read_group_signals
from stilltide.schemas.errors import UnknownVersionError
from stilltide.schemas.replication.origins import Incarnation
from stilltide.schemas.replication.signals import Update, UpdateKey, encode_key, encode_value
from stilltide.schemas.topics import REPLICATION_MARKERS, TopicSpec, system_topics
from stilltide.schemas.values import (
    ClusterName,
    EndOffset,
    Offset,
    Range,
    TopicPartition,
)

pytestmark = pytest.mark.topics(
    *system_topics(coordinators=1, partitions=1), TopicSpec("orders", 1)
)

ORDERS = TopicPartition("orders", 0)
SIGNALS = TopicPartition(REPLICATION_MARKERS, 0)
ON_B = Incarnation(ClusterName("b"), bytes(8))
LATER_VERSION = bytes.fromhex("0863")
"""A value that nobody can decode: a reader that tries ends."""


def update(end: int) -> bytes:
    """An update of a group that has read up to `end`."""
    claims = {ON_B: (Range(Offset(0), EndOffset(end)),)}
    return encode_value(Update(1, ON_B.topic, Offset(end), claims))


def key(group: str) -> bytes:
    """The key of a group's updates."""
    return encode_key(UpdateKey(ORDERS, ClusterName("b"), group))


async def test_updates_that_newer_ones_replace_are_not_decoded(broker: MemoryBroker):
    """E10: the last update of each group counts, whatever stands before it."""
    for group in ("billing", "shipping"):
        broker.append(SIGNALS, key(group), LATER_VERSION, None)
    for end in range(1, 1001):
        broker.append(SIGNALS, key("billing"), update(end), None)
    broker.append(SIGNALS, key("shipping"), update(7), None)
    connector = MemoryConnector(broker)
    found = await read_group_signals(connector, connector.admin(), [ORDERS], "billing")
    assert found[ORDERS].claimed[ON_B] == (Range(Offset(0), EndOffset(1000)),)


async def test_the_last_update_is_decoded(broker: MemoryBroker):
    """B10: nothing is guessed of an update that a later version wrote, if it is the last."""
    broker.append(SIGNALS, key("billing"), update(1), None)
    broker.append(SIGNALS, key("billing"), LATER_VERSION, None)
    connector = MemoryConnector(broker)
    with pytest.raises(UnknownVersionError):
        await read_group_signals(connector, connector.admin(), [ORDERS], "billing")
