"""What applications write to linked clusters, and what consumer groups read of it.

A value names the cluster, the partition and the number of its record: `a-0-17`.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka import TopicPartition as Place

from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.client import Subscription
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

READ_S = 90.0


class Writer:
    """An idempotent producer of one cluster; what it cannot send yet it sends later."""

    def __init__(self, name: str, bootstrap: str, partitions: list[TopicPartition]) -> None:
        self._name = name
        self._partitions = partitions
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2}
        )
        self._aborting = {"bootstrap.servers": bootstrap, "transactional.id": f"junk-{name}"}
        self._failed: list[KafkaError] = []
        self.values: dict[TopicPartition, list[bytes]] = {data: [] for data in partitions}

    def write(self, data: TopicPartition, count: int):
        """So many records; waits for nothing."""
        mine = self.values[data]
        for _ in range(count):
            value = f"{self._name}-{data.partition}-{len(mine)}".encode()
            self._producer.produce(*data[:1], value, partition=data[1], on_delivery=self._told)
            mine.append(value)
        self._producer.poll(0)

    def write_aborted(self, data: TopicPartition, count: int):
        """So many records that nobody must ever see; blocks. The cluster must be there."""
        producer = Producer(self._aborting)
        producer.init_transactions(30)
        producer.begin_transaction()
        for _ in range(count):
            producer.produce(data.topic, b"aborted", partition=data.partition)
        producer.flush(30)
        producer.abort_transaction(30)

    def flush(self):
        """Blocks until all is written."""
        assert self._producer.flush(READ_S) == 0
        assert not self._failed, self._failed

    def _told(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failed.append(error)


async def bounds(
    connector: KafkaConnector, partitions: list[TopicPartition]
) -> dict[TopicPartition, EndOffset]:
    """The last stable offsets."""
    admin = connector.admin()
    try:
        return await admin.end_offsets(partitions, committed=True)
    finally:
        await admin.close()


async def visible(
    connector: KafkaConnector, ends: Mapping[TopicPartition, EndOffset]
) -> dict[TopicPartition, list[Record]]:
    """What readers of committed data see below these offsets."""
    found: defaultdict[TopicPartition, list[Record]] = defaultdict(list)
    open_ = {data for data, end in ends.items() if end > 0}
    reader = connector.reader("chaos-reader")
    try:
        await reader.assign({data: Offset(0) for data in open_})
        async with asyncio.timeout(READ_S):
            while open_:
                for item in await reader.read():
                    data = item.data
                    if isinstance(item, Record) and item.offset < ends[data]:
                        found[data].append(item)
                    at = item.offset + 1 if isinstance(item, Record) else item.end_offset
                    if at >= ends[data]:
                        open_.discard(data)
    finally:
        await reader.close()
    return found


async def read_by_us(
    connector: KafkaConnector, group: str, ends: Mapping[TopicPartition, EndOffset]
) -> Counter[bytes]:
    """What a member of a group of ours is given below these offsets; it commits that."""
    found: Counter[bytes] = Counter()
    topics = sorted({data.topic for data in ends})
    async with (
        asyncio.timeout(READ_S),
        Subscription(topics, group=group, connector=connector) as subscription,
    ):
        async for message in subscription.read_to(ends):
            found[message.value or b""] += 1
        await subscription.commit()
    return found


def read_by_others(
    bootstrap: str, group: str, ends: Mapping[TopicPartition, EndOffset]
) -> Counter[bytes]:
    """As a plain consumer of a plain group reads; blocks."""
    found: Counter[bytes] = Counter()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
        }
    )
    consumer.subscribe(sorted({data.topic for data in ends}))
    reached: dict[TopicPartition, int] = {}
    try:
        while reached.keys() != ends.keys():
            message = consumer.poll(READ_S)
            assert message is not None, f"{group} was given nothing for {READ_S:g} s"
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                continue  # passes by itself, or the next poll gives nothing
            data = TopicPartition(str(message.topic()), message.partition() or 0)
            offset = message.offset() or 0
            if data in reached:
                continue
            if error is None and offset < ends[data]:
                found[message.value() or b""] += 1
            if error is not None or offset >= ends[data]:
                reached[data] = offset
        places = [Place(*data, offset) for data, offset in reached.items()]
        consumer.commit(offsets=places, asynchronous=False)
    finally:
        consumer.close()
    return found
