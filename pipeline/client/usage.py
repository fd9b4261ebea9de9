"""Finds mistakes of programs at the call, before anything is opened, kept or sent.

*Source*: a wrong type would otherwise show as an error of Python somewhere below, or, in a client
of Kafka, end the process (`stilltide.connectors.names`). Python warns of a coroutine that was never
awaited only when it is collected: after the commit, and often unseen; what was to be sent would be
lost in silence. The clients of Kafka below have threads, which a forked process does not have, and
answers come to one event loop: a call from elsewhere would wait for ever (docs/services.md).

*Invariants*: `send` refuses a record with a mistake before anything of it is kept. librdkafka would
take some wrong types, and refuse others only when the record's partition is registered.
"""

import asyncio
import itertools
import os
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from stilltide.connectors.names import check_topic_name
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.client.batches import MessageBatch
from stilltide.pipeline.errors import (
    ArgumentError,
    ForkedError,
    NotAwaitedError,
    NotOpenError,
    OtherLoopError,
    TransactionStateError,
)
from stilltide.pipeline.tracing import CheckedHeaders
from stilltide.schemas.headers import TXN, Headers, is_writable
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
        raise _of_type(
            "`connector`",
            connector,
            "a connector",
            "make it with KafkaConnector(KafkaConfig(...)), or give bootstrap_servers",
        )


def _of_type(what: str, value: object, wanted: str, hint: str) -> ArgumentError:
    return ArgumentError(f"{what} is a {type(value).__name__}, not {wanted}", hint=hint)


def require(kind: type | tuple[type, ...], **arguments: object) -> None:
    """Passes arguments of a type; a bool is no number here.

    Raises:
        ArgumentError: an argument is of another type; the error names the first such one.
    """
    for name, value in arguments.items():
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise _of_type(f"`{name}`", value, f"a {wanted}", f"give a value of type {wanted}")


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
        raise _of_type("`topics`", topics, "a list of names", 'for example ["orders"]')
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
        hint = 'for example TopicPartition("orders", 0)'
        raise _of_type(f"`{name}`", data, "a TopicPartition", hint)
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
        hint = "give what the subscription has returned"
        raise _of_type("`message`", message, "a message of a subscription", hint)


def messages_of(message: Record | MessageBatch) -> Sequence[Record]:
    """A message of a subscription, or those of a batch; raises as `check_message`."""
    if isinstance(message, MessageBatch):
        return message
    check_message(message)
    return [message]


def acknowledging(subscription: object) -> Any:
    """The driver through which a subscription's messages are acknowledged.

    Raises:
        ArgumentError: the value is no subscription.
        ConfigError: the subscription was made without `acknowledgements`.
    """
    if not hasattr(type(subscription), "acknowledging"):
        hint = "give the Subscription that has returned the message"
        raise _of_type("`subscription`", subscription, "a Subscription", hint)
    return cast("Any", subscription).acknowledging


def check_txn(txn: object) -> None:
    """Passes the id of a transaction; raises `ArgumentError` for a value of another type."""
    if not isinstance(txn, TxnId):
        raise _of_type("`txn`", txn, "a TxnId", "give the id of a transaction, `Transaction.id`")
    require(int, coordinator=txn.coordinator, sequence=txn.sequence)
    if not 0 <= txn.sequence < 2**64:
        raise ArgumentError(f"`txn` has the sequence {txn.sequence}; the most is {2**64 - 1}")


def not_open(what: str, hint: str) -> NotOpenError:
    """The error of a call on a client or a subscription that is not entered, or is left."""
    return NotOpenError(f"the {what} is not open", detail="nothing was sent", hint=hint)


_PAIR = 2


def check_record(topic: str, value: object, key: object, headers: Headers) -> None:
    """Passes a record whose parts are bytes.

    Raises:
        ArgumentError: value or key are neither bytes nor None, or the headers are no sequence of
            (name, value), or a name would be written as another one (D9).
        TransactionStateError: a header is named `txn`.
    """
    if value is not None and not isinstance(value, bytes):
        raise _not_bytes("value", value, topic)
    if key is not None and not isinstance(key, bytes):
        raise _not_bytes("key", key, topic)
    if headers and type(headers) is not CheckedHeaders:
        _check_headers(topic, headers)


def check_place(topic: object, partition: object) -> None:
    """Passes a topic and a partition that `send` can be given.

    Raises:
        ArgumentError: one of them is of another type.
        InvalidTextError: no topic can have the name.
    """
    require(str, topic=topic)
    check_topic_name(topic)
    if partition is not None:
        require(int, partition=partition)


