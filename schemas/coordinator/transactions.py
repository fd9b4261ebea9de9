"""Requests to coordinators, answers of coordinators, and records of txn-log, as plain values.

*Source*: docs/protocols C. `requests.py` and `txn_log.py` encode these values; the pure core
computes with them.
"""

from enum import Enum
from typing import NamedTuple

from stilltide.schemas.coordinator.markers import Probe
from stilltide.schemas.log_frames import LogFigures, LogFrame
from stilltide.schemas.service.envelopes import NO_CLIENT, Done, Refused, Request, Unreadable
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition


class Registered(NamedTuple):
    """A partition to which a transaction may write, and an end offset read before (C2)."""

    data: TopicPartition
    start_offset: EndOffset
    topic_id: bytes


class Written(NamedTuple):
    """The offsets `[first, end)` and the number of records written to a partition (C6)."""

    data: TopicPartition
    first_offset: Offset
    end_offset: EndOffset
    record_count: int


class Open(NamedTuple):
    """Request: open transactions, all registered with the same items (C9).

    `client_name` is shown to operators (C15). With `allow_compacted` the client answers for topics
    that compact (C18).
    """

    timeout_ms: int
    transaction_count: int
    partitions: tuple[Registered, ...]
    subscriptions: tuple[SubscriptionId, ...] = ()
    client_name: str = ""
    allow_compacted: bool = False


class AddPartitions(NamedTuple):
    """Request: register further partitions with a transaction; `allow_compacted` as in `Open`."""

    sequence: int
    partitions: tuple[Registered, ...]
    allow_compacted: bool = False


class AddSubscriptions(NamedTuple):
    """Request: register group partitions whose messages the transaction acknowledges (G)."""

    sequence: int
    subscriptions: tuple[SubscriptionId, ...]


class End(NamedTuple):
    """Request: commit or abort; `wait_visible` delays the answer until markers are durable (C5).

    Only the group partitions in `acknowledged_in` are settled; None: all registered ones.
    """

    sequence: int
    committed: bool
    written: tuple[Written, ...]
    wait_visible: bool
    acknowledged_in: tuple[SubscriptionId, ...] | None = None


class Release(NamedTuple):
    """Request: end open transactions that wrote nothing, at once and without markers (C9)."""

    sequences: tuple[int, ...]


class Abort(NamedTuple):
    """Request of an operator: abort the open transaction of any client (C11)."""

    sequence: int


class Prepare(NamedTuple):
    """Request: make the content of an open transaction final (L1).

    From then on the transaction ends by its token, whose secret has the SHA-256 `secret_hash`, or
    by an operator, and by no time-out.

    Attributes:
        sequence: the transaction.
        written: what a commit will count (C6).
        acknowledged_in: as in `End`.
        secret_hash: 32 bytes.
        decider: name of what decides when the client does not, such as a database; may be empty.
    """

    sequence: int
    written: tuple[Written, ...]
    acknowledged_in: tuple[SubscriptionId, ...] | None
    secret_hash: bytes
    decider: str = ""


class EndPrepared(NamedTuple):
    """Request of any client that shows the secret of the token: end a prepared transaction (L2).

    It is never logged: a `Decide` with the hash of the secret takes its place.
    """

    sequence: int
    committed: bool
    secret: bytes
    wait_visible: bool

    def __repr__(self) -> str:
        """Without the secret, which no log may hold."""
        return f"EndPrepared(sequence={self.sequence}, committed={self.committed})"


class Decide(NamedTuple):
    """Request of an operator, or a resolver, with a reason: end a prepared transaction (L3).

    `decided_by` is who asks, as they say themselves. In the log also what was an `EndPrepared`,
    with the SHA-256 of the secret that was shown.
    """

    sequence: int
    committed: bool
    reason: str = ""
    secret_hash: bytes = b""
    wait_visible: bool = False
    decided_by: str = ""


class Describe(NamedTuple):
    """Question about one transaction: the client's own, or one whose secret it knows (L2)."""

    sequence: int
    secret_hash: bytes = b""


class ListTransactions(NamedTuple):
    """Question about the transactions from `first_sequence` on that have not ended."""

    first_sequence: int = 0


class DescribeCoordinator(NamedTuple):
    """Question about the coordinator's figures."""


class WriteBarrier(NamedTuple):
    """Request for a barrier in a partition of txn-markers; answered when it is durable (E1)."""

    marker_partition: int
    probe: Probe


class Hello(NamedTuple):
    """Question for a direct line to the coordinator's worker (J2).

    Attributes:
        nonce: 16 random bytes of the client, used for one line only.
    """

    nonce: bytes


