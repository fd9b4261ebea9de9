"""Options of a subscription, and the listener of its partitions."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from stilltide.connectors.ports.connector import METADATA_MAX_AGE_S
from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.drivers.shared.outages import START_TIMEOUT_S_MAX
from stilltide.schemas.values import Offset, TopicPartition


class OutOfRange(StrEnum):
    """What a member does whose position its log does not hold.

    Attributes:
        RAISE: it fails.
        EARLIEST: it goes on at the log start.
        LATEST: it goes on at the log end.
    """

    RAISE = "raise"
    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class SubscriptionOptions:
    """The topics of a subscription, its group and its limits.

    Attributes:
        topics: topics to read, at least one: names, and patterns such as `orders-*` (D8).
        group: name of the consumer group.
        client_id: prefix of the clients' names at the brokers.
        from_start: whether a group without a committed position begins at the log start; if not,
            the group begins at the log end.
        since_ms: time at which such a group begins, instead of `from_start`.
        out_of_range: what to do where the log does not hold the group's position.
        buffer_records_max: visible records not yet taken before all fetching pauses, >= 1.
        undecided_records_max: records of a partition held behind an undecided one before its
            fetching pauses, >= 1.
        unavailable_timeout_s: longest outage before the subscription fails; may be infinite.
        ask_after_s: time that a record is undecided before a snapshot is requested (D2).
        metadata_max_age_s: longest time until added partitions, topics that were created again
            (C13), and new topics that fit a pattern are noticed.
        left_out: topics that no pattern takes.
        timestamps: whether the records of queues are `TimedRecord`.
    """

    topics: Sequence[str]
    group: str
    client_id: str = "stilltide-subscription"
    from_start: bool = True
    since_ms: int | None = None
    out_of_range: OutOfRange = OutOfRange.RAISE
    buffer_records_max: int = 10_000
    undecided_records_max: int = 10_000
    unavailable_timeout_s: float = math.inf
    ask_after_s: float = 5.0
    metadata_max_age_s: float = METADATA_MAX_AGE_S
    left_out: Collection[str] = ()
    timestamps: bool = False

    @property
    def start_timeout_s(self) -> float:
        """Longest absence of the cluster while the subscription starts; a wrong address is told."""
        return min(self.unavailable_timeout_s, START_TIMEOUT_S_MAX)

    @property
    def answer_timeout_s(self) -> float:
        """Longest wait for the answer of a pending-ack store, finite.

        A subscription without a limit asks again after that time.
        """
        without_limit = self.unavailable_timeout_s == math.inf
        return START_TIMEOUT_S_MAX if without_limit else self.unavailable_timeout_s


class AssignmentListener(Protocol):
    """Called after the driver has processed an assignment or a revocation."""

    def assigned(self, committed: Mapping[TopicPartition, Committed]) -> None:
        """Partitions were assigned; they are read from the group's commits or a first position."""
        ...

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions were revoked; they are not read any more."""
        ...

    def kept(self, data: TopicPartition, offset: Offset) -> Committed:
        """The commit that moves an assigned partition to an offset that its log holds.

        Behind the group's position the commit keeps what is acknowledged there.
        """
        ...
