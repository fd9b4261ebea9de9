"""Admits the requests of clients: values in their bounds, and each client within its share.

*Source*: docs/protocols C10, C16, L2; Kafka's bounds of names, partitions and offsets. Settings
must not be part of what the log means (C0), so bounds that a user sets are checked before a request
is appended. What was appended and not read back yet counts as if it had taken effect.

*Invariants*: at no moment does a client hold more than its limits, except by requests that were
logged under higher limits.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, TypeVar

from stilltide.pipeline.core.coordinator.state import TRANSACTIONS_PER_OPEN_MAX, CoordinatorState
from stilltide.schemas.coordinator.prepared_tokens import hash_of
from stilltide.schemas.coordinator.transactions import (
    AddPartitions,
    AddSubscriptions,
    Change,
    Decide,
    End,
    EndPrepared,
    Open,
    Prepare,
    Registered,
    Release,
    TxnRequest,
    Written,
)
from stilltide.schemas.service.envelopes import (
    CLIENT_NAME_CHARS_MAX,
    RefusalCode,
    Refused,
    client_key,
)
from stilltide.schemas.topics import is_system_topic, is_topic_name
from stilltide.schemas.values import OFFSET_MAX, PARTITION_MAX, TOPIC_ID_BYTES, SubscriptionId

_K = TypeVar("_K")

Admitted = Change | EndPrepared
"""What of a client is counted: what is logged as it comes, or without its secret (L2)."""

QUESTIONS_IN_FLIGHT_MAX = 100
"""Questions of one client that wait for their no-op; each answer may take a millisecond."""

TRANSACTION_BYTES = 1100
REGISTRATION_BYTES = 450
ANSWER_BYTES = 250
CLIENT_BYTES = 500
"""What a transaction, a registered partition or subscription, a remembered answer, and a client
take in the memory of a coordinator, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Bounds of what one client may hold at one coordinator; settings of these names.

    Attributes:
        txn_timeout_ms_max: longest time-out of a transaction (C2).
        client_transactions_max: most open transactions.
        transaction_partitions_max: most partitions, and most subscriptions, of a transaction.
        client_partitions_max: most registered partitions and subscriptions in open transactions.
        client_requests_max: most requests that were taken and not read back yet.
        state_bytes_max: most bytes of state of all coordinators of a worker, by estimate.
    """

    txn_timeout_ms_max: int
    client_transactions_max: int = 10_000
    transaction_partitions_max: int = 1000
    client_partitions_max: int = 20_000
    client_requests_max: int = 10_000
    state_bytes_max: int = 256 * 1024 * 1024


class _Share(NamedTuple):
    """What a request adds to what its client holds."""

    transactions: int
    registrations: int


_NOTHING = _Share(0, 0)


class _InFlight(NamedTuple):
    """A request that was taken and not read back: its share, and the transaction it adds to."""

    share: _Share
    adds_to: int | None


@dataclass(slots=True)
class _Client:
    """The requests of a client that were taken and not read back, by number, and their shares."""

    requests: dict[int, _InFlight] = field(default_factory=dict[int, _InFlight])
    transactions: int = 0
    registrations: int = 0


class Admission:
    """The requests of clients at one coordinator, from one owner's fence to the next owner's.

    Args:
        state: the coordinator's state, which others change.
        limits: bounds of each client.
        state_bytes: estimated bytes of the states of all coordinators of the worker.
    """

    def __init__(
        self, state: CoordinatorState, limits: ClientLimits, state_bytes: Callable[[], int]
    ) -> None:
        self._state = state
        self._limits = limits
        self._state_bytes = state_bytes
        self._clients: dict[bytes, _Client] = {}
        self._questions: Counter[bytes] = Counter()
        self._adding: Counter[int] = Counter()

    def in_flight(self, request: TxnRequest) -> bool:
        """Whether the request was counted and not read back: the client will get that answer."""
        client = self._clients.get(client_key(request.client_id))
        return client is not None and request.number in client.requests

    def take(self, request: TxnRequest, body: Admitted) -> Refused | None:
        """Counts a request that is appended next, or returns why it is not (C16).

        The repeat of a request that was answered takes nothing: its answer is remembered (C1b).
        """
        wrong = wrong_values(request, body)
        if wrong:
            return Refused(wrong, RefusalCode.MALFORMED)
        key = client_key(request.client_id)
        limits = self._limits
        client = self._clients.get(key) or _Client()
        if len(client.requests) >= limits.client_requests_max:
            return _over("client_requests_max", "requests in flight", limits.client_requests_max)
        memory = self._state.clients.get(key)
        share = _NOTHING
        if memory is None or request.number not in memory.answers:
            share = _share(body)
            refused = self._beyond(key, body, share, client)
            if refused is not None:
                return refused
        adds_to = None
        if isinstance(body, AddPartitions | AddSubscriptions) and share is not _NOTHING:
            adds_to = body.sequence
            self._adding[adds_to] += share.registrations
        client.requests[request.number] = _InFlight(share, adds_to)
        client.transactions += share.transactions
        client.registrations += share.registrations
        self._clients[key] = client
        return None

    def ended(self, request: TxnRequest) -> None:
        """A request that was counted was read back, or will never be; others are passed over."""
        key = client_key(request.client_id)
        client = self._clients.get(key)
        one = None if client is None else client.requests.pop(request.number, None)
        if client is None or one is None:
            return
        client.transactions -= one.share.transactions
        client.registrations -= one.share.registrations
        if not client.requests:
            del self._clients[key]
        if one.adds_to is not None:
            _less(self._adding, one.adds_to, one.share.registrations)

    def ask(self, client_id: bytes) -> Refused | None:
        """Counts a question, or returns why it is not answered."""
        key = client_key(client_id)
        if self._questions[key] >= QUESTIONS_IN_FLIGHT_MAX:
            return Refused(f"{QUESTIONS_IN_FLIGHT_MAX} questions in flight", RefusalCode.LIMIT)
        self._questions[key] += 1
        return None

    def answered(self, client_id: bytes) -> None:
        """A question that was counted was answered."""
        _less(self._questions, client_key(client_id), 1)

    def _beyond(self, key: bytes, body: Admitted, share: _Share, client: _Client) -> Refused | None:
        """Why the client may not hold that much more; None if it may."""
        limits = self._limits
        if (
            share is not _NOTHING or key not in self._state.clients
        ) and self._state_bytes() > limits.state_bytes_max:
            return _over(
                "coordinator_state_mib_max",
                "bytes of state of a worker's coordinators",
                limits.state_bytes_max,
            )
        return None if share is _NOTHING else self._unheld(key, body, share, client)

    def _unheld(self, key: bytes, body: Admitted, share: _Share, client: _Client) -> Refused | None:
        limits, held = self._limits, self._state.held.get(key)
        transactions = client.transactions + share.transactions
        registrations = client.registrations + share.registrations
        if held is not None:
            transactions += held.transactions
            registrations += held.registrations
        if isinstance(body, Open):
            if body.timeout_ms > limits.txn_timeout_ms_max or not body.timeout_ms:
                return Refused(
                    f"time-out of {body.timeout_ms} ms; allowed are 1..{limits.txn_timeout_ms_max} "
                    "(setting txn_timeout_ms_max)",
                    RefusalCode.MALFORMED,
                )
            each = max(len(body.partitions), len(body.subscriptions))
        else:
            each = self._of_transaction(body)
        if each > limits.transaction_partitions_max:
            return _over(
                "transaction_partitions_max",
                "partitions or subscriptions of a transaction",
                limits.transaction_partitions_max,
            )
        if transactions > limits.client_transactions_max and share.transactions:
            return _over(
                "client_transactions_max",
                "open transactions of a client",
                limits.client_transactions_max,
            )
        if registrations > limits.client_partitions_max and share.registrations:
            return _over(
                "client_partitions_max",
                "registered partitions and subscriptions of a client",
                limits.client_partitions_max,
            )
        return None

    def _of_transaction(self, body: Admitted) -> int:
        """How many partitions, or subscriptions, a transaction would have at the most."""
        if isinstance(body, AddPartitions):
            txn = self._state.transactions.get(body.sequence)
            held = 0 if txn is None else len(txn.partitions)
            return held + self._adding[body.sequence] + len(body.partitions)
        assert isinstance(body, AddSubscriptions)
        txn = self._state.transactions.get(body.sequence)
        held = 0 if txn is None else len(txn.subscriptions)
        return held + self._adding[body.sequence] + len(body.subscriptions)


def estimated_bytes(state: CoordinatorState) -> int:
    """About how many bytes a coordinator's state takes; costs less than a microsecond."""
    return (
        len(state.transactions) * TRANSACTION_BYTES
        + state.registration_count * REGISTRATION_BYTES
        + state.answer_count * ANSWER_BYTES
        + len(state.clients) * CLIENT_BYTES
    )


