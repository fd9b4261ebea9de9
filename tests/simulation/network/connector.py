"""The network between simulated processes and the memory broker of each cluster.

*Source*: connectors.ports. What Kafka promises holds: order in a partition, a record that was
reported stays. Everything else may happen: requests and answers take time, a path is slow, cut, or
lets only one direction through, so that a request is carried out and its answer is lost.

*Invariants*: what a process has sent arrives also after its death, or never; nothing is repeated.
"""

from typing import Any

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.ports.connector import METADATA_MAX_AGE_S
from stilltide.connectors.ports.readers import Fetching
from tests.simulation.network.paths import Path, Remote, RemoteCopyWriter, RemoteTransactionalWriter
from tests.simulation.network.readers import (
    NetworkColumnReader,
    NetworkGroupReader,
    NetworkReader,
)
from tests.simulation.network.writers import NetworkWriter


class NetworkConnector:
    """The connector of one process to one cluster: that of the memory broker, at a distance.

    Args:
        broker: the cluster.
        path: the connections of the process.
        writer_records_max: records of a writer without a report at which it refuses more.
    """

    def __init__(
        self, broker: MemoryBroker, path: Path, *, writer_records_max: int = 10_000
    ) -> None:
        self._broker = broker
        self._path = path
        self.cluster = path.cluster
        self.clock, self.chance = path.clock, path.chance
        self._inner = MemoryConnector(
            broker, writer_records_max=1_000_000, clock=path.clock, chance=path.chance
        )
        self._writer_records_max = writer_records_max

    @property
    def assigned_s(self) -> float:
        """When the brokers gave a group reader of the process its last partitions."""
        return self._path.assigned_s

    def own_id(self, name: str) -> str:
        """The name of a group, or a transactional id, of Stilltide's own."""
        return self._inner.own_id(name)

    def writer(self, client_id: str, *, linger_ms: float = 0) -> NetworkWriter:
        """A writer."""
        del client_id, linger_ms
        return NetworkWriter(self._broker, self._path, self._writer_records_max)

    def reader(
        self,
        client_id: str,
        *,
        committed: bool = True,
        timestamps: bool = False,
        fetching: Fetching = Fetching.TAILING,
    ) -> NetworkReader:
        """A reader of named partitions."""
        del fetching
        inner = self._inner.reader(client_id, committed=committed, timestamps=timestamps)
        return NetworkReader(inner, self._path)

    def column_reader(self, client_id: str) -> NetworkColumnReader:
        """A reader of columns."""
        return NetworkColumnReader(self._inner.reader(client_id), self._path)

    def group_reader(
        self,
        client_id: str,
        group: str,
        *,
        from_start: bool = True,
        since_ms: int | None = None,
        metadata_max_age_s: float = METADATA_MAX_AGE_S,
    ) -> NetworkGroupReader:
        """A group's reader."""
        inner = self._inner.group_reader(
            client_id,
            group,
            from_start=from_start,
            since_ms=since_ms,
            metadata_max_age_s=metadata_max_age_s,
        )
        return NetworkGroupReader(inner, self._path, self._broker, group)

    def transactional_writer(self, transactional_id: str) -> Any:
        """A writer of sets of records."""
        inner = self._inner.transactional_writer(transactional_id)
        return RemoteTransactionalWriter(inner, self._path)

    def copy_writer(self, transactional_id: str) -> Any:
        """A writer of large native transactions."""
        inner = self._inner.copy_writer(transactional_id)
        return RemoteCopyWriter(inner, self._path, self._broker, transactional_id)

    def native_transactions(self, client_id: str) -> None:
        """None: the memory broker ends a transaction on all its partitions at once."""
        del client_id

    def admin(self) -> Any:
        """An admin."""
        return Remote(self._inner.admin(), self._path)

    def topic_admin(self) -> Any:
        """An admin of replicas and configs."""
        return Remote(self._inner.topic_admin(), self._path)

    def group_admin(self) -> Any:
        """An admin of consumer groups."""
        return Remote(self._inner.group_admin(), self._path)
