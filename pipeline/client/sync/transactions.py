"""Transactions for programs without an event loop, and for every thread of a program.

*Source*: docs/services.md. The names, arguments and errors are those of `TransactionClient` and
`Transaction`; each call waits until the awaited call has ended on the event loop of the process.
"""

from typing import Any, Self, Unpack

from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.client.batches import MessageBatch
from stilltide.pipeline.client.bounds import TransactionKeywords
from stilltide.pipeline.client.deciding_database import DecidingDatabase
from stilltide.pipeline.client.prepared import PreparedDescription, PreparedTransaction
from stilltide.pipeline.client.subscription import Subscription
from stilltide.pipeline.client.sync.loop_thread import LoopCalls
from stilltide.pipeline.client.sync.subscription import SyncSubscription
from stilltide.pipeline.client.transaction import Transaction
from stilltide.pipeline.client.transaction_client import TransactionClient
from stilltide.pipeline.client.usage import not_open
from stilltide.pipeline.core.coordinator.client_transaction import Outcome
from stilltide.pipeline.errors import ArgumentError
from stilltide.schemas.headers import Headers
from stilltide.schemas.values import TopicPartition, TxnId


class ClientKeywords(TransactionKeywords, total=False):
    """Keyword arguments of `TransactionClient`."""

    connector: Connector | None
    name: str
    transaction_timeout_s: float


class SyncTransaction:
    """One transaction; made by `SyncTransactionClient.transaction`, used as a context manager.

    Leaving the block commits; leaving it by an exception aborts. Several threads may send.
    """

    def __init__(self, calls: LoopCalls, txn: Transaction) -> None:
        self._calls = calls
        self._txn = txn

    @property
    def id(self) -> TxnId | None:
        """As `Transaction.id`."""
        return self._txn.id

    @property
    def state(self) -> str:
        """As `Transaction.state`."""
        return self._txn.state

    @property
    def delivered(self) -> dict[TopicPartition, int]:
        """As `Transaction.delivered`."""
        return self._calls.call(lambda: self._txn.delivered)

    def __enter__(self) -> Self:
        self._calls.run(self._txn.__aenter__())
        self._txn.trace.enter()  # in this thread; the event loop has entered it in a task
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._calls.run(self._txn.__aexit__(kind, error, trace))
        finally:
            self._txn.trace.leave()

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> TopicPartition:
        """Writes one record as part of the transaction; as `Transaction.send`."""
        sent = self._txn.send(topic, value, key=key, headers=headers, partition=partition)
        return self._calls.run(sent)

    def acknowledge(self, subscription: SyncSubscription, message: Record | MessageBatch) -> None:
        """Acknowledges a message, or a batch, at the commit; as `Transaction.acknowledge`."""
        self._calls.run(self._txn.acknowledge(_on_loop(subscription), message))

    def acknowledge_cumulative(self, subscription: SyncSubscription, message: Record) -> None:
        """Acknowledges a message and all before it in its partition; else as `acknowledge`."""
        self._calls.run(self._txn.acknowledge_cumulative(_on_loop(subscription), message))

    def flush(self) -> None:
        """Waits until every record sent so far is durable; as `Transaction.flush`."""
        self._calls.run(self._txn.flush())

    def token_id(self) -> str:
        """The name that the transaction has when it is prepared; as `Transaction.token_id`."""
        return self._calls.run(self._txn.token_id())

    def prepare(self, *, decider: str | DecidingDatabase = "") -> str:
        """Makes the content final, and returns its token; as `Transaction.prepare`."""
        return self._calls.run(self._txn.prepare(decider=decider))

    def commit(self, *, wait_visible: bool = False) -> None:
        """Makes every record of the transaction visible, or raises; as `Transaction.commit`."""
        self._calls.run(self._txn.commit(wait_visible=wait_visible))

    def abort(self) -> None:
        """Hides every record of the transaction for good; as `Transaction.abort`."""
        self._calls.run(self._txn.abort())


class SyncPreparedTransaction:
    """A prepared transaction; made by `SyncTransactionClient.resume`."""

    def __init__(self, calls: LoopCalls, txn: PreparedTransaction) -> None:
        self._calls = calls
        self._txn = txn

    @property
    def id(self) -> TxnId:
        """As `PreparedTransaction.id`."""
        return self._txn.id

    def commit(self, *, wait_visible: bool = False) -> None:
        """Makes every record visible, or raises; as `PreparedTransaction.commit`."""
        self._calls.run(self._txn.commit(wait_visible=wait_visible))

    def abort(self, *, wait_visible: bool = False) -> None:
        """Hides every record for good, or raises; as `PreparedTransaction.abort`."""
        self._calls.run(self._txn.abort(wait_visible=wait_visible))

    def describe(self) -> PreparedDescription:
        """What the coordinator knows; as `PreparedTransaction.describe`."""
        return self._calls.run(self._txn.describe())


def _on_loop(subscription: object) -> Subscription:
    if not isinstance(subscription, SyncSubscription):
        raise ArgumentError(
            f"`subscription` is a {type(subscription).__name__}, not a Subscription",
            hint="give a Subscription of `stilltide.sync`",
        )
    return subscription.on_loop


class SyncTransactionClient:
    """Makes transactions on one cluster; a context manager, used from every thread.

    Open a client once in each process, after the process was forked, and share it.

    Args:
        bootstrap_servers: addresses of brokers, as for any Kafka client; or give `connector`.
        options: the other arguments of `TransactionClient`, by name.

    Raises:
        ConfigError: a time-out, or another number, is out of its bounds.
        TypeError: an argument has an unknown name.
    """

    def __init__(
        self, bootstrap_servers: str | None = None, **options: Unpack[ClientKeywords]
    ) -> None:
        self._client = TransactionClient(bootstrap_servers, **options)
        self._calls: LoopCalls | None = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Connects, as entering the client does, for programs whose life is no `with` block.

        Raises:
            FatalError: the system topics do not exist.
            RetriableError: the cluster cannot be reached; the error names its address.
            UsageError: the client is open.
        """
        calls = self._calls or LoopCalls("client")
        calls.run(self._client.__aenter__())
        self._calls = calls

    def close(self) -> None:
        """Releases connections; transactions still open are aborted by their time-out."""
        if self._calls is not None:
            self._calls.run(self._client.close())
            self._calls = None

    def outcome(self, txn: TxnId) -> Outcome:
        """How a transaction ended; as `TransactionClient.outcome`."""
        return self._opened().run(self._client.outcome(txn))

    def resume(self, token: str) -> SyncPreparedTransaction:
        """The prepared transaction of a token; as `TransactionClient.resume`."""
        calls = self._opened()
        return SyncPreparedTransaction(calls, calls.call(lambda: self._client.resume(token)))

    def transaction(self, *, timeout_s: float | None = None) -> SyncTransaction:
        """A new transaction, to be used as a context manager; as `TransactionClient.transaction`.

        Args:
            timeout_s: the transaction's time-out, instead of `transaction_timeout_s`.
        """
        calls = self._opened()
        return SyncTransaction(
            calls, calls.call(lambda: self._client.transaction(timeout_s=timeout_s))
        )

    def _opened(self) -> LoopCalls:
        if self._calls is None:
            raise not_open("client", "open it: `with TransactionClient(...) as client:`")
        return self._calls