def _share(body: object) -> _Share:
    if isinstance(body, Open):
        registrations = len(body.partitions) + len(body.subscriptions)
        return _Share(body.transaction_count, body.transaction_count * registrations)
    if isinstance(body, AddPartitions):
        return _Share(0, len(body.partitions))
    if isinstance(body, AddSubscriptions):
        return _Share(0, len(body.subscriptions))
    return _NOTHING


def _less(counter: "Counter[_K]", key: _K, count: int) -> None:
    """Lowers a count, and forgets a key that counts nothing."""
    left = counter[key] - count
    if left > 0:
        counter[key] = left
    else:
        counter.pop(key, None)


def _over(setting: str, what: str, most: int) -> Refused:
    return Refused(f"too many {what}: the most is {most} (setting {setting})", RefusalCode.LIMIT)


GROUP_CHARS_MAX = 1000
"""Longest name of a consumer group; Kafka itself allows 32 767 bytes."""


DECIDER_CHARS_MAX, REASON_CHARS_MAX, DECIDED_BY_CHARS_MAX = 100, 500, 200
"""Longest name of a decider, longest reason of an operator, and longest text of who decides."""


def wrong_values(request: TxnRequest, body: Admitted) -> str:
    """Why the values of a request cannot be true; "" if they can (C10)."""
    if request.number > OFFSET_MAX or request.acked_through >= request.number:
        return f"request {request.number} acknowledges answers up to {request.acked_through}"
    if isinstance(body, Open):
        return _wrong_open(body)
    if isinstance(body, Release):
        beyond = max(body.sequences, default=0)
        return _wrong_sequence(beyond)
    wrong = _wrong_sequence(body.sequence)
    if isinstance(body, AddPartitions):
        wrong = wrong or _wrong_registrations(body.partitions)
    elif isinstance(body, AddSubscriptions):
        wrong = wrong or _wrong_subscriptions(body.subscriptions)
    elif isinstance(body, (End, Prepare)):
        wrong = wrong or _wrong_written(body.written)
        wrong = wrong or _wrong_subscriptions(body.acknowledged_in or ())
    if isinstance(body, Prepare) and len(body.decider) > DECIDER_CHARS_MAX:
        wrong = wrong or f"a decider's name of {len(body.decider)} characters"
    if isinstance(body, Decide):
        wrong = wrong or _wrong_decision(body)
    return wrong


