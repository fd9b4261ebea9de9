"""Errors for a message that cannot be acknowledged.

*Source*: docs/protocols G.
"""

from stilltide.pipeline.errors import (
    AcknowledgementError,
    AlreadyAcknowledgedError,
    NotDeliveredError,
    PendingAcknowledgementError,
)
from stilltide.schemas.values import TopicPartition


def not_delivered(data: TopicPartition, offset: int) -> AcknowledgementError:
    """The message was not delivered to the application."""
    error = NotDeliveredError(
        "the message was not delivered to this member", hint="receive it first"
    )
    error.at(data.topic, data.partition, offset)
    return error


def already_acknowledged(data: TopicPartition, offset: int) -> AcknowledgementError:
    """The message, or each of several messages, is acknowledged already."""
    error = AlreadyAcknowledgedError(
        "the message is acknowledged already", hint="acknowledge a message once"
    )
    error.at(data.topic, data.partition, offset)
    return error


def pending(data: TopicPartition, offset: int) -> AcknowledgementError:
    """A transaction has acknowledged the message, and the transaction's outcome is not known."""
    error = PendingAcknowledgementError(
        "the message is acknowledged in a transaction that is not settled",
        hint="it is delivered again should that transaction abort",
    )
    error.at(data.topic, data.partition, offset)
    return error
