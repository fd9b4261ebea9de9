"""Headers of a dead letter: where the message came from, how often it was delivered, and why.

*Source*: docs/protocols G2. Key, value and the application's headers stay those of the message;
headers of this module follow them, each once, as text in UTF-8.

*Refuses*: nothing when headers are written; a dead letter without a legal place when it is read.
"""

from typing import NamedTuple

from stilltide.schemas.errors import DecodeError
from stilltide.schemas.headers import TXN, Headers, writable
from stilltide.schemas.replication.origins import origin_of
from stilltide.schemas.topics import is_topic_name
from stilltide.schemas.values import Offset, TopicPartition

PREFIX = "dead-letter."
"""Beginning of the names of all headers of a dead letter."""

DEAD_LETTER_SUFFIX = "-DLQ"

_TOPIC, _PARTITION, _OFFSET = f"{PREFIX}topic", f"{PREFIX}partition", f"{PREFIX}offset"
_TIMESTAMP, _GROUP = f"{PREFIX}timestamp", f"{PREFIX}group"
_DELIVERIES, _ERROR = f"{PREFIX}deliveries", f"{PREFIX}error"

_PARTITION_BITS, _OFFSET_BITS = 31, 63
_NO_TIMESTAMP = -1
"""Kafka's timestamp of a record that has none; others may be negative: they are before 1970."""


class DeadLetterHeaders(NamedTuple):
    """What the headers of a dead letter say.

    Attributes:
        data: partition that the message was read from.
        offset: offset of the message there.
        timestamp_ms: timestamp of the message there; None: it had none, or had left the log.
        group: consumer group that could not process the message.
        deliveries: how often a member of the group was given the message.
        error: why the last delivery failed.
    """

    data: TopicPartition
    offset: Offset
    timestamp_ms: int | None
    group: str
    deliveries: int
    error: str


def dead_letter_topic(topic: str, group: str) -> str:
    """The default name of the dead-letter topic of a topic and a group, as in Pulsar."""
    return f"{topic}-{group}{DEAD_LETTER_SUFFIX}"


def of_application(headers: Headers | None) -> list[tuple[str, bytes | None]]:
    """The headers that the application wrote: those that Stilltide has added are left out.

    Names are as a transaction can write them (D9).
    """
    return [
        (writable(name), value)
        for name, value in headers or ()
        if name != TXN and not name.startswith(PREFIX) and origin_of([(name, value)]) is None
    ]


def encode(letter: DeadLetterHeaders) -> list[tuple[str, bytes]]:
    """The headers of a dead letter, in their order."""
    timeless = letter.timestamp_ms in {None, _NO_TIMESTAMP}
    texts = [
        (_TOPIC, letter.data.topic),
        (_PARTITION, str(letter.data.partition)),
        (_OFFSET, str(letter.offset)),
        (_TIMESTAMP, None if timeless else str(letter.timestamp_ms)),
        (_GROUP, letter.group),
        (_DELIVERIES, str(letter.deliveries)),
        (_ERROR, letter.error),
    ]
    return [(name, text.encode()) for name, text in texts if text is not None]


def decode(headers: Headers | None) -> DeadLetterHeaders | None:
    """What a record's headers say; None: the record is no dead letter.

    Raises:
        DecodeError: there are headers of a dead letter, and they name no legal place, or no count.
    """
    own = {name: value or b"" for name, value in headers or () if name.startswith(PREFIX)}
    if not own:
        return None
    topic = _text(own.get(_TOPIC))
    if not is_topic_name(topic):
        raise DecodeError(
            f"the header `{_TOPIC}` is {own.get(_TOPIC)!r}, which is no name of a topic",
            hint="another program has written the record; `stilltide dead-letter drop` drops it",
        )
    return DeadLetterHeaders(
        TopicPartition(topic, _number(own, _PARTITION, _PARTITION_BITS)),
        Offset(_number(own, _OFFSET, _OFFSET_BITS)),
        _timestamp_ms(own) if _TIMESTAMP in own else None,
        _text(own.get(_GROUP)),
        _number(own, _DELIVERIES, _OFFSET_BITS),
        _text(own.get(_ERROR)),
    )


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")


def _timestamp_ms(own: dict[str, bytes]) -> int | None:
    before_1970 = own[_TIMESTAMP].startswith(b"-")
    digits = own | {_TIMESTAMP: own[_TIMESTAMP].removeprefix(b"-")}
    number = _number(digits, _TIMESTAMP, _OFFSET_BITS)
    timestamp_ms = -number if before_1970 else number
    return None if timestamp_ms == _NO_TIMESTAMP else timestamp_ms


def _number(own: dict[str, bytes], name: str, bits: int) -> int:
    value = own.get(name, b"")
    number = int(value) if value.isdigit() and len(value) <= bits else -1
    if not 0 <= number < 2**bits:
        raise DecodeError(
            f"the header `{name}` is {value[:bits]!r}, which is no number below 2^{bits}",
            hint="another program has written the record; `stilltide dead-letter drop` drops it",
        )
    return number
