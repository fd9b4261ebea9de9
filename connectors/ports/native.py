"""Port to the brokers' own view of Kafka's transactions.

*Source*: KIP-664.
"""

from collections.abc import Sequence
from typing import Protocol

from stilltide.schemas.native.transactions import (
    ActiveProducer,
    DescribedTransaction,
    ListedTransaction,
)
from stilltide.schemas.values import TopicPartition


class NativeTransactions(Protocol):
    """The brokers' own view of Kafka's transactions, and their last resort (KIP-664).

    Only `connectors.kafka` has one: the memory broker has no transaction coordinators, producer
    ids or markers, and a fake of their disagreements would prove nothing about brokers.

    Every method raises `RetriableError` when a broker is away, or a coordinator is on the move, for
    longer than the request time-out, and `FatalError` when it may not ask, or is closed.
    """

    async def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        older_than_ms: int | None = None,
    ) -> list[ListedTransaction]:
        """The transactional ids of all coordinators, ascending; filters that are empty let all by.

        Complete: raises rather than leave out what a coordinator without a leader may know.

        Args:
            states: of `TransactionState`; a broker passes over one that it does not know.
            producer_ids: those that the ids have now.
            older_than_ms: only ids whose transaction has been open for longer.

        Raises:
            FatalError: the brokers (before Kafka 3.8) cannot select by age.
        """
        ...

    async def describe_transaction(self, transactional_id: str) -> DescribedTransaction | None:
        """What its coordinator knows; None when that knows no such id."""
        ...

    async def producers(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, list[ActiveProducer]]:
        """The producers that each partition's leader remembers, ascending.

        Raises:
            FatalError: a partition does not exist.
        """
        ...

    async def write_abort_marker(self, data: TopicPartition, producer: ActiveProducer) -> None:
        """Ends the producer's open transaction on one partition with an ABORT marker.

        The coordinator and the producer are not told: only for a transaction that no coordinator
        has, else half of it may commit. Returns when the marker is on all in-sync replicas.

        Raises:
            FencedError: the producer has a newer epoch there; nothing was written.
            FatalError: a coordinator with a newer epoch has written there; nothing was written.
            RetriableError: the marker may have been written.
        """
        ...

    async def close(self) -> None:
        """Ends connections; what waits raises `FatalError`. Safe to call twice."""
        ...