def _check_headers(topic: str, headers: object) -> None:
    if not isinstance(headers, Sequence) or isinstance(headers, str | bytes):
        raise ArgumentError(
            f"the headers are a {type(headers).__name__}, not a list of (name, value)",
            hint="a dict is written as list(headers.items()); names may repeat",
            topic=topic,
        )
    for header in cast("Sequence[object]", headers):
        pair = cast("tuple[object, ...]", header) if isinstance(header, tuple | list) else ()
        if len(pair) != _PAIR or not isinstance(pair[0], str):
            raise ArgumentError(
                f"a header is {header!r:.80}, not a pair of a name and a value",
                hint='headers are written as [("name", b"value")]',
                topic=topic,
            )
        name, value = pair
        if name == TXN:
            raise TransactionStateError(f"the header `{TXN}` belongs to Stilltide", topic=topic)
        if not is_writable(cast("str", name)):
            raise ArgumentError(
                f"the name of header {name!a:.80} is not UTF-8, or holds a NUL",
                detail="Kafka's client would write another name",
                hint="write another name; a name that was read from a record of another program "
                'has its bytes as name.encode("utf-8", "surrogateescape")',
                topic=topic,
            )
        if value is not None and not isinstance(value, bytes):
            raise _not_bytes(f"value of header {name!r}", value, topic)


def _not_bytes(part: str, value: object, topic: str) -> ArgumentError:
    kind = type(value).__name__
    step = {
        "str": "encode it: text.encode()",
        "bytearray": "copy it: bytes(value)",
        "memoryview": "copy it: bytes(value)",
        "dict": "serialize it, for example: json.dumps(value).encode()",
    }.get(kind, "serialize it to bytes")
    return ArgumentError(f"the {part} is a {kind}, not bytes", hint=step, topic=topic)


T = TypeVar("T")


def check_awaited(what: str, made: int, begun: int, ended: int) -> None:
    """Passes when each call has ended.

    Args:
        what: one call in the error, such as `send`.
        made: number of calls; each call makes a coroutine.
        begun: number of these coroutines that have begun.
        ended: number of these that have returned or raised.

    Raises:
        NotAwaitedError: some have not; a commit would do without them.
    """
    if never := made - begun:
        raise NotAwaitedError(
            f"{never} {what}s were never awaited" if never > 1 else f"1 {what} was never awaited",
            detail="the transaction is aborted: a commit would do without them",
            hint=f"write `await txn.{what}(...)`",
        )
    if running := begun - ended:
        raise NotAwaitedError(
            f"{running} {what}s have not ended" if running > 1 else f"1 {what} has not ended",
            detail="the transaction is aborted: a commit would do without them",
            hint="await the tasks before the transaction ends, for example in an"
            " `asyncio.TaskGroup` inside of the transaction's block",
        )


class AwaitedCalls:
    """Counts the calls of one method.

    Args:
        what: as for `check_awaited`.

    Attributes:
        made: counts a call, and returns the number of earlier ones.
        begun: number of coroutines that have begun, counted by the method.
        ended: number of these that have returned or raised, counted by the method.
    """

    __slots__ = ("_what", "begun", "ended", "made")

    def __init__(self, what: str) -> None:
        self._what = what
        # An iterator counts, because other threads may make coroutines for the event loop.
        self.made = itertools.count().__next__
        self.begun = 0
        self.ended = 0

    def counted(self, coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """The coroutine of a call, to be awaited by the caller."""
        self.made()
        return self._run(coroutine)

    async def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self.begun += 1
        try:
            return await coroutine
        finally:
            self.ended += 1

    def check(self) -> None:
        """Raises as `check_awaited`."""
        made, begun, ended = self.made(), self.begun, self.ended
        self.begun, self.ended = begun + 1, ended + 1  # the check has counted itself
        check_awaited(self._what, made, begun, ended)


class Home:
    """Where an object was opened: the running event loop, and the process.

    Args:
        what: the object in errors, such as `client`.
    """

    __slots__ = ("_loop", "_pid", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()

    def check(self) -> None:
        """Passes a call on the event loop of the object.

        A forked process has no event loop that runs, so the comparison finds both mistakes.

        Raises:
            OtherLoopError: the call is on another event loop, or on none.
            ForkedError: the call is in a process that was forked after the object was opened.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is not self._loop:
            check_process(self._what, self._pid)
            raise OtherLoopError(
                f"the {self._what} was opened on another event loop",
                detail="nothing was sent",
                hint=f"open a {self._what} on each event loop, or use `stilltide.sync`, whose calls"
                " may come from every thread",
            )


def check_process(what: str, pid: int) -> None:
    """Raises `ForkedError` unless this is the process `pid`, in which `what` was opened."""
    if os.getpid() != pid:
        raise ForkedError(
            f"the {what} was opened in process {pid}, of which this process is a fork",
            detail="nothing was sent: its threads and connections stayed in that process",
            hint=f"open the {what} after the fork, once in each process, for example when the"
            " process first needs it",
        )
