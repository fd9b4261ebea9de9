"""What one transaction acknowledges, when sending it fails in a way that nobody foresaw."""

import pytest

from stilltide.connectors.chance import SystemChance
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client.transaction_acks import TransactionAcks
from stilltide.pipeline.drivers.pending_ack.acknowledgements import AcknowledgingDriver, AckOptions
from stilltide.pipeline.drivers.subscription.options import SubscriptionOptions
from stilltide.pipeline.drivers.subscription.subscription import SubscriptionDriver
from stilltide.pipeline.errors import ClientFailedError, OtherClusterError
from stilltide.schemas.pending_ack.acknowledgements import AckAnswer, AckBody, Acknowledge
from stilltide.schemas.values import SubscriptionId, TopicPartition, TxnId
from tests.support.coordinator.coordinated import CoordinatedTopic
from tests.support.coordinator.worker_memory import until
from tests.support.pending_ack.store import StateStore

SUBSCRIPTION = SubscriptionId(TopicPartition("orders", 0), "billing")
TXN = TxnId(0, 1)


class Failing(StateStore):
    """A store whose line breaks at acknowledgements."""

    async def ask_about(self, subscription: SubscriptionId, body: AckBody) -> AckAnswer:
        """See `AckStore.ask_about`."""
        if not isinstance(body, Acknowledge):
            return await super().ask_about(subscription, body)
        raise LookupError("no such line")


async def test_an_acknowledgement_that_was_not_sent_is_never_committed():
    """G: the commit raises what its task failed with, rather than going on without it.

    C11: a message of another cluster is refused before it is claimed.
    """
    connector = MemoryConnector(MemoryBroker())
    topic = await CoordinatedTopic.create(connector, "orders", 1)
    await topic.write(0, None)
    driver = SubscriptionDriver(connector, SubscriptionOptions(["orders"], "billing"))
    acknowledging = AcknowledgingDriver(
        driver, Failing(), "billing", AckOptions(), chance=SystemChance()
    )
    await driver.start()
    acknowledging.start()
    try:
        await until(lambda: acknowledging.queue(SUBSCRIPTION.data))
        message = acknowledging.queue(SUBSCRIPTION.data).popleft()
        with pytest.raises(OtherClusterError):  # C11: and nothing is claimed
            TransactionAcks("another", bytes(16)).claim(acknowledging, message, cumulative=False)
        acks = TransactionAcks(acknowledging.cluster_id, bytes(16))
        acks.claim(acknowledging, message, cumulative=False)
        acks.registered(TXN, (SUBSCRIPTION,))
        with pytest.raises(ClientFailedError, match="LookupError: no such line") as caught:
            await acks.gathered()
        assert isinstance(caught.value.__cause__, LookupError)
        acks.ended("aborted")
    finally:
        await acknowledging.close()
        await driver.close()
        await topic.close()
