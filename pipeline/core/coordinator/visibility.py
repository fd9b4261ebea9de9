"""Clients that wait until the outcome of their transaction is visible to readers.

*Source*: docs/protocols C5.
*Invariants*: a request is answered once, when every marker of its transaction is acknowledged.
"""

from typing import NamedTuple

from stilltide.schemas.coordinator.transactions import Answer, Done, Request


class Reply(NamedTuple):
    """Effect: send this answer to the client; its content is durable."""

    request: Request
    answer: Answer


class VisibilityWaits:
    """Commit requests that are answered when the transaction's outcome is visible."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[Request]] = {}

    def __len__(self) -> int:
        """How many transactions have a waiting request."""
        return len(self._waiting)

    def add(self, sequence: int, request: Request) -> None:
        """Keeps the request until the outcome of this transaction is visible."""
        self._waiting.setdefault(sequence, []).append(request)

    def visible(self, sequence: int) -> list[Reply]:
        """Readers can see the outcome: returns the answers to all requests that wait for it."""
        return [Reply(request, Done()) for request in self._waiting.pop(sequence, ())]
