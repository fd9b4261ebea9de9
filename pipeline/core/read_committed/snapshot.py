"""The part of a snapshot of aborted transactions that the read-committed filter uses.

*Source*: docs/protocols D4.
"""

from typing import Protocol

from stilltide.schemas.values import EndOffset


class SnapshotView(Protocol):
    """Which records of a data partition are hidden, from F up to M."""

    @property
    def max_read_position(self) -> EndOffset:
        """M: every transaction with a record below this offset has ended and is accounted for."""
        ...

    @property
    def valid_from(self) -> EndOffset:
        """F: the snapshot decides no record below this offset, for those have left the log."""
        ...

    def hides(self, coordinator: int, sequence: int) -> bool:
        """Whether every record of this transaction at or past F is hidden."""
        ...

    def holds(self, coordinator: int, sequence: int) -> bool:
        """Whether the aborted set holds this very transaction."""
        ...
