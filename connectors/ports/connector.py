"""Port: one cluster's writers, readers and admins."""

from typing import Protocol

from stilltide.connectors.chance import Chance
from stilltide.connectors.clock import Clock
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.fetching import Fetching
from stilltide.connectors.ports.readers import GroupReader, LogReader
from stilltide.connectors.ports.writers import LogWriter, TransactionalWriter

METADATA_MAX_AGE_S = 300.0
"""How old the description of a topic may become; the default of Kafka's own clients."""


class Connector(Protocol):
    """Makes writers, readers and admins of one cluster, and has the ports to time and chance."""

    @property
    def clock(self) -> Clock:
        """The clocks of this process, for all that uses the cluster."""
        ...

    @property
    def chance(self) -> Chance:
        """Where ids, secrets and random delays of all that uses the cluster come from."""
        ...

    def own_id(self, name: str) -> str:
        """The name of a group, or a transactional id, of Stilltide's own processes (C15).

        Begins with `stilltide.`, so that one prefixed right covers all of them.
        """
        ...

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

    def group_reader(
        self,
        client_id: str,
        group: str,
        *,
        from_start: bool = True,
        since_ms: int | None = None,
        metadata_max_age_s: float = METADATA_MAX_AGE_S,
    ) -> GroupReader:
        """A group's reader of committed data.

        Without a commit for a partition it begins at the log start, at the end, or at a time, as
        `LogAdmin.start_offsets` finds it. A partition that
        the topic has gained since begins at the log start in any case: a partition that this reader
        did not find at its first assignment, or one in a topic of which the group has committed
        other partitions.

        Args:
            client_id: name of the reader at the brokers.
            group: name of the consumer group.
            from_start: whether to begin at the log start.
            since_ms: time at which to begin, instead of `from_start`; milliseconds since 1970.
            metadata_max_age_s: longest time until the group shares out an added partition, > 0.
        """
        ...

    def admin(self) -> LogAdmin:
        """An admin."""
        ...
