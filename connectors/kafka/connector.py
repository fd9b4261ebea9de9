"""The Kafka connector: one cluster's writers, readers and admins.

*Source*: connectors.ports.

Parts that only workers, links and operators use are imported when a program first asks for one:
applications start sooner. Some are on kafka-python, which takes longer to load than the client
library, and which applications do not have.
"""

from functools import cached_property
from typing import TYPE_CHECKING

from stilltide.connectors.chance import SystemChance
from stilltide.connectors.clock import SystemClock
from stilltide.connectors.kafka.admin.admin import KafkaAdmin
from stilltide.connectors.kafka.admin.client import SharedAdminClients
from stilltide.connectors.kafka.config import (
    KafkaConfig,
    group_options,
    own_id,
    reader_options,
)
from stilltide.connectors.kafka.consumer.groups import KafkaGroupReader
from stilltide.connectors.kafka.consumer.inbox import converted, timed
from stilltide.connectors.kafka.consumer.reader import KafkaReader, SharedConsumers, by_columns
from stilltide.connectors.kafka.producer.writer import KafkaWriter
from stilltide.connectors.ports.connector import METADATA_MAX_AGE_S
from stilltide.connectors.ports.copying import Columns
from stilltide.connectors.ports.readers import Fetching, Record

if TYPE_CHECKING:
    from stilltide.connectors.kafka.admin.groups import KafkaGroupAdmin
    from stilltide.connectors.kafka.admin.native_transactions import KafkaNativeTransactions
    from stilltide.connectors.kafka.admin.rights import KafkaRights
    from stilltide.connectors.kafka.admin.topics import KafkaTopicAdmin
    from stilltide.connectors.kafka.producer.copying import CopyBatches
    from stilltide.connectors.kafka.producer.native_producer import (
        KafkaTransactionalWriter,
        TransactionalIds,
    )
    from stilltide.connectors.kafka.raw.fetch import KafkaBatchReader
    from stilltide.connectors.kafka.raw.line import SharedLine
    from stilltide.connectors.ports.copying import CopyWriter


