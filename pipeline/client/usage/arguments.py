"""Checks the types of arguments of public calls, before anything is opened, kept or sent.

*Source*: a wrong type would otherwise show as an error of Python somewhere below, or, in a client
of Kafka, end the process (`stilltide.connectors.names`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from stilltide.connectors.names import check_topic_name
from stilltide.connectors.ports.records import Record
from stilltide.pipeline.errors import ArgumentError, NotOpenError
from stilltide.schemas.topics import is_topic_pattern
from stilltide.schemas.values import EndOffset, TopicPartition, TxnId

OFFSET_MAX = 2**63 - 1


def check_connection(bootstrap_servers: object, connector: object) -> None:
    """Passes one of two ways to reach a cluster.

    Raises:
        ArgumentError: both or none are given, or one is of another type.
    """
    if (bootstrap_servers is None) == (connector is None):
        raise ArgumentError(
            "give either bootstrap_servers or connector",
            hint='for example bootstrap_servers="127.0.0.1:9092"',
        )
    if connector is None:
        require(str, bootstrap_servers=bootstrap_servers)
    elif not callable(getattr(connector, "group_reader", None)):
        raise ArgumentError(
            f"`connector` is a {type(connector).__name__}, not a connector",
            hint="make it with KafkaConnector(KafkaConfig(...)), or give bootstrap_servers",
        )


def require(kind: type | tuple[type, ...], **arguments: object) -> None:
    """Passes arguments of a type; a bool is no number here.

    Raises:
        ArgumentError: an argument is of another type; the error names the first such one.
    """
    for name, value in arguments.items():
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            wanted = " or ".join(it.__name__ for it in kinds)
            raise ArgumentError(
                f"`{name}` is a {type(value).__name__}, not a {wanted}",
                hint=f"give a value of type {wanted}",
            )


def check_keywords(call: str, given: Iterable[str], known: Collection[str]) -> None:
    """Passes names of arguments that a call has; the error begins with the text of Python's own.

    Raises:
        ArgumentError: a name is unknown.
    """
    for name in given:
        if name not in known:
            raise ArgumentError(
                f"{call}() got an unexpected keyword argument {name!r}",
                hint=f"known are {', '.join(sorted(known))}",
            )


def check_topics(topics: object) -> tuple[str, ...]:
    """The topics and patterns of a subscription; one name stands for a list of one.

    Raises:
        ArgumentError: the topics are no texts, or there are none.
        InvalidTextError: no topic can have such a name.
    """
    if isinstance(topics, str):
        names: tuple[object, ...] = (topics,)
    elif isinstance(topics, Sequence | set | frozenset) and not isinstance(topics, bytes):
        names = tuple(topics)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    else:
        raise ArgumentError(
            f"`topics` is a {type(topics).__name__}, not a list of names",
            hint='for example ["orders"]',
        )
    if not names:
        raise ArgumentError("topics names no topic", hint='for example ["orders"]')
    checked: list[str] = []
    for name in names:
        if not isinstance(name, str) or not is_topic_pattern(name):
            check_topic_name(name, "a topic of `topics`")
        checked.append(str(name))
    return tuple(checked)


def check_partition(data: object, name: str = "data") -> None:
    """Passes a partition; raises `ArgumentError` for a value of another type."""
    if not isinstance(data, TopicPartition):
        raise ArgumentError(
            f"`{name}` is a {type(data).__name__}, not a TopicPartition",
            hint='for example TopicPartition("orders", 0)',
        )
    require(str, topic=data.topic)
    require(int, partition=data.partition)


def check_offset(offset: object) -> None:
    """Passes an offset; raises `ArgumentError` for a value of another type, or one that is none."""
    require(int, offset=offset)
    if not 0 <= offset <= OFFSET_MAX:  # pyright: ignore[reportOperatorIssue] - an int
        raise ArgumentError(f"`offset` is {offset}; it must be in 0..{OFFSET_MAX}")


def chosen_partitions(partitions: object) -> list[TopicPartition]:
    """Partitions, each once, ascending; raises `ArgumentError` for values of other types."""
    if not isinstance(partitions, Collection):
        require(list, partitions=partitions)
    chosen = list(cast("Collection[TopicPartition]", partitions))
    for data in chosen:
        check_partition(data, "partitions")
    return sorted(set(chosen))


def checked_ends(end_offsets: object) -> dict[TopicPartition, EndOffset]:
    """End offsets of partitions; raises `ArgumentError` for values of other types."""
    require(Mapping, end_offsets=end_offsets)
    ends = dict(cast("Mapping[TopicPartition, EndOffset]", end_offsets))
    for data, end in ends.items():
        check_partition(data, "end_offsets")
        check_offset(end)
    return ends


def check_message(message: object) -> None:
    """Passes a message of a subscription; raises `ArgumentError` for a value of another type."""
    if not isinstance(message, Record):
        raise ArgumentError(
            f"`message` is a {type(message).__name__}, not a message of a subscription",
            hint="give what the subscription has returned",
        )


def acknowledging(subscription: object) -> Any:
    """The driver through which a subscription's messages are acknowledged.

    Raises:
        ArgumentError: the value is no subscription.
        ConfigError: the subscription was made without `acknowledgements`.
    """
    if not hasattr(type(subscription), "acknowledging"):
        raise ArgumentError(
            f"`subscription` is a {type(subscription).__name__}, not a Subscription",
            hint="give the Subscription that has returned the message",
        )
    return cast("Any", subscription).acknowledging


def check_txn(txn: object) -> None:
    """Passes the id of a transaction; raises `ArgumentError` for a value of another type."""
    if not isinstance(txn, TxnId):
        raise ArgumentError(
            f"`txn` is a {type(txn).__name__}, not a TxnId",
            hint="give the id of a transaction, `Transaction.id`",
        )
    require(int, coordinator=txn.coordinator, sequence=txn.sequence)
    if not 0 <= txn.sequence < 2**64:
        raise ArgumentError(f"`txn` has the sequence {txn.sequence}; the most is {2**64 - 1}")


def not_open(what: str, hint: str) -> NotOpenError:
    """The error of a call on a client or a subscription that is not entered, or is left."""
    return NotOpenError(f"the {what} is not open", detail="nothing was sent", hint=hint)
