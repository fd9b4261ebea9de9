"""What a broker answers to a write that it refuses, and what a worker says of it then (C17)."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stilltide.connectors.errors import (
    ConnectorError,
    NotAuthorizedError,
    RecordRefusedError,
    RetriableError,
)
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.pipeline.drivers.service import hindrances as module
from stilltide.pipeline.drivers.service.hindrances import Hindrances


def refusal(kind: type[ConnectorError], reason: str, hint: str) -> ConnectorError:
    """What a broker answers to a write."""
    error = kind("cannot write", detail=f"Broker: {reason}", hint=hint)
    error.reason = reason
    return error


WRONG_TIME = refusal(RecordRefusedError, "INVALID_TIMESTAMP", "set the clock right")
TOO_LARGE = refusal(RecordRefusedError, "MSG_SIZE_TOO_LARGE", "raise max.message.bytes")
POLICY = refusal(RecordRefusedError, "INVALID_RECORD", "see the policy of the topic")
FULL_DISK = refusal(RetriableError, "KAFKA_STORAGE_ERROR", "free the disk")
NO_RIGHT = NotAuthorizedError(
    "cannot write: Write on topic t is not allowed to User:w",
    operation="Write",
    resource="topic t",
    principal="User:w",
)
NO_RIGHT.reason = "TOPIC_AUTHORIZATION_FAILED"


def reason_id(value: object) -> str:
    """The id of a parameter: the reason of an error, or the value as text."""
    return getattr(value, "reason", str(value))


def hinder_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What hinders is said after a moment, not after seconds."""
    monkeypatch.setattr(module, "HINDERED_AFTER_S", 0.05)
    monkeypatch.setattr(module, "SILENT_AFTER_S", 0.5)
    monkeypatch.setattr(module, "SILENCE_LOOK_S", 0.05)


@contextmanager
def refused(broker: MemoryBroker, cause: ConnectorError, *topics: str) -> Iterator[None]:
    """The cluster takes no record for these topics during the block."""
    broker.refusals |= dict.fromkeys(topics, cause)
    try:
        yield
    finally:
        for topic in topics:
            del broker.refusals[topic]


async def until_passed(hindrances: Hindrances, *, passed: bool) -> str:
    """Waits until `/readyz` would say so; returns its text."""
    while True:
        found = hindrances.finding()
        if found.passed == passed:
            return found.text
        await asyncio.sleep(0)