class KafkaConnector:
    """The connector of one Kafka cluster, for links, groups and topics; connects when used."""

    def __init__(self, config: KafkaConfig) -> None:
        self.clock = SystemClock()
        self.chance = SystemChance()
        self._config = config
        self._shared = SharedConsumers(config)
        self._admin_clients = SharedAdminClients(config)

    async def reach(self) -> None:
        """As `KafkaConfig.reach`, for who uses Spark before a client of this connector."""
        await self._config.reach()

    def own_id(self, name: str) -> str:
        """The name of a group, or a transactional id, of Stilltide's own."""
        return own_id(self._config, name)

    def writer(self, client_id: str, *, linger_ms: float = 0) -> KafkaWriter:
        """A writer: idempotent, acknowledged by all in-sync replicas."""
        return KafkaWriter(self._config, client_id, linger_ms)

    def transactional_writer(self, transactional_id: str) -> "KafkaTransactionalWriter":
        """A writer of sets of records, each whole or not at all."""
        from stilltide.connectors.kafka.producer.native_producer import (  # noqa: PLC0415 - see the module's docstring
            KafkaTransactionalWriter,
        )

        return KafkaTransactionalWriter(self._config, transactional_id, self._transactional_ids)

    def reader(
        self,
        client_id: str,
        *,
        committed: bool = True,
        timestamps: bool = False,
        fetching: Fetching = Fetching.TAILING,
    ) -> KafkaReader[Record]:
        """A reader of named partitions; see `Connector.reader`."""
        options, shareable = (
            reader_options(self._config, name, committed=committed, fetching=fetching)
            for name in (client_id, f"shared-{fetching.value}")
        )
        shared = None if fetching is Fetching.SCANNING else (self._shared, shareable)
        return KafkaReader(self._config, options, timed if timestamps else converted, shared)

    def column_reader(self, client_id: str) -> KafkaReader[Columns]:
        """A reader of columns of committed native data."""
        options = reader_options(self._config, client_id, committed=True)
        return KafkaReader(self._config, options, by_columns, None)

    def copy_writer(self, transactional_id: str) -> "CopyWriter":
        """A writer of large native transactions, the slower one if the id needs it (H11)."""
        from stilltide.connectors.kafka.producer.copying import (  # noqa: PLC0415 - see the module's docstring
            KafkaCopyWriter,
        )

        ids = self._transactional_ids
        if transactional_id in ids.exact:
            from stilltide.connectors.kafka.raw.exact_copying import (  # noqa: PLC0415 - as above
                ExactCopyWriter,
            )

            return ExactCopyWriter(self._config, transactional_id, ids)
        return KafkaCopyWriter(self._config, transactional_id, self._copy_batches, ids)

    def batch_reader(self, client_id: str) -> "KafkaBatchReader":
        """A reader of raw batches."""
        from stilltide.connectors.kafka.raw.fetch import (  # noqa: PLC0415 - see the module's docstring
            KafkaBatchReader,
        )

        return KafkaBatchReader(self._config, client_id)

    def native_transactions(self, client_id: str) -> "KafkaNativeTransactions":
        """The brokers' view of their own transactions."""
        from stilltide.connectors.kafka.admin.native_transactions import (  # noqa: PLC0415 - see the module's docstring
            KafkaNativeTransactions,
        )

        return KafkaNativeTransactions(self._config, client_id)

    def group_reader(
        self,
        client_id: str,
        group: str,
        *,
        from_start: bool = True,
        since_ms: int | None = None,
        metadata_max_age_s: float = METADATA_MAX_AGE_S,
    ) -> KafkaGroupReader:
        """A group's reader of committed native data; see `Connector.group_reader`."""
        options = group_options(self._config, client_id, group, metadata_max_age_s)
        return KafkaGroupReader(
            self._config, options, group, from_start=from_start, since_ms=since_ms
        )

    def admin(self) -> KafkaAdmin:
        """An admin; the connector's admins share their connections."""
        return KafkaAdmin(self._config, self._admin_clients)

    def topic_admin(self) -> "KafkaTopicAdmin":
        """An admin of the replicas and configs of topics."""
        from stilltide.connectors.kafka.admin.topics import (  # noqa: PLC0415 - see the module's docstring
            KafkaTopicAdmin,
        )

        return KafkaTopicAdmin(self._config)

    def rights(self) -> "KafkaRights":
        """Asks the cluster for the rights of this user; shares the line of group admins."""
        from stilltide.connectors.kafka.admin.rights import (  # noqa: PLC0415 - see the module's docstring
            KafkaRights,
        )

        return KafkaRights(self._admin_line)

    def group_admin(self) -> "KafkaGroupAdmin":
        """An admin of consumer groups; the connector's admins share their connections."""
        from stilltide.connectors.kafka.admin.groups import (  # noqa: PLC0415 - see the module's docstring
            KafkaGroupAdmin,
        )

        return KafkaGroupAdmin(self._admin_line)

    @cached_property
    def _admin_line(self) -> "SharedLine":
        from stilltide.connectors.kafka.raw.line import (  # noqa: PLC0415 - see the module's docstring
            SharedLine,
        )

        return SharedLine(self._config, "stilltide-admin")

    @cached_property
    def _copy_batches(self) -> "CopyBatches":
        from stilltide.connectors.kafka.producer.copying import (  # noqa: PLC0415 - see the module's docstring
            CopyBatches,
        )

        return CopyBatches()

    @cached_property
    def _transactional_ids(self) -> "TransactionalIds":
        from stilltide.connectors.kafka.producer.native_producer import (  # noqa: PLC0415 - see the module's docstring
            TransactionalIds,
        )

        return TransactionalIds()
