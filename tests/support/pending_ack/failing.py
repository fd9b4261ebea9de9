"""A member of a group that cannot process some messages, as a process.

`python -m tests.support.pending_ack.failing SERVERS TOPIC GROUP`

Prints the offset and the number of deliveries of each message as JSON, and acknowledges the message
unless its value begins with `bad`. Half of the bad ones fail in a transaction. Runs until killed.
"""

import asyncio
import json
import sys
from contextlib import suppress

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.client import Message, Subscription, TransactionClient

DELIVERIES_MAX = 3
REDELIVERY_S = 0.2
UNACKNOWLEDGED_MAX = 6
"""Few, so that dead letters come one after the other, and a member can be killed in between."""
SESSION_TIMEOUT_S = 6.0


async def consume(bootstrap: str, topic: str, group: str) -> None:
    """Takes messages until cancelled."""
    connector = KafkaConnector(KafkaConfig(bootstrap, session_timeout_s=SESSION_TIMEOUT_S))
    async with (
        TransactionClient(bootstrap, transaction_timeout_s=5) as client,
        Subscription(
            [topic],
            group=group,
            connector=connector,
            acknowledgements=True,
            deliveries_max=DELIVERIES_MAX,
            redelivery_delay_s=REDELIVERY_S,
            unacknowledged_records_max=UNACKNOWLEDGED_MAX,
        ) as subscription,
        asyncio.TaskGroup() as tasks,
    ):
        async for message in subscription:
            sys.stdout.write(json.dumps([message.offset, message.deliveries]) + "\n")
            sys.stdout.flush()
            if not (message.value or b"").startswith(b"bad"):
                subscription.acknowledge(message)
            elif message.offset % 2:
                subscription.negative_acknowledge(message, f"offset {message.offset} is bad")
            else:
                tasks.create_task(fail(client, subscription, message))


async def fail(client: TransactionClient, subscription: Subscription, message: Message) -> None:
    """Aborts a transaction that acknowledges the message."""
    with suppress(ValueError):
        async with client.transaction() as txn:
            await txn.acknowledge(subscription, message)
            raise ValueError(f"offset {message.offset} is bad")


if __name__ == "__main__":
    asyncio.run(consume(*sys.argv[1:]))
