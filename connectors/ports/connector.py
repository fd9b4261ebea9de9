"""Port: one cluster's writers, readers and admins."""

from typing import Protocol

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.fetching import Fetching
from stilltide.connectors.ports.readers import GroupReader, LogReader
from stilltide.connectors.ports.writers import LogWriter, TransactionalWriter


class Connector(Protocol):
    """Makes writers, readers and admins of one cluster."""

    def writer(self, client_id: str, *, linger_ms: float = 0) -> LogWriter:
        """A writer: idempotent, acknowledged by all in-sync replicas."""
        ...

    def transactional_writer(self, transactional_id: str) -> TransactionalWriter:
        """A writer of sets of records by native transactions; see `TransactionalWriter`."""
        ...

    def reader(
        self,
        client_id: str,
        *,
        committed: bool = True,
        timestamps: bool = False,
        fetching: Fetching = Fetching.TAILING,
    ) -> LogReader:
        """A reader of named partitions; `committed` hides open and aborted native transactions.

        With `timestamps`, records are `TimedRecord`.
        """
        ...

    def group_reader(self, client_id: str, group: str, *, from_start: bool = True) -> GroupReader:
        """A group's reader of committed data.

        Without a commit for a partition it begins at the log start, or at the end.
        """
        ...

    def admin(self) -> LogAdmin:
        """An admin."""
        ...
