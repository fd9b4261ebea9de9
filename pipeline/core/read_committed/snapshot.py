"""What the read-committed machine asks of a snapshot of aborted transactions.

*Source*: docs/protocols D4.
"""

from typing import Protocol

from stilltide.schemas.values import EndOffset


class SnapshotView(Protocol):
    """Which records are hidden, and up to where that is all there is to know."""

    @property
    def max_read_position(self) -> EndOffset:
        """Every transaction with a record below it has ended, and is accounted for (M)."""
        ...

    @property
    def valid_from(self) -> EndOffset:
        """It decides nothing below: those records have left the log (F)."""
        ...

    def hides(self, coordinator: int, sequence: int) -> bool:
        """Whether records of this transaction are hidden wherever they lie, at or past F."""
        ...

    def holds(self, coordinator: int, sequence: int) -> bool:
        """Whether it says of this very transaction that it aborted."""
        ...
