"""What applications import: `TransactionClient`, `Transaction`, `Subscription`."""

from stilltide.pipeline.client.subscription import Message, Subscription
from stilltide.pipeline.client.transaction import Transaction
from stilltide.pipeline.client.transaction_client import TransactionClient

__all__ = ["Message", "Subscription", "Transaction", "TransactionClient"]
