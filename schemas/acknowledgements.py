"""What owners of pending-ack logs are asked, what they answer and what their log holds, as values.

*Source*: protocols.md G, A, B, C8. The bytes are in `pending_ack.py`; these values are what the
pure core works on. A *cursor* is a group's committed offset: everything below it is acknowledged.
"""

from enum import Enum
from typing import NamedTuple

from schemas.bases import Base
from schemas.transactions import Done, Fence, Noop
from schemas.values import EndOffset, Offset, SubscriptionId, TxnId

MEMBER_BYTES = 16


class OffsetRange(NamedTuple):
    """Offsets `[first, end)`; never empty."""

    first: Offset
    end: EndOffset


Ranges = tuple[OffsetRange, ...]
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


AckChange = Attach | Acknowledge | CursorMoved | Settle
"""Requests that change state: they are written to the log."""

AckBody = AckChange | DescribeAcks


class AckRequest(NamedTuple):
    """One request about one subscription.

    Numbers of a client grow, per partition of ack-requests. They only match answers to requests:
    every request may be repeated without a second effect.
    """

    client_id: bytes
    number: int
    reply_partition: int
    subscription: SubscriptionId
    body: AckBody


class AckQuestion(NamedTuple):
    """What is asked about which subscription."""

    subscription: SubscriptionId
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


AckAnswer = Done | AckRefused | Acks


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


AckLogBody = Fence | Noop | AckRequest | Base


class PendingAckRecord(NamedTuple):
    """One record of pending-ack-log and the owner's clock when it was appended."""

    body: AckLogBody
    at_ms: int
