"""The one place where errors of confluent-kafka become connector errors.

*Source*: docs/internals/kafka-clients.md (an error is asked: fatal, then abortable, then
retriable); connectors.errors.

*Invariants*: every message names the address of the cluster; an error that is not known to pass by
itself, or to be a fencing, is `FatalError`.

Compare a `KafkaError` with None by `is`, never by `==`, as `list.count(None)` does: `==` leaves an
exception set, which makes the next call fail.
"""

import re

from confluent_kafka import KafkaError, KafkaException

from stilltide.connectors.errors import (
    ConnectorError,
    FatalError,
    FencedError,
    InvalidRecordError,
    MissingTopicError,
    OffsetOutOfRangeError,
    RecordRefusedError,
    RetriableError,
)
from stilltide.connectors.kafka.authorization import REFUSALS, Access, Caller, refusal
from stilltide.schemas.values import TopicPartition

_FENCED = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001 - the client's public names begin so
        KafkaError._ASSIGNMENT_LOST,  # noqa: SLF001 - as above
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.UNKNOWN_MEMBER_ID,
    }
)

AWAY = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - as above
        KafkaError._DESTROY_BROKER,  # noqa: SLF001 - as above; it has left the metadata
        KafkaError._PARTIAL,  # noqa: SLF001 - as above; a broker that is starting lists none
        KafkaError._RESOLVE,  # noqa: SLF001 - as above
        KafkaError._TIMED_OUT,  # noqa: SLF001 - as above
        KafkaError._TRANSPORT,  # noqa: SLF001 - as above
    }
)
"""Codes of a broker that cannot be reached at the moment."""

