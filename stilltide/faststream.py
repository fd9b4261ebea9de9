"""What a handler of FastStream publishes, and its message's acknowledgement, in one transaction."""

from stilltide.pipeline.faststream.transactions import Transactions

__all__ = ["Transactions"]
