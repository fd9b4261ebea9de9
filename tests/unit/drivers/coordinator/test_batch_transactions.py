"""L9: transactions whose records another program writes, on the memory broker."""

from stilltide import TransactionClient
from stilltide.pipeline.core.coordinator.client_transaction import Outcome
from stilltide.pipeline.drivers.coordinator.batch_transactions import connect_batches
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.schemas.coordinator.prepared_tokens import encode_token
from stilltide.schemas.coordinator.transactions import Abort
from stilltide.testing import MemoryCluster

TIMEOUT_MS = 60_000


async def test_what_has_aborted_already_is_aborted_without_an_error():
    """A time-out or an operator was faster: the batch can be written again at once."""
    async with (
        MemoryCluster({"orders": 2}) as cluster,
        connect_batches(cluster.connector, "spark", timeout_s=60) as transactions,
        Coordinators(cluster.connector, request_timeout_s=60) as coordinators,
        TransactionClient(connector=cluster.connector) as client,
    ):
        batch = await transactions.open("orders", TIMEOUT_MS)
        txn = batch.token.txn
        await coordinators.ask(txn.coordinator, Abort(txn.sequence))
        await transactions.abort(batch)
        await transactions.decide(encode_token(batch.token), committed=False)
        outcome: Outcome = await client.outcome(txn)
        assert outcome == "aborted"
