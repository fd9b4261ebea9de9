"""Requests to pending-ack stores, answers of stores, and records of pending-ack-log, as values.

*Source*: docs/protocols G, A, B, C8. `codec.py` encodes these values; the pure core computes with
them. A *cursor* is a group's committed offset: every message below the cursor is acknowledged. A
*subscription* here is a group partition: a data partition as one consumer group reads it.
"""

from typing import NamedTuple

from stilltide.schemas.log_frames import LogFigures, LogFrame
from stilltide.schemas.service.envelopes import NO_CLIENT, Done, Refused, Request, Unreadable
from stilltide.schemas.values import EndOffset, Offset, Ranges, SubscriptionId, TxnId

MEMBER_BYTES = 16


class Attach(NamedTuple):
    """Request: attach `member`, to which the group has assigned the partition.

    Answered with `Acks`; refused for a member that was replaced. `cursor` and `acknowledged` come
    from the group's commit; a new random `member` is drawn for each assignment.
    `group_member` is Kafka's id of the member, whom the group's coordinator must know (C15).
    `topic_id` is Kafka's id of the topic, 16 bytes; empty: not known (G3). `log_end` is the end of
    the partition's log, which the store's owner adds: what is known beyond it is forgotten. `reset`
    is of an operator who has reset the group: what is known is forgotten (G4).
    """

    member: bytes
    cursor: EndOffset
    acknowledged: Ranges
    group_member: str = ""
    client_name: str = ""
    topic_id: bytes = b""
    log_end: EndOffset | None = None
    reset: bool = False


class Acknowledge(NamedTuple):
    """Request: acknowledge single messages, all up to an offset, or both, in a transaction.

    `txn_client_id` is the id of the client that opened the transaction (C11).
    """

    txn: TxnId
    member: bytes
    offsets: tuple[Offset, ...]
    cumulative_offset: Offset | None = None
    txn_client_id: bytes = b""


class CursorMoved(NamedTuple):
    """Request: take note of a later cursor, which the group has committed."""

    member: bytes
    cursor: EndOffset
    acknowledged: Ranges


class Settle(NamedTuple):
    """Request: settle a transaction that has ended; `low_watermark` is its coordinator's (C7).

    `client_key` is the key of the client that opened the transaction: acknowledgements of others
    are dropped (C11). Empty: not known, which settles all. `log_end` is added by the store's owner
    where the transaction acknowledges beyond: no offset from there on is acknowledged.
    """

    txn: TxnId
    committed: bool
    low_watermark: int
    client_key: bytes = NO_CLIENT
    log_end: EndOffset | None = None


class DescribeAcks(NamedTuple):
    """Question about the acknowledgements of a group partition."""


class DescribeStore(NamedTuple):
    """Question about the store's figures, and those of a topic's or group's partitions; "": any."""

    topic: str = ""
    group: str = ""


AckChange = Attach | Acknowledge | CursorMoved | Settle
"""Requests that change the state, and are written to the log."""

AckBody = AckChange | DescribeAcks | DescribeStore


class AckQuestion(NamedTuple):
    """The body of a request, and its group partition; None: the whole store."""

    subscription: SubscriptionId | None
    ask: AckBody | Unreadable


AckRequest = Request[AckQuestion]
"""Its number only matches an answer to it: it may be repeated without a second effect."""


class PendingAcks(NamedTuple):
    """Pending acknowledgements of one transaction: `ranges`, and all up to an offset.

    `client_key` is the key of the transaction's client, as the acknowledgement named it (C11).
    """

    txn: TxnId
    ranges: Ranges
    cumulative_offset: Offset | None
    client_key: bytes = NO_CLIENT


class Acks(NamedTuple):
    """Answer: acknowledgements of a group partition; `member` is empty if none is attached."""

    cursor: EndOffset
    acknowledged: Ranges
    pending: tuple[PendingAcks, ...]
    member: bytes

    @property
    def item_count(self) -> int:
        """How many ranges and transactions these are."""
        ranges = sum(len(pending.ranges) for pending in self.pending)
        return len(self.acknowledged) + len(self.pending) + ranges


class SubscriptionStats(NamedTuple):
    """The figures of a group partition.

    Attributes:
        subscription: the group partition.
        attached: whether a member is attached.
        cursor: offset below which every message is acknowledged.
        committed: offset of the group's commit, as last reported by a member.
        acknowledged_ranges: number of acknowledged ranges above the cursor.
        pending_transactions: number of transactions with pending acknowledgements.
        pending_individual: number of offsets with a pending individual acknowledgement.
        pending_cumulative_offset: offset of the pending cumulative acknowledgement, inclusive.
        locked_offsets: number of offsets that no other transaction may acknowledge now.
        has_served: whether the owner has applied an acknowledgement in a transaction here.
        client_key: key of the attached client (C15).
        client_name: name of the attached client.
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
    client_key: bytes = NO_CLIENT
    client_name: str = ""


class StoreStats(NamedTuple):
    """Answer: the figures of a pending-ack store.

    Attributes:
        log: figures of the store's log.
        subscription_count: number of group partitions in the store.
        transaction_count: number of transactions with pending acknowledgements.
        pending_individual: number of offsets with a pending individual acknowledgement.
        pending_cumulative: number of group partitions with a pending cumulative acknowledgement.
        buffered_records: records appended that no entry holds yet.
        buffered_bytes: bytes of these records.
        base_as_of: as-of offset of the newest base, of this owner or where its replay began (C8).
        log_records: records in the log's effective entries that were not trimmed.
        subscriptions: figures of the group partitions asked for; if there are too many, of those
            with the most pending transactions.
        subscriptions_omitted: number of group partitions asked for that are left out.
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


AckAnswer = Done | Refused | Acks | StoreStats


class BaseSubscription(NamedTuple):
    """One group partition in a base: its acknowledgements, and state that only the owner needs.

    `committed` is the offset of the group's commit, as last reported by a member; `replaced` are
    former members with the time of their replacement, oldest first.
    """

    subscription: SubscriptionId
    acks: Acks
    committed: EndOffset
    replaced: tuple[tuple[bytes, int], ...]
    last_seen_ms: int
    client_key: bytes = NO_CLIENT
    client_name: str = ""
    topic_id: bytes = b""


class BaseCoordinator(NamedTuple):
    """One coordinator in a base; `settled` are runs `[first, end)` of settled sequences."""

    coordinator: int
    low_watermark: int
    settled: tuple[tuple[int, int], ...]


class AckState(NamedTuple):
    """A pending-ack store's whole state (C8); the order of the tuples is part of the state."""

    now_ms: int
    subscriptions: tuple[BaseSubscription, ...]
    coordinators: tuple[BaseCoordinator, ...]


AckLogBody = LogFrame | AckRequest


class PendingAckRecord(NamedTuple):
    """One record of pending-ack-log, and the time of the owner's clock when it was appended."""

    body: AckLogBody
    at_ms: int
