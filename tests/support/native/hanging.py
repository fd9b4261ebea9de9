"""Makes a native transaction that hangs: a batch whose producer no coordinator knows.

Kafka since 3.6 asks the coordinator before it accepts such a batch. The helper switches this
verification off meanwhile, so that the broker behaves as an older one.
"""

import asyncio
import time
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from kafka.errors import InvalidProducerIdMappingError, NoError, for_code
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.raw.line import Line, RawClient, SharedLine
from stilltide.schemas.native.transactions import ActiveProducer
from stilltide.schemas.values import TopicPartition
from tests.support.native.batch_bytes import encode_batch

_TIMEOUT_S = 90
_VERIFIES = "transaction.partition.verification.enable"


async def write_hanging(
    bootstrap: str,
    data: TopicPartition,
    count: int = 1,
    *,
    epoch: int = 0,
    producer: ActiveProducer | None = None,
) -> tuple[int, int]:
    """Writes a batch of a transaction that was never begun; its producer id and first offset.

    Args:
        bootstrap: address of the broker.
        data: the partition.
        count: number of records.
        epoch: epoch of a producer that is made for it.
        producer: a producer that goes on in its epoch, instead.
    """
    client = RawClient(SharedLine(KafkaConfig(bootstrap), "hanging"), "hanging")
    await asyncio.to_thread(_verify_partitions, bootstrap, enabled=False)
    try:
        deadline_s = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                return await client.call(
                    lambda line: line.persist(
                        lambda: _write(line, data, count, epoch, producer), deadline_s
                    )
                )
            except InvalidProducerIdMappingError:  # the setting has not reached the log yet
                assert time.monotonic() < deadline_s
    finally:
        await client.close()
        await asyncio.to_thread(_verify_partitions, bootstrap, enabled=True)


def _verify_partitions(bootstrap: str, *, enabled: bool) -> None:
    resource = ConfigResource(
        ResourceType.BROKER,
        "1",
        incremental_configs=[
            ConfigEntry(
                _VERIFIES, str(enabled).lower(), incremental_operation=AlterConfigOpType.SET
            )
        ],
    )
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(_TIMEOUT_S)


async def _write(
    line: Line, data: TopicPartition, count: int, epoch: int, producer: ActiveProducer | None
) -> tuple[int, int]:
    leader, _ = await line.leader(data)
    if producer is None:
        made = await line.send(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), leader
        )
        _check(made.error_code)
        producer = ActiveProducer(made.producer_id, epoch, -1, -1, -1, None)
    records = encode_batch(
        base=0,
        last=count - 1,
        producer=producer.producer_id,
        epoch=producer.producer_epoch,
        sequence=producer.last_sequence + 1,
        transactional=True,
        time_ms=time.time_ns() // 1_000_000,  # of what is older than a week retention takes hold
        records=[(delta, b"k", b"v") for delta in range(count)],
    )
    topic = ProduceRequest.TopicProduceData
    request = ProduceRequest(
        transactional_id="gone",
        acks=-1,
        timeout_ms=_TIMEOUT_S * 1000,
        topic_data=[
            topic(
                name=data.topic,
                partition_data=[topic.PartitionProduceData(index=data.partition, records=records)],
            )
        ],
        max_version=11,
    )
    (answer,) = (await line.send(request, leader)).responses
    (written,) = answer.partition_responses
    _check(written.error_code)
    return producer.producer_id, written.base_offset


def _check(code: Any) -> None:
    if for_code(code) is not NoError:
        raise for_code(code)