Change = Open | AddPartitions | AddSubscriptions | End | Release | Abort | Prepare | Decide
"""Requests that change the state, and are written to the log."""

RequestBody = (
    Change | EndPrepared | Describe | ListTransactions | DescribeCoordinator | WriteBarrier | Hello
)


TxnRequest = Request[RequestBody | Unreadable]
"""Numbers are 1, 2, ... per client and coordinator (C1b)."""


class Opened(NamedTuple):
    """Answer: sequences `[first_sequence, first_sequence + transaction_count)` are open."""

    first_sequence: int
    transaction_count: int


class Unknown(NamedTuple):
    """Answer: the coordinator no longer remembers whether the request took effect (C1b)."""


class AbortCause(Enum):
    """Why a transaction is decided to abort (C12)."""

    CLIENT = "CLIENT"
    TIMED_OUT = "TIMED_OUT"
    OPERATOR = "OPERATOR"
    TOKEN = "TOKEN"  # noqa: S105 - no password


RecentAborts = tuple[tuple[int, AbortCause], ...]
"""Sequences that were decided to abort, in the order of the decisions, each with its cause."""


class Preparation(NamedTuple):
    """How a transaction was prepared (L1).

    Attributes:
        prepared_at_ms: when, by the coordinator's clock, milliseconds since 1970.
        secret_hash: SHA-256 of the secret in the transaction's token (L2).
        decider: name of what decides when the client does not; may be empty.
    """

    prepared_at_ms: int
    secret_hash: bytes
    decider: str


class OperatorDecision(NamedTuple):
    """What an operator or resolver has decided of a prepared transaction, when, why, and who."""

    sequence: int
    committed: bool
    decided_at_ms: int
    reason: str
    decided_by: str = ""


class Description(NamedTuple):
    """Answer: one transaction; `state` is OPEN, PREPARED, COMMITTING, ABORTING or ENDED.

    `client_key` and `client_name` are those of the client that opened it (C15). `committed` says
    how an ended transaction ended (C12); None: it has not ended, or how it ended is forgotten.
    `cause` says why it aborts or was aborted; None: it was not, or that is forgotten. `preparation`
    is None if it was not prepared, and of an ended transaction.
    """

    sequence: int
    state: str
    opened_at_ms: int
    timeout_ms: int
    partitions: tuple[Registered, ...]
    subscriptions: tuple[SubscriptionId, ...] = ()
    client_key: bytes = NO_CLIENT
    client_name: str = ""
    committed: bool | None = None
    cause: AbortCause | None = None
    preparation: Preparation | None = None


class Listed(NamedTuple):
    """Answer: transactions that have not ended, by sequence, and the low watermark (C7).

    Attributes:
        next_sequence: the first sequence of the next page; 0: there is no further page.
        as_of: the answer holds the effective entries of the log below this offset, and no others.
            What follows comes with the first page.
        aborts: why the last transactions were aborted.
        open_count, committing_count, aborting_count, prepared_count: number of all transactions in
            each state.
        decisions: the last decisions of operators about prepared transactions (L3).
    """

    transactions: tuple[Description, ...]
    low_watermark: int
    next_sequence: int = 0
    as_of: EndOffset = EndOffset(0)
    aborts: RecentAborts = ()
    open_count: int = 0
    committing_count: int = 0
    aborting_count: int = 0
    prepared_count: int = 0
    decisions: tuple[OperatorDecision, ...] = ()


class LiveEntry(NamedTuple):
    """A log entry with records that are still needed: bit i of `live` is set for record i."""

    offset: Offset
    live: int


class LogLiveness(NamedTuple):
    """The part of a log that transactions which have not ended still need.

    Attributes:
        first_live_offset: offset of the first entry with a live record; None: there is none.
        live_records: number of records that are needed.
        dead_records: number of records from the log start on that are not needed.
        entries: first entries with live records, in log order.
    """

    first_live_offset: Offset | None
    live_records: int
    dead_records: int
    entries: tuple[LiveEntry, ...]


HINDERED = "hindered"
"""The kind of a `ReportedEnd` that is no end: some work of a worker is not done (C17)."""


class ReportedEnd(NamedTuple):
    """An owner or link of a worker that does not run, since an error has ended it (B8).

    Attributes:
        kind: kind of the owner, such as `links`.
        name: number of the owner's partition, or name of the link's source.
        ended_ms: when it has ended first, milliseconds since 1970.
        why: place and cause, and when it is tried again.
        hint: the next step; may be empty.
    """

    kind: str
    name: str
    ended_ms: int
    why: str
    hint: str = ""


class CompactedTopic(NamedTuple):
    """A topic with records of coordinated transactions that compacts (C18).

    Attributes:
        topic: name of the topic.
        seen_ms: when a worker has seen that first, milliseconds since 1970.
    """

    topic: str
    seen_ms: int


