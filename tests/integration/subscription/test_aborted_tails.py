"""A topic whose tail is aborted: the group's position comes to the log end, as lag monitors see."""

import asyncio
from pathlib import Path
from uuid import uuid4

from confluent_kafka import Producer

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.coordinator.worker_client import take
from tests.support.looks import between_looks
from tests.support.processes.worker_process import WorkerProcess

WAIT_S = 180.0


def abort_native(bootstrap: str, topic: str) -> None:
    """A transaction of Kafka that aborts, with its record and its control record."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"t-{topic}"})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"never seen", partition=0)
    producer.flush(WAIT_S)
    producer.abort_transaction(WAIT_S)


async def test_the_position_passes_aborted_records_without_a_message(
    bootstrap: str, tmp_path: Path
):
    """Of coordinated and native transactions, while the application waits for a message."""
    topic, group = f"orders-{uuid4().hex[:8]}", "billing"
    data = TopicPartition(topic, 0)
    connector = KafkaConnector(KafkaConfig(bootstrap))
    admin, group_admin = connector.admin(), connector.group_admin()
    await admin.ensure_topics([TopicSpec(topic, 1)])

    async def until_no_lag() -> None:
        async with asyncio.timeout(WAIT_S):
            while True:
                (end,) = (await admin.end_offsets([data])).values()
                commits = (await group_admin.committed([group], [data]))[group]
                if data in commits and commits[data].offset == Offset(end):
                    return
                await between_looks()

    async with WorkerProcess(
        bootstrap, tmp_path / "worker.log", "--instance-id", f"w-{topic}"
    ) as worker:
        await worker.serving()
        async with (
            TransactionClient(bootstrap) as client,
            Subscription([topic], group=group, connector=connector) as subscription,
        ):
            async with client.transaction() as txn:
                await txn.send(topic, b"seen")
            async with asyncio.timeout(WAIT_S):
                assert (await anext(subscription)).value == b"seen"
            await subscription.commit()
            waiting = asyncio.create_task(take(subscription))
            async with client.transaction() as txn:
                await txn.send(topic, b"never seen")
                await txn.flush()
                await txn.abort()
            await until_no_lag()
            await asyncio.to_thread(abort_native, bootstrap, topic)
            await until_no_lag()
            assert not waiting.done()
            waiting.cancel()
            await asyncio.wait([waiting])
    await admin.close()
    await group_admin.close()
