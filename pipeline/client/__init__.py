"""What applications import: `TransactionClient`, `Transaction`, `Subscription`."""

from pipeline.client.subscription import Message, Subscription
from pipeline.client.transaction import Transaction
from pipeline.client.transaction_client import TransactionClient

__all__ = ["Message", "Subscription", "Transaction", "TransactionClient"]
