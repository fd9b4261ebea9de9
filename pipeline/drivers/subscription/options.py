"""Options of a subscription, and the listener of its partitions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from stilltide.connectors.ports.readers import Committed
from stilltide.schemas.values import TopicPartition


@dataclass(frozen=True, slots=True)
class SubscriptionOptions:
    """What a subscription reads and how far it goes.

    Attributes:
        topics: read as one group, at least one.
        group: consumer group.
        client_id: prefix of the clients' names at the brokers.
        from_start: where a group without committed position begins: the log start, or its end.
        buffer_records_max: visible records not yet taken before all fetching pauses, >= 1.
        undecided_records_max: records of a partition held behind an undecided one before its
            fetching pauses, >= 1.
        unavailable_timeout_s: how long an outage may last before the subscription fails.
        retry_delay_s: between two looks whether the cluster is back.
        ask_after_s: how long a record is undecided before a snapshot is asked for (D2).
    """

    topics: Sequence[str]
    group: str
    client_id: str = "stilltide-subscription"
    from_start: bool = True
    buffer_records_max: int = 10_000
    undecided_records_max: int = 10_000
    unavailable_timeout_s: float = 60.0
    retry_delay_s: float = 0.2
    ask_after_s: float = 5.0


class AssignmentListener(Protocol):
    """Called when partitions come and go, after the driver has taken note of the change."""

    def assigned(self, committed: Mapping[TopicPartition, Committed]) -> None:
        """These are read from now on, from what the group has committed, or a fresh start."""
        ...

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """These are not read any more."""
        ...