def without_secret(request: TxnRequest, body: EndPrepared) -> TxnRequest:
    """What is logged of a request that shows a secret: the hash of it, which the state checks (L2).

    The log holds no secret, and the check is a function of the log (C0).
    """
    sequence, committed, secret, wait_visible = body
    decide = Decide(sequence, committed, "", hash_of(secret), wait_visible)
    return request._replace(body=decide)


def _wrong_decision(body: Decide) -> str:
    """Why no operator may ask for a decision so: a hash decides in the log alone (L2)."""
    if body.secret_hash:
        return "the hash of a secret decides nothing"
    if not body.reason.strip():
        return "a decision of an operator without a reason"
    if len(body.reason) > REASON_CHARS_MAX:
        return f"a reason of {len(body.reason)} characters; the most is {REASON_CHARS_MAX}"
    if len(body.decided_by) > DECIDED_BY_CHARS_MAX:
        return f"a name of {len(body.decided_by)} characters; the most is {DECIDED_BY_CHARS_MAX}"
    return ""


def _wrong_open(body: Open) -> str:
    if not 1 <= body.transaction_count <= TRANSACTIONS_PER_OPEN_MAX:
        return f"open of {body.transaction_count} transactions at once"
    if len(body.client_name) > CLIENT_NAME_CHARS_MAX:
        return f"a client's name of {len(body.client_name)} characters"
    return _wrong_registrations(body.partitions) or _wrong_subscriptions(body.subscriptions)


def _wrong_sequence(sequence: int) -> str:
    return "" if sequence <= OFFSET_MAX else f"sequence {sequence} is beyond 2^63 - 1"


def _wrong_registrations(registered: Iterable[Registered]) -> str:
    for (topic, partition), start_offset, topic_id in registered:
        wrong = _wrong_partition(topic, partition)
        if wrong:
            return wrong
        if start_offset > OFFSET_MAX:
            return f"start offset {start_offset} is beyond 2^63 - 1"
        if len(topic_id) != TOPIC_ID_BYTES:
            return f"a topic id of {len(topic_id)} bytes"
    return ""


def _wrong_written(written: Iterable[Written]) -> str:
    for (topic, partition), first_offset, end_offset, record_count in written:
        wrong = _wrong_partition(topic, partition)
        if wrong:
            return wrong
        if max(first_offset, end_offset, record_count) > OFFSET_MAX:
            return f"an offset or count of {topic}/{partition} is beyond 2^63 - 1"
    return ""


def _wrong_subscriptions(subscriptions: Iterable[SubscriptionId]) -> str:
    for (topic, partition), group in subscriptions:
        wrong = _wrong_partition(topic, partition)
        if wrong:
            return wrong
        if not 1 <= len(group) <= GROUP_CHARS_MAX:
            return f"a group's name of {len(group)} characters"
    return ""


def _wrong_partition(topic: str, partition: int) -> str:
    if partition > PARTITION_MAX:
        return f"partition {partition} is beyond 2^31 - 1"
    return _wrong_topic(topic)


@lru_cache(maxsize=4096)
def _wrong_topic(topic: str) -> str:
    """Cached: few topics come again and again."""
    if is_system_topic(topic):
        return f"topic {topic} belongs to Stilltide"
    return "" if is_topic_name(topic) else f"no topic can have the name {topic[:50]!r}"
