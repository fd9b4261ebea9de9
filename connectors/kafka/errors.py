"""The one place where errors of confluent-kafka become connector errors.

*Source*: docs/internals/kafka-clients.md (an error is asked: fatal, then abortable, then
retriable); connectors.errors.

*Invariants*: every message names the address of the cluster; an error that is not known to pass by
itself, or to be a fencing, is `FatalError`.

Compare a `KafkaError` with None by `is`, never by `==`, as `list.count(None)` does: `==` leaves an
exception set, which makes the next call fail.

Who asks a cluster for what, so that a refusal names operation, resource and principal.

*Source*: docs/protocols C17. A broker's refusal has a code and no more, such as
`TOPIC_AUTHORIZATION_FAILED`: it names neither the operation nor the user, and often no topic.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException

from stilltide.connectors.errors import (
    ConnectorError,
    FatalError,
    FencedError,
    InvalidRecordError,
    MissingTopicError,
    NotAuthorizedError,
    OffsetOutOfRangeError,
    RecordRefusedError,
    RetriableError,
)
from stilltide.schemas.rights import CLUSTER_NAME, Operation, Resource, ResourceKind
from stilltide.schemas.values import TopicPartition

REFUSALS: Mapping[int, ResourceKind] = MappingProxyType(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED: ResourceKind.TOPIC,
        KafkaError.GROUP_AUTHORIZATION_FAILED: ResourceKind.GROUP,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ResourceKind.TRANSACTIONAL_ID,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED: ResourceKind.CLUSTER,
    }
)
"""The kind of resource that each code refuses."""


@dataclass(frozen=True)
class Caller:
    """A client of a cluster; its text is the cluster's address.

    Attributes:
        address: bootstrap servers of the cluster.
        principal: the user as Kafka names it, as far as the client knows.
    """

    address: str
    principal: str

    def __str__(self) -> str:
        return self.address


class Access(NamedTuple):
    """What a call asks for: an operation on a resource."""

    operation: Operation
    resource: Resource


DESCRIBE_CLUSTER = Access(Operation.DESCRIBE, Resource(ResourceKind.CLUSTER, CLUSTER_NAME))
DESCRIBE_BROKERS = Access(Operation.DESCRIBE_CONFIGS, Resource(ResourceKind.CLUSTER, CLUSTER_NAME))
ALTER_CLUSTER = Access(Operation.ALTER, Resource(ResourceKind.CLUSTER, CLUSTER_NAME))


def on_topic(operation: Operation, name: str) -> Access:
    """An operation on a topic."""
    return Access(operation, Resource(ResourceKind.TOPIC, name))


def on_group(operation: Operation, name: str) -> Access:
    """An operation on a consumer group."""
    return Access(operation, Resource(ResourceKind.GROUP, name))


def on_id(operation: Operation, name: str) -> Access:
    """An operation on a transactional id."""
    return Access(operation, Resource(ResourceKind.TRANSACTIONAL_ID, name))


def principal_of(options: Mapping[str, str]) -> str:
    """The user that brokers see, or how the client logs in where only brokers know the name.

    Args:
        options: security options by librdkafka's names.
    """
    protocol = options.get("security.protocol", "PLAINTEXT").upper()
    if protocol.startswith("SASL"):
        if name := options.get("sasl.username"):
            return f"User:{name}"
        client = options.get("sasl.oauthbearer.client.id", "")
        return f"the subject of the token of the OAuth client {client}"
    if protocol == "SSL" and (path := options.get("ssl.certificate.location")):
        return f"the subject of the certificate {path}"
    return "User:ANONYMOUS"


def refusal(
    code: int | None, caller: Caller | str, action: str, asked: Sequence[Access], detail: str
) -> NotAuthorizedError | None:
    """The error of a call that the authorizer refused; None for another code.

    Args:
        code: the broker's code.
        caller: the client, or only the cluster's address.
        action: the failed action, such as `cannot write`.
        asked: what the action needs; the first of the refused kind is named.
        detail: the client's words.
    """
    kind = REFUSALS.get(-1 if code is None else code)
    fitting = [one for one in asked if one.resource.kind is kind] or list(asked)
    if kind is None or not fitting:
        return None
    return not_allowed(caller, f"{action} at {caller}", fitting[0], detail)


def not_allowed(
    caller: Caller | str, action: str, access: Access, detail: str
) -> NotAuthorizedError:
    """The error that names operation, resource and principal."""
    operation, resource = access
    principal = caller.principal if isinstance(caller, Caller) else "this user"
    return NotAuthorizedError(
        f"{action}: {operation} on {resource} is not allowed to {principal}",
        detail=detail,
        hint=f"`stilltide acl print --component COMPONENT --principal {_shown(principal)}` prints "
        "the rights of a worker, application, reader, operator, link, indexer or audit",
        operation=operation.value,
        resource=str(resource),
        principal=principal,
    )


def _shown(principal: str) -> str:
    return principal if principal.startswith("User:") else "User:NAME"


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
            KafkaError.UNKNOWN,  # a broker met something that it did not expect
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

_DISK = frozenset({KafkaError.KAFKA_STORAGE_ERROR})
_UNKNOWN = frozenset({KafkaError.UNKNOWN})

_HINTS = {
    _WRONG_TIME: "set the clock of this machine right; the topic takes timestamps within "
    "message.timestamp.before.max.ms and message.timestamp.after.max.ms of the broker's "
    "clock",
    _POLICY: "see which policy or configuration of the topic refuses such records",
    _TOO_FEW_REPLICAS: "start the brokers that are away, or lower min.insync.replicas; "
    "`stilltide topics check` names the partitions",
    _DISK: "free or replace the disk of the broker that leads the partition; its log says which",
    _UNKNOWN: "nothing needs to be done if it passes; else the broker's log says what it met",
    MISSING: "create the topic, or correct the name or partition",
    _OUT_OF_RANGE: "the records were deleted, or never written: choose a position in the log",
    REFUSED: "check security.protocol, sasl.username, sasl.password (for OAuth "
    "sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret), ssl.ca.location and "
    "the user's permissions "
    "(stilltide config show --origin shows where each setting comes from)",
    TOO_LARGE: "write smaller records, or raise max.message.bytes of the topic",
    _FENCED: "another owner has taken over: stop",
    _RETRIABLE: "check that the broker runs and that its address is right, in bootstrap_servers or "
    "clusters (stilltide config show --origin shows where each comes from); then try again",
}

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
    translated: ConnectorError | None = refusal(code, caller, action, asked, text)
    if translated is None:
        hint = next((hint for codes, hint in _HINTS.items() if code in codes), "")
        translated = kind(f"{action} at {caller}", detail=text, hint=hint)
    translated.reason = cause.name()
    return translated


def error_of(error: KafkaError | KafkaException) -> KafkaError:
    """The `KafkaError` that an exception of the client carries."""
    if isinstance(error, KafkaException):
        return error.args[0]
    return error


def place_of(error: KafkaError) -> TopicPartition | None:
    """Topic and partition of an error callback, read from its text: it has no such fields."""
    match = _PLACE.match(error.str())
    return TopicPartition(match["topic"], int(match["partition"])) if match else None