STALE = frozenset(
    {
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
"""Codes of a leader that is not the one in the client's metadata."""

_RETRIABLE = (
    AWAY
    | STALE
    | frozenset(
        {
            KafkaError._DESTROY,  # noqa: SLF001 - as above
            KafkaError._MSG_TIMED_OUT,  # noqa: SLF001 - as above
            KafkaError._OUTDATED,  # noqa: SLF001 - as above
            KafkaError._PURGE_INFLIGHT,  # noqa: SLF001 - as above
            KafkaError._PURGE_QUEUE,  # noqa: SLF001 - as above
            KafkaError._QUEUE_FULL,  # noqa: SLF001 - as above
            KafkaError._RETRY,  # noqa: SLF001 - as above
            KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001 - as above
            KafkaError._WAIT_COORD,  # noqa: SLF001 - as above
            KafkaError.BROKER_NOT_AVAILABLE,
            KafkaError.CONCURRENT_TRANSACTIONS,
            KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
            KafkaError.COORDINATOR_NOT_AVAILABLE,
            KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            KafkaError.KAFKA_STORAGE_ERROR,
            KafkaError.NETWORK_EXCEPTION,
            KafkaError.NOT_CONTROLLER,
            KafkaError.NOT_COORDINATOR,
            KafkaError.NOT_ENOUGH_REPLICAS,
            KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            KafkaError.OFFSET_NOT_AVAILABLE,
            KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
            KafkaError.REASSIGNMENT_IN_PROGRESS,
            KafkaError.REBALANCE_IN_PROGRESS,
            KafkaError.REPLICA_NOT_AVAILABLE,
            KafkaError.REQUEST_TIMED_OUT,
            KafkaError.THROTTLING_QUOTA_EXCEEDED,
            KafkaError.UNSTABLE_OFFSET_COMMIT,
        }
    )
)

MISSING = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - as above
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - as above
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""Codes of a topic or partition that does not exist."""

_OUT_OF_RANGE = frozenset(
    {
        KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001 - as above
        KafkaError.OFFSET_OUT_OF_RANGE,
    }
)

REFUSED = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - as above
        KafkaError._SSL,  # noqa: SLF001 - as above
        KafkaError.SASL_AUTHENTICATION_FAILED,
        *REFUSALS,
    }
)
"""Codes of refused authentication, of either side, or of a right that is missing."""

TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
"""Codes of a record, or of a batch, that is larger than its topic takes."""

_WRONG_TIME = frozenset({KafkaError.INVALID_TIMESTAMP})
_POLICY = frozenset({KafkaError.INVALID_RECORD, KafkaError.POLICY_VIOLATION})

_RECORD_REFUSED = _WRONG_TIME | _POLICY | TOO_LARGE
"""Codes of a record that the cluster does not take, however often it is written."""

_TOO_FEW_REPLICAS = frozenset(
    {KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
)

_HINTS = [
    (
        _WRONG_TIME,
        (
            "set the clock of this machine right; the topic takes timestamps within "
            "message.timestamp.before.max.ms and message.timestamp.after.max.ms of the broker's "
            "clock"
        ),
    ),
    (_POLICY, "see which policy or configuration of the topic refuses such records"),
    (
        _TOO_FEW_REPLICAS,
        (
            "start the brokers that are away, or lower min.insync.replicas; "
            "`stilltide topics check` names the partitions"
        ),
    ),
    (
        frozenset({KafkaError.KAFKA_STORAGE_ERROR}),
        "free or replace the disk of the broker that leads the partition; its log says which",
    ),
    (MISSING, "create the topic, or correct the name or partition"),
    (_OUT_OF_RANGE, "the records were deleted, or never written: choose a position in the log"),
    (
        REFUSED,
        (
            "check security.protocol, sasl.username, sasl.password (for OAuth "
            "sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret), ssl.ca.location and "
            "the user's permissions "
            "(stilltide config show --origin shows where each setting comes from)"
        ),
    ),
    (TOO_LARGE, "write smaller records, or raise max.message.bytes of the topic"),
    (_FENCED, "another owner has taken over: stop"),
    (
        _RETRIABLE,
        (
            "check that the broker runs and that its address is right, in bootstrap_servers or "
            "clusters (stilltide config show --origin shows where each comes from); then try again"
        ),
    ),
]

_PLACE = re.compile(r"(?P<topic>[\w.-]+) \[(?P<partition>\d+)\]:")


def translate(
    error: KafkaError | KafkaException,
    caller: Caller | str,
    action: str,
    *asked: Access,
    detail: str = "",
) -> ConnectorError:
    """The connector error for an error of confluent-kafka; the caller raises or delivers it.

    Args:
        error: the client's error.
        caller: the client, or only the bootstrap servers of the cluster.
        action: the failed action, such as `cannot write`.
        asked: the rights that the action needs; a refusal names one of them.
        detail: further evidence, such as the last connection error.
    """
    cause = error_of(error)
    code = cause.code()
    if code in _FENCED:
        kind = FencedError
    elif code in _OUT_OF_RANGE:
        kind = OffsetOutOfRangeError
    elif code in MISSING:
        kind = MissingTopicError
    elif code == KafkaError.INVALID_RECORD:
        kind = InvalidRecordError
    elif code in _RECORD_REFUSED:
        kind = RecordRefusedError
    elif not cause.fatal() and (code in _RETRIABLE or cause.retriable()):
        kind = RetriableError
    else:
        kind = FatalError
    text = f"{cause.str()} ({cause.name()})"
    text = f"{text}; {detail}" if detail else text
    found: ConnectorError | None = refusal(code, caller, action, asked, text)
    if found is None:
        hint = next((hint for codes, hint in _HINTS if code in codes), "")
        found = kind(f"{action} at {caller}", detail=text, hint=hint)
    found.reason = cause.name()
    return found


def error_of(error: KafkaError | KafkaException) -> KafkaError:
    """The `KafkaError` that an exception of the client carries."""
    if isinstance(error, KafkaException):
        return error.args[0]
    return error


def place_of(error: KafkaError) -> TopicPartition | None:
    """Topic and partition of an error callback, read from its text: it has no such fields."""
    found = _PLACE.match(error.str())
    return TopicPartition(found["topic"], int(found["partition"])) if found else None
