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
    """The brokers' own view of Kafka's transactions, and the tool for those that hang (KIP-664).

    Only `connectors.kafka` has one: the memory broker has no transaction coordinators, producer
    ids or markers, and a fake of their disagreements would prove nothing about brokers.

    Every method raises `RetriableError` when a broker is away, or a coordinator moves, for longer
    than the request time-out, and `FatalError` when not authorised, or after `close`.
    """

    async def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        older_than_ms: int | None = None,
    ) -> list[ListedTransaction]:
        """The transactional ids of all coordinators, ascending; an empty filter selects all.

        The list is complete: the call raises if a coordinator has no leader.

        Args:
            states: states to select, of `TransactionState`; a broker ignores unknown ones.
            producer_ids: present producer ids to select.
            older_than_ms: age above which the open transaction of an id is selected.

        Raises:
            FatalError: the brokers (before Kafka 3.8) cannot filter by age.
        """
        ...

    async def describe_transaction(self, transactional_id: str) -> DescribedTransaction | None:
        """The id's state at its coordinator; None when the coordinator does not know the id."""
        ...

    async def producers(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, list[ActiveProducer]]:
        """The producers that each partition's leader remembers, ascending.

        Raises:
            FatalError: a partition does not exist.
        """
        ...

    async def write_marker(
        self, data: TopicPartition, producer: ActiveProducer, *, committed: bool
    ) -> None:
        """Ends the producer's open transaction on one partition with a COMMIT or ABORT marker.

        Neither coordinator nor producer learns of it, so use it only for a transaction that no
        coordinator has: of any other, the rest may end otherwise. Returns when the marker is on all
        in-sync replicas.

        Raises:
            FencedError: the producer has a newer epoch there; nothing was written.
            FatalError: a coordinator with a newer epoch has written there; nothing was written.
            RetriableError: the marker may have been written.
        """
        ...

    async def close(self) -> None:
        """Ends connections; what waits raises `FatalError`. Safe to call twice."""
        ...
