"""What applications import: `TransactionClient`, `Transaction`, `Subscription`.

Each name is loaded at its first use, so that a program that only writes never loads what reads.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stilltide.pipeline.client.subscription import Message, Subscription
    from stilltide.pipeline.client.transaction import Transaction
    from stilltide.pipeline.client.transaction_client import TransactionClient

__all__ = ["Message", "Subscription", "Transaction", "TransactionClient"]

_MODULES = {
    "Message": "subscription",
    "Subscription": "subscription",
    "Transaction": "transaction",
    "TransactionClient": "transaction_client",
}


def __getattr__(name: str) -> object:
    """Loads a public name at its first use, and keeps it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
