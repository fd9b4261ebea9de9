"""Clients that wait until the outcome of their transaction is visible to readers.

*Source*: protocols.md C5.
*Invariants*: a request is answered once, when every marker of its transaction is acknowledged.
"""

from typing import NamedTuple

from stilltide.schemas.coordinator.transactions import Answer, Done, Request


class Reply(NamedTuple):
    """Effect: send this answer; what it says is durable."""

    request: Request
    answer: Answer


class VisibilityWaits:
    """Requests that are answered when their transaction's outcome is visible."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[Request]] = {}

    def __len__(self) -> int:
        """How many transactions are waited for."""
        return len(self._waiting)

    def add(self, sequence: int, request: Request) -> None:
        """The request waits for the outcome of this transaction."""
        self._waiting.setdefault(sequence, []).append(request)

    def visible(self, sequence: int) -> list[Reply]:
        """Readers can know the outcome: the answers of all requests that wait for it."""
        return [Reply(request, Done()) for request in self._waiting.pop(sequence, ())]
