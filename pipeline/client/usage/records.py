"""Checks the types of a record before it is sent.

*Invariants*: `send` refuses a record with a mistake before anything of it is kept. librdkafka would
take some wrong types, and refuse others only when the record's partition is registered.
"""

from collections.abc import Sequence
from typing import cast

from stilltide.connectors.names import check_topic_name
from stilltide.pipeline.client.usage.arguments import require
from stilltide.pipeline.errors import ArgumentError, TransactionStateError
from stilltide.schemas.headers import TXN, Headers, is_writable

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
    if headers:
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
    for one in cast("Sequence[object]", headers):
        pair = cast("tuple[object, ...]", one) if isinstance(one, tuple | list) else ()
        if len(pair) != _PAIR or not isinstance(pair[0], str):
            raise ArgumentError(
                f"a header is {one!r:.80}, not a pair of a name and a value",
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
