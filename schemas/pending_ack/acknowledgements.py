"""What owners of pending-ack logs are asked, what they answer and what their log holds, as values.

*Source*: docs/protocols G, A, B, C8. The bytes are in `codec.py`; these values are what the
pure core works on. A *cursor* is a group's committed offset: everything below it is acknowledged.
"""

from enum import Enum
from typing import NamedTuple

from stilltide.schemas.coordinator.transactions import (
    Done,
)
from stilltide.schemas.log_frames import LogFigures, LogFrame
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TxnId

MEMBER_BYTES = 16


class AckRange(NamedTuple):
    """Acknowledged offsets `[first, end)` of the subscription's partition; never empty."""

    first: Offset
    end: EndOffset


Ranges = tuple[AckRange, ...]
"""Ascending and disjoint."""


class Attach(NamedTuple):
    """The group has assigned the partition to `member`: it takes the subscription over.

    Answered with `Acks`; refused for a member that was replaced. `cursor` and `acknowledged` are
    what the group's commit holds; `member` is drawn anew at each assignment.
    """

    member: bytes
    cursor: EndOffset
    acknowledged: Ranges


class Acknowledge(NamedTuple):
    """Acknowledge single records, everything at or below an offset, or both, in a transaction."""

    txn: TxnId
    member: bytes
    offsets: tuple[Offset, ...]
    cumulative_offset: Offset | None = None


class CursorMoved(NamedTuple):
    """The group has committed a later cursor; sent once that is durable."""

    member: bytes
    cursor: EndOffset
    acknowledged: Ranges


class Settle(NamedTuple):
    """A transaction has ended; `low_watermark` is its coordinator's (C7)."""

    txn: TxnId
    committed: bool
    low_watermark: int


class DescribeAcks(NamedTuple):
    """Ask for the subscription's acknowledgements."""


class DescribeStore(NamedTuple):
    """Ask for the owner's figures, and those of subscriptions: of a topic, a group; "" is any."""

    topic: str = ""
    group: str = ""


AckChange = Attach | Acknowledge | CursorMoved | Settle
"""Requests that change state: they are written to the log."""

AckBody = AckChange | DescribeAcks | DescribeStore


class AckRequest(NamedTuple):
    """One request about one subscription, or about the whole store where that is None.

    Numbers of a client grow, per partition of ack-requests. They only match answers to requests:
    every request may be repeated without a second effect.
    """

    client_id: bytes
    number: int
    reply_partition: int
    subscription: SubscriptionId | None
    body: AckBody


class AckQuestion(NamedTuple):
    """What is asked about which subscription; None: about the whole store."""

    subscription: SubscriptionId | None
    body: AckBody


def ack_request(
    client_id: bytes, number: int, _acked_through: int, reply_partition: int, one: AckQuestion
) -> AckRequest:
    """A client's request; no answers are remembered, so none need to be acknowledged."""
    return AckRequest(client_id, number, reply_partition, one.subscription, one.body)


class AckRefusalCode(Enum):
    """Why a request was refused."""

    ALREADY_ACKNOWLEDGED = "ALREADY_ACKNOWLEDGED"
    PENDING_IN_ANOTHER_TRANSACTION = "PENDING_IN_ANOTHER_TRANSACTION"
    TRANSACTION_ENDED = "TRANSACTION_ENDED"
    NOT_ATTACHED = "NOT_ATTACHED"
    TOO_MANY = "TOO_MANY"


class AckRefused(NamedTuple):
    """Answer: illegal, nothing changed."""

    code: AckRefusalCode
    reason: str


class PendingAcks(NamedTuple):
    """What a transaction that has not ended acknowledges: `ranges`, and all up to an offset."""

    txn: TxnId
    ranges: Ranges
    cumulative_offset: Offset | None


class Acks(NamedTuple):
    """Answer: the acknowledgements of a subscription; `member` is empty when none is attached."""

    cursor: EndOffset
    acknowledged: Ranges
    pending: tuple[PendingAcks, ...]
    member: bytes


class SubscriptionStats(NamedTuple):
    """A subscription's figures.

    Attributes:
        subscription: which one.
        attached: a member is.
        cursor: everything below it is acknowledged.
        committed: the group's committed offset, as far as a member has told.
        acknowledged_ranges: ranges of acknowledged offsets above the cursor.
        pending_transactions: that have not ended and acknowledge something here.
        pending_individual: offsets that they acknowledge one by one.
        pending_cumulative_offset: one of them acknowledges everything up to it, inclusive.
        locked_offsets: offsets that no other transaction may acknowledge now.
        has_served: the owner has applied an acknowledgement in a transaction here.
    """

    subscription: SubscriptionId
    attached: bool
    cursor: EndOffset
    committed: EndOffset
    acknowledged_ranges: int
    pending_transactions: int
    pending_individual: int
    pending_cumulative_offset: Offset | None
    locked_offsets: int
    has_served: bool


class StoreStats(NamedTuple):
    """Answer: the figures of a pending-ack log's owner.

    Attributes:
        log: how the owner writes its log, and what it has written.
        subscription_count: subscriptions in the log.
        transaction_count: that have not ended and acknowledge something in any of them.
        pending_individual: offsets that they acknowledge one by one.
        pending_cumulative: subscriptions in which one of them acknowledges cumulatively.
        buffered_records: records appended that no entry holds yet.
        buffered_bytes: bytes of these records.
        base_as_of: of the newest base, recovered from or written by this owner (C8).
        log_records: of the log's effective entries, as far as they were not trimmed.
        subscriptions: those asked for; the ones with most pending transactions, if too many.
        subscriptions_omitted: how many of those asked for are left out.
    """

    log: LogFigures
    subscription_count: int
    transaction_count: int
    pending_individual: int
    pending_cumulative: int
    buffered_records: int
    buffered_bytes: int
    base_as_of: EndOffset | None
    log_records: int
    subscriptions: tuple[SubscriptionStats, ...]
    subscriptions_omitted: int


AckAnswer = Done | AckRefused | Acks | StoreStats


class AckResponse(NamedTuple):
    """One answer to one request; `partition` of ack-requests."""

    number: int
    partition: int
    answer: AckAnswer


class BaseSubscription(NamedTuple):
    """One subscription in a base: its acknowledgements, and what only the owner needs to know.

    `committed` is the group's cursor as told; `replaced` members, with the time, oldest first.
    """

    subscription: SubscriptionId
    acks: Acks
    committed: EndOffset
    replaced: tuple[tuple[bytes, int], ...]
    last_seen_ms: int


class BaseCoordinator(NamedTuple):
    """One coordinator in a base; `settled` sequences `[first, end)` at or above the watermark."""

    coordinator: int
    low_watermark: int
    settled: tuple[tuple[int, int], ...]


class AckState(NamedTuple):
    """A pending-ack log's whole state (C8); the order of the tuples is part of it."""

    now_ms: int
    subscriptions: tuple[BaseSubscription, ...]
    coordinators: tuple[BaseCoordinator, ...]


AckLogBody = LogFrame | AckRequest


class PendingAckRecord(NamedTuple):
    """One record of pending-ack-log and the owner's clock when it was appended."""

    body: AckLogBody
    at_ms: int
