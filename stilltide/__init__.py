"""Transactions and read-committed subscriptions for plain Kafka topics: what applications import.

Each public name is loaded at its first use, so that `import stilltide` takes no time and a program
that only reads never loads the modules that write.
"""

import importlib
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stilltide.connectors.errors import (
        ConnectorError,
        FatalError,
        FencedError,
        OffsetOutOfRangeError,
        RetriableError,
    )
    from stilltide.connectors.kafka.config import KafkaConfig
    from stilltide.connectors.kafka.connector import KafkaConnector
    from stilltide.pipeline.client.batches import Message, MessageBatch
    from stilltide.pipeline.client.prepared import PreparedTransaction
    from stilltide.pipeline.client.subscription import Subscription
    from stilltide.pipeline.client.transaction import Transaction
    from stilltide.pipeline.client.transaction_client import TransactionClient
    from stilltide.pipeline.config.loading import load_settings
    from stilltide.pipeline.config.settings import Settings
    from stilltide.pipeline.errors import (
        AcknowledgementError,
        AlreadyAcknowledgedError,
        ArgumentError,
        ClientFailedError,
        CompactedTopicError,
        ConfigError,
        ForkedError,
        MissingExtraError,
        NotAssignedError,
        NotAwaitedError,
        NotDeliveredError,
        NoTopicError,
        OtherLoopError,
        OutcomeUnknownError,
        PendingAcknowledgementError,
        PipelineError,
        RefusedError,
        RequestTimeoutError,
        SerializerError,
        SystemTopicError,
        TableError,
        TopicRecreatedError,
        TransactionStateError,
        UnavailableError,
        UndecidedError,
        UndecodableError,
        UsageError,
    )
    from stilltide.pipeline.interpreter import tune
    from stilltide.schemas.errors import DecodeError, StilltideError
    from stilltide.schemas.values import TopicPartition, TxnId

__all__ = [
    "AcknowledgementError",
    "AlreadyAcknowledgedError",
    "ArgumentError",
    "ClientFailedError",
    "CompactedTopicError",
    "ConfigError",
    "ConnectorError",
    "DecodeError",
    "FatalError",
    "FencedError",
    "ForkedError",
    "KafkaConfig",
    "KafkaConnector",
    "Message",
    "MessageBatch",
    "MissingExtraError",
    "NoTopicError",
    "NotAssignedError",
    "NotAwaitedError",
    "NotDeliveredError",
    "OffsetOutOfRangeError",
    "OtherLoopError",
    "OutcomeUnknownError",
    "PendingAcknowledgementError",
    "PipelineError",
    "PreparedTransaction",
    "RefusedError",
    "RequestTimeoutError",
    "RetriableError",
    "SerializerError",
    "Settings",
    "StilltideError",
    "Subscription",
    "SystemTopicError",
    "TableError",
    "TopicPartition",
    "TopicRecreatedError",
    "Transaction",
    "TransactionClient",
    "TransactionStateError",
    "TxnId",
    "UnavailableError",
    "UndecidedError",
    "UndecodableError",
    "UsageError",
    "load_settings",
    "tune",
]

_MODULES = {
    "connectors.errors": (
        "ConnectorError",
        "FatalError",
        "FencedError",
        "OffsetOutOfRangeError",
        "RetriableError",
    ),
    "connectors.kafka.config": ("KafkaConfig",),
    "connectors.kafka.connector": ("KafkaConnector",),
    "pipeline.client.batches": ("Message", "MessageBatch"),
    "pipeline.client.prepared": ("PreparedTransaction",),
    "pipeline.client.subscription": ("Subscription",),
    "pipeline.client.transaction": ("Transaction",),
    "pipeline.client.transaction_client": ("TransactionClient",),
    "pipeline.config.loading": ("load_settings",),
    "pipeline.config.settings": ("Settings",),
    "pipeline.interpreter": ("tune",),
    "schemas.errors": ("DecodeError", "StilltideError"),
    "schemas.values": ("TopicPartition", "TxnId"),
}
"""Modules of public names; every other name of `__all__` is an error of `pipeline.errors`."""

_PUBLIC_MODULES = ("databases", "errors", "sync", "testing")


for _link in ("connectors", "pipeline", "schemas"):
    # An archive leaves links out, and Git writes text files where `core.symlinks` is false.
    if PathFinder.find_spec(f"{__name__}.{_link}", __path__) is None:
        raise ImportError(
            f"this checkout of Stilltide lacks the link stilltide/{_link}: "
            f"run `make links` in {__path__[0].removesuffix('/stilltide')}"
        )


def __getattr__(name: str) -> object:
    """Loads a public name, or one of the public modules, at its first use, and keeps it.

    `__version__` is the version of the package that is installed.
    """
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version(__name__)
    if name in _PUBLIC_MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((module for module, names in _MODULES.items() if name in names), "pipeline.errors")
    try:
        value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as error:
        from stilltide.pipeline.extras import missing_extra  # noqa: PLC0415 - needed here alone

        raise missing_extra(f"`{__name__}.{name}`", error) or error from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, for interactive use."""
    return sorted(__all__)
