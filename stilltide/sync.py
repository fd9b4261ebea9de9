"""The client library for programs without an event loop: `from stilltide import sync`.

The names, arguments and errors are those of `stilltide`. Each call waits until it is done, and may
come from any thread. Open clients and subscriptions after the process was forked.
"""

from stilltide.pipeline.client.sync.subscription import SyncSubscription as Subscription
from stilltide.pipeline.client.sync.transactions import (
    SyncPreparedTransaction as PreparedTransaction,
)
from stilltide.pipeline.client.sync.transactions import SyncTransaction as Transaction
from stilltide.pipeline.client.sync.transactions import SyncTransactionClient as TransactionClient
from stilltide.pipeline.databases.decisions import SyncDecisions as Decisions
from stilltide.schemas.values import TopicPartition, TxnId

__all__ = [
    "Decisions",
    "PreparedTransaction",
    "Subscription",
    "TopicPartition",
    "Transaction",
    "TransactionClient",
    "TxnId",
]
