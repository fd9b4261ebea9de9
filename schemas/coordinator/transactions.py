"""What coordinators are asked, what they answer and what their log holds, as plain values.

*Source*: docs/protocols C. The bytes are in `requests.py` and `txn_log.py`; these values are what
the pure core works on.
"""

from typing import NamedTuple

from stilltide.schemas.coordinator.barriers import Probe
from stilltide.schemas.log_frames import LogFigures, LogFrame
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition


class Registered(NamedTuple):
    """A partition a transaction may write to, and an end offset known before (C2)."""

    data: TopicPartition
    start_offset: EndOffset
    topic_id: bytes


class Written(NamedTuple):
    """What a committing transaction wrote to a partition: `[first, end)` and a count (C6)."""

    data: TopicPartition
    first_offset: Offset
    end_offset: EndOffset
    record_count: int


class Open(NamedTuple):
    """Open `transaction_count` transactions on the same partitions and subscriptions (C9)."""

    timeout_ms: int
    transaction_count: int
    partitions: tuple[Registered, ...]
    subscriptions: tuple[SubscriptionId, ...] = ()


class AddPartitions(NamedTuple):
    """Register further partitions."""

    sequence: int
    partitions: tuple[Registered, ...]


class AddSubscriptions(NamedTuple):
    """Register subscriptions whose messages the transaction acknowledges (G)."""

    sequence: int
    subscriptions: tuple[SubscriptionId, ...]


class End(NamedTuple):
    """Commit or abort; `wait_visible` answers only when every marker is acknowledged (C5).

    Only the subscriptions it acknowledged in are settled; None: all it is registered with.
    """

    sequence: int
    committed: bool
    written: tuple[Written, ...]
    wait_visible: bool
    acknowledged_in: tuple[SubscriptionId, ...] | None = None


class Release(NamedTuple):
    """End open transactions that nothing was written by: without markers, at once (C9)."""

    sequences: tuple[int, ...]


class Describe(NamedTuple):
    """Ask for one transaction."""

    sequence: int


class ListTransactions(NamedTuple):
    """Ask for those that have not ended."""


class DescribeCoordinator(NamedTuple):
    """Ask for the coordinator's figures."""


class WriteBarrier(NamedTuple):
    """Ask for a barrier in a partition of txn-markers; done when it is durable (E1)."""

    marker_partition: int
    probe: Probe


Change = Open | AddPartitions | AddSubscriptions | End | Release
"""Requests that change state: they are written to the log."""

RequestBody = Change | Describe | ListTransactions | DescribeCoordinator | WriteBarrier


class Request(NamedTuple):
    """One request of one client (C1b); numbers are 1, 2, ... per client and coordinator."""

    client_id: bytes
    number: int
    acked_through: int
    reply_partition: int
    body: RequestBody


class Opened(NamedTuple):
    """Answer: sequences `[first_sequence, first_sequence + transaction_count)` are open."""

    first_sequence: int
    transaction_count: int


class Done(NamedTuple):
    """Answer: it took effect."""


class Refused(NamedTuple):
    """Answer: illegal, nothing changed."""

    reason: str


class Unknown(NamedTuple):
    """Answer: the coordinator no longer remembers whether it took effect (C1b)."""


class Description(NamedTuple):
    """Answer: one transaction; `state` is OPEN, COMMITTING, ABORTING or ENDED."""

    sequence: int
    state: str
    opened_at_ms: int
    timeout_ms: int
    partitions: tuple[Registered, ...]
    subscriptions: tuple[SubscriptionId, ...] = ()


class Listed(NamedTuple):
    """Answer: the transactions that have not ended; every one below the watermark has (C7)."""

    transactions: tuple[Description, ...]
    low_watermark: int


class LiveEntry(NamedTuple):
    """A log entry with records that are still needed: bit i of `live` is set for record i."""

    offset: Offset
    live: int


class LogLiveness(NamedTuple):
    """Which part of a log transactions that have not ended still need.

    Attributes:
        first_live_offset: of the first entry with a live record; None when there is none.
        live_records: records that are needed.
        dead_records: records that are not, from the log start on.
        entries: the first entries with live records, in log order.
    """

    first_live_offset: Offset | None
    live_records: int
    dead_records: int
    entries: tuple[LiveEntry, ...]


class CoordinatorStats(NamedTuple):
    """Answer: a coordinator's figures; counts begin with its owner's fence.

    Attributes:
        log: how the owner writes its log, and what it has written.
        next_sequence: of the next transaction.
        low_watermark: every sequence below it has ended (C7).
        open_count: transactions that are OPEN.
        committing_count: transactions that are COMMITTING.
        aborting_count: transactions that are ABORTING.
        has_served: the owner has applied a client's request.
        markers_pending: outcome markers on their way.
        client_count: clients that may ask for an old answer (C1b).
        answer_count: answers that these clients may ask for.
        liveness: None when the owner does not track it.
    """

    log: LogFigures
    next_sequence: int
    low_watermark: int
    open_count: int
    committing_count: int
    aborting_count: int
    has_served: bool
    markers_pending: int
    client_count: int
    answer_count: int
    liveness: LogLiveness | None


Answer = Opened | Done | Refused | Unknown | Description | Listed | CoordinatorStats


class Response(NamedTuple):
    """One answer to one request."""

    number: int
    coordinator: int
    answer: Answer


class TimedOut(NamedTuple):
    """An open transaction's time is over."""

    sequence: int


class Ended(NamedTuple):
    """Every marker of a transaction is acknowledged, every subscription settled (C4)."""

    sequence: int


class ForgetClients(NamedTuple):
    """Clients silent for an hour (C1b)."""

    client_ids: tuple[bytes, ...]


class BaseTransaction(NamedTuple):
    """A transaction that has not ended; `state` is OPEN, COMMITTING or ABORTING."""

    sequence: int
    state: str
    opened_at_ms: int
    timeout_ms: int
    partitions: tuple[Registered, ...]
    subscriptions: tuple[SubscriptionId, ...]
    written: tuple[Written, ...]


class BaseClient(NamedTuple):
    """What is remembered of a client: answers by number, above `acked_through` (C1b)."""

    client_id: bytes
    last_seen_ms: int
    acked_through: int
    unknown_through: int
    answers: tuple[tuple[int, Answer], ...]


class BaseState(NamedTuple):
    """A coordinator's whole state (C8); the order of both tuples is part of it."""

    next_sequence: int
    transactions: tuple[BaseTransaction, ...]
    clients: tuple[BaseClient, ...]


LogBody = LogFrame | Request | TimedOut | Ended | ForgetClients


class TxnLogRecord(NamedTuple):
    """One record of txn-log and the owner's clock when it was appended."""

    body: LogBody
    at_ms: int
