"""What copies must have of their records: topics of one partition, as links read them."""

import asyncio
from collections.abc import Sequence

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.copying import Columns
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.looks import between_looks

WAIT_S = 120.0
KEPT = {"retention.ms": "-1"}


async def create(bootstrap: str, name: str, **configs: str) -> None:
    """Creates a topic of one partition whose old records stay."""
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    wanted = {key.replace("_", "."): value for key, value in configs.items()}
    await admin.ensure_topics([TopicSpec(name, 1, {**KEPT, **wanted})])
    await admin.close()


async def columns(bootstrap: str, topic: str, count: int) -> list[Columns]:
    """What a link would read of a topic's first records, once they are there."""
    connector, data = KafkaConnector(KafkaConfig(bootstrap)), TopicPartition(topic, 0)
    admin, reader, found = connector.admin(), connector.column_reader("test"), list[Columns]()
    async with asyncio.timeout(WAIT_S):
        while data not in await admin.end_offsets([data]):
            await between_looks()
        await reader.assign({data: Offset(0)})
        while sum(len(one.offsets) for one in found) < count:
            found += [it for it in await reader.read() if isinstance(it, Columns)]
    await asyncio.gather(reader.close(), admin.close())
    return found


def joined(found: Sequence[Columns]) -> list[tuple[bytes | None, bytes | None, int, object]]:
    """Keys, values, times and headers without the link's own."""
    return [
        (key, value, made_ms, [one for one in headers or () if one[0] != "origin"])
        for one in found
        for headers, key, value, made_ms in zip(*one[2:], strict=True)
    ]
