"""Consume, transform, produce, as a process.

`python -m tests.support.pending_ack.transformer SERVERS FROM TO GROUP`

Each message of one topic is copied to the other in a transaction that acknowledges it, many at
once; every eleventh transaction aborts on purpose. Runs until it is killed.
"""

import asyncio
import sys

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.client import Message, Subscription, TransactionClient
from stilltide.pipeline.errors import PipelineError

CONCURRENCY = 32
TRANSACTION_TIMEOUT_S = 5.0
SESSION_TIMEOUT_S = 6.0


async def transform(bootstrap: str, source: str, target: str, group: str) -> None:
    """Copies messages until cancelled."""
    connector = KafkaConnector(KafkaConfig(bootstrap, session_timeout_s=SESSION_TIMEOUT_S))
    messages: asyncio.Queue[Message] = asyncio.Queue(CONCURRENCY)
    async with (
        TransactionClient(
            bootstrap, resend_s=0.5, transaction_timeout_s=TRANSACTION_TIMEOUT_S
        ) as client,
        Subscription(
            [source], group=group, connector=connector, acknowledgements=True
        ) as subscription,
        asyncio.TaskGroup() as tasks,
    ):

        async def work(number: int) -> None:
            while True:
                number += 1
                message = await messages.get()
                try:
                    async with client.transaction() as txn:
                        await txn.acknowledge(subscription, message)
                        await txn.send(target, message.value, key=message.key)
                        if number % 11 == 0:
                            await txn.abort()
                except PipelineError as error:
                    sys.stderr.write(f"{error.primary}\n")

        for number in range(CONCURRENCY):
            tasks.create_task(work(number))
        async for message in subscription:
            await messages.put(message)


if __name__ == "__main__":
    asyncio.run(transform(*sys.argv[1:]))