class CoordinatorStats(NamedTuple):
    """Answer: a coordinator's figures; counts begin with its owner's fence.

    Attributes:
        log: figures of the owner's log.
        next_sequence: sequence of the next transaction.
        low_watermark: sequence below which every transaction has ended (C7).
        open_count: number of transactions that are OPEN.
        committing_count: number of transactions that are COMMITTING.
        aborting_count: number of transactions that are ABORTING.
        has_served: whether the owner has applied a client's request.
        markers_pending: number of outcome markers that are being written.
        client_count: number of clients that may ask for an old answer (C1b).
        answer_count: number of answers that these clients may ask for.
        liveness: which records of the log are still needed; None: the owner does not track that.
        ends: owners and links of the same worker that an error has ended.
        as_of: the figures hold the effective entries of the log below this offset, and no others.
        changed_at: offset of the last of them that may have changed the state.
        compacted: topics that compact, as the worker has seen them (C18).
        prepared_count: number of transactions that are PREPARED (L1).
        oldest_prepared_ms: when the oldest of them was prepared, milliseconds since 1970; 0: there
            is none.
        commit_count, abort_count: number of transactions that have ended by a commit, and by an
            abort; None: an earlier worker does not tell.
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
    ends: tuple[ReportedEnd, ...] = ()
    as_of: EndOffset = EndOffset(0)
    changed_at: Offset = Offset(0)
    compacted: tuple[CompactedTopic, ...] = ()
    prepared_count: int = 0
    oldest_prepared_ms: int = 0
    commit_count: int | None = None
    abort_count: int | None = None

    @property
    def low_watermark_lag(self) -> int:
        """Sequences from the oldest transaction that has not ended to the next one."""
        return self.next_sequence - self.low_watermark


class Greeting(NamedTuple):
    """Answer to `Hello`: where the worker takes direct lines (J2).

    Attributes:
        host: host name or IP address; empty: the worker takes no lines.
        port: TCP port.
        nonce: 16 random bytes of the worker, used for one line only.
    """

    host: str
    port: int
    nonce: bytes


Answer = Opened | Done | Refused | Unknown | Description | Listed | CoordinatorStats | Greeting


class TimedOut(NamedTuple):
    """Log record: the time-out of an open transaction has passed."""

    sequence: int


class Ended(NamedTuple):
    """Log record: a transaction's markers are durable and its group partitions settled (C4)."""

    sequence: int


class ForgetClients(NamedTuple):
    """Log record: forget clients that have sent nothing for an hour (C1b), by their keys (C15)."""

    client_keys: tuple[bytes, ...]


class BaseTransaction(NamedTuple):
    """A transaction that has not ended; `state` is OPEN, PREPARED, COMMITTING or ABORTING."""

    sequence: int
    state: str
    opened_at_ms: int
    timeout_ms: int
    partitions: tuple[Registered, ...]
    subscriptions: tuple[SubscriptionId, ...]
    written: tuple[Written, ...]
    client_key: bytes = NO_CLIENT
    client_name: str = ""
    preparation: Preparation | None = None


class BaseClient(NamedTuple):
    """A client in a base, with its answers by request number, above `acked_through` (C1b)."""

    client_key: bytes
    last_seen_ms: int
    acked_through: int
    unknown_through: int
    answers: tuple[tuple[int, Answer], ...]


class BaseOutcomes(NamedTuple):
    """How transactions ended, as a base holds it (C12).

    Attributes:
        known_from: the first sequence whose outcome is remembered, once it has one.
        committed: a bit for each sequence from `known_from` rounded down to a multiple of 8 on, low
            bits first: set if the transaction has committed. Bits that are left out are not set.
    """

    known_from: int
    committed: bytes


class BaseState(NamedTuple):
    """A coordinator's whole state (C8); the order of both tuples is part of the state.

    Attributes:
        next_sequence: sequence of the next transaction.
        transactions: those that have not ended.
        clients: what is remembered of clients.
        outcomes: of transactions that have ended.
        aborts: why the last transactions were aborted.
        decisions: the last decisions of operators about prepared transactions (L3).
    """

    next_sequence: int
    transactions: tuple[BaseTransaction, ...]
    clients: tuple[BaseClient, ...]
    outcomes: BaseOutcomes
    aborts: RecentAborts = ()
    decisions: tuple[OperatorDecision, ...] = ()


LogBody = LogFrame | TxnRequest | TimedOut | Ended | ForgetClients


class TxnLogRecord(NamedTuple):
    """One record of txn-log, and the time of the owner's clock when it was appended."""

    body: LogBody
    at_ms: int
