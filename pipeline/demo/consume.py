"""Reads the demo's records with a read-committed subscription."""

from collections.abc import Sequence

from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.client.subscription import Subscription
from stilltide.pipeline.demo.views import View
from stilltide.schemas.digest import record_digest
from stilltide.schemas.values import TopicPartition, TxnId


async def consume(connector: Connector, topics: Sequence[str], group: str) -> View:
    """Reads every partition to its present end; returns the consumer's view."""
    admin = connector.admin()
    try:
        described = await admin.describe_topics(topics)
        partitions = [
            TopicPartition(topic.name, number)
            for topic in described.values()
            for number in range(topic.partition_count)
        ]
        ends = await admin.end_offsets(partitions, committed=True)
    finally:
        await admin.close()
    view = View("consumer", aborted=None)  # a reader does not count the records that it hides
    committed: set[TxnId | None] = {None}
    async with Subscription(topics, group=group, connector=connector) as subscription:
        async for message in subscription.read_to(ends):
            partition = view.partition(TopicPartition(message.topic, message.partition))
            partition.visible += 1
            committed.add(message.txn)
            partition.digest += record_digest(message.key, message.value)
        for data, statistics in subscription.statistics().items():
            view.partition(data).hidden = statistics.hidden
        await subscription.commit()
    view.committed = len(committed) - 1
    return view
