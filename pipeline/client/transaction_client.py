"""The entry point for applications that write: `TransactionClient`.

*Source*: docs/protocols C10: what a coordinator would refuse is an error of the caller here.
"""

import itertools
from typing import TYPE_CHECKING, Self, Unpack

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.names import check_name
from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.client.bounds import (
    TransactionKeywords,
    transaction_options,
    transaction_timeout_ms,
)
from stilltide.pipeline.client.cluster import ClientCluster, connect
from stilltide.pipeline.client.prepared import PreparedTransaction, resumed
from stilltide.pipeline.client.serializers import field_serializers
from stilltide.pipeline.client.transaction import Transaction
from stilltide.pipeline.client.usage import check_connection, check_txn, not_open, require
from stilltide.pipeline.core.coordinator.client_transaction import Outcome
from stilltide.pipeline.errors import UsageError
from stilltide.pipeline.tracing import tracing_of
from stilltide.schemas.values import TxnId

if TYPE_CHECKING:
    from stilltide.pipeline.tracing.spans import Tracing

_OPEN = "use it as a context manager: `async with TransactionClient(...) as client:`"


class TransactionClient:
    """Makes coordinated transactions on one cluster; an async context manager.

    Args:
        bootstrap_servers: addresses of brokers, as for any Kafka client; or give `connector`.
        connector: a ready connector, instead of `bootstrap_servers`.
        name: the client's name in client ids and logs.
        transaction_timeout_s: time after which the coordinator aborts an open transaction (C7); a
            transaction that was opened ahead gets up to a second more (C9). At least 0.001; a value
            above the workers' setting `txn_timeout_ms_max` is refused when a transaction opens.
        options: time-outs, limits and choices by name; `TransactionOptions` documents each of them
            and its default: `request_timeout_s`, `resend_s`, `open_transactions_max`, `linger_ms`,
            `metadata_max_age_s`, `direct_line`, `allow_compacted`, `value_serializer`,
            `key_serializer`.

    Raises:
        ConfigError: a time-out, or another number, is out of its bounds.
        ArgumentError: an argument is of another type, or contradicts another one.
        InvalidTextError: the name, or an address, is none that the Kafka client can take.

    Raises on entry:
        FatalError: the system topics do not exist.
        RetriableError: the cluster cannot be reached; the error names its address.
    """

    def __init__(
        self,
        bootstrap_servers: str | None = None,
        *,
        connector: Connector | None = None,
        name: str = "stilltide",
        transaction_timeout_s: float = 60.0,
        **options: Unpack[TransactionKeywords],
    ) -> None:
        check_connection(bootstrap_servers, connector)
        check_name(name, "`name`")
        self._options = transaction_options(**options)
        self._connector = connector or KafkaConnector(
            KafkaConfig(bootstrap_servers=bootstrap_servers or "")
        )
        self._name = name
        self._transaction_timeout_ms = transaction_timeout_ms(
            "transaction_timeout_s", transaction_timeout_s
        )
        self._serializers = field_serializers(
            self._options.key_serializer, self._options.value_serializer
        )
        self._turn = itertools.count()
        self._cluster: ClientCluster | None = None
        self._tracing: Tracing | None = None

    async def __aenter__(self) -> Self:
        if self._cluster is not None:
            self._cluster.home.check()
            raise UsageError("the client is open", hint="make another one, or share this one")
        self._cluster = await connect(self._connector, name=self._name, options=self._options)
        self._tracing = tracing_of(self._name)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Releases connections; transactions still open are aborted by their time-out."""
        if self._cluster is not None:
            self._cluster.home.check()
            cluster, self._cluster = self._cluster, None
            await cluster.close()

    async def outcome(self, txn: TxnId) -> Outcome:
        """How a transaction ended: `committed` or `aborted`; or `open`, `prepared` or `forgotten`.

        For a transaction whose `commit` has raised `OutcomeUnknownError`, in this process or in one
        that has ended. Coordinators remember the last `outcome_history` transactions (C12). A
        transaction of another client is told once it has ended.

        Args:
            txn: id of the transaction, `Transaction.id`.

        Raises:
            RefusedError: there is no such transaction, or another client's has not ended.
            RequestTimeoutError: no answer in time; ask again.
        """
        if self._cluster is None:
            raise not_open("client", _OPEN)
        self._cluster.home.check()
        check_txn(txn)
        return await self._cluster.outcome(txn)

    def resume(self, token: str) -> PreparedTransaction:
        """The prepared transaction of a token, to commit or abort it, from any process.

        Args:
            token: what `Transaction.prepare` has returned.

        Raises:
            PreparedTokenError: the token is cut short or altered, or of another cluster.
            UnknownVersionError: a later version of Stilltide made the token.
        """
        if self._cluster is None:
            raise not_open("client", _OPEN)
        self._cluster.home.check()
        require(str, token=token)
        return resumed(self._cluster, token)

    def transaction(self, *, timeout_s: float | None = None) -> Transaction:
        """A new transaction, to be used as an async context manager.

        The transaction commits when the block ends, and aborts when an exception leaves the block.
        The first `send` opens the transaction at its coordinator.

        Args:
            timeout_s: the transaction's time-out, instead of `transaction_timeout_s`.

        Raises:
            ConfigError: the time-out is out of its bounds; nothing was sent.
        """
        if self._cluster is None:
            raise not_open("client", _OPEN)
        timeout_ms = self._transaction_timeout_ms
        if timeout_s is not None:
            timeout_ms = transaction_timeout_ms("timeout_s", timeout_s)
        return Transaction(
            self._cluster,
            turn=next(self._turn),
            timeout_ms=timeout_ms,
            serializers=self._serializers,
            tracing=self._tracing,
        )
