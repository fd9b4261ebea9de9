"""Messages of protobuf: read from bytes with their errors, and field tables for plain codecs.

*Source*: docs/protocols A: an unknown version is an error in every topic.

A field table copies a value to a message whose fields have the same names, and back. Codecs of the
hot paths (transactions, markers, acknowledgements) are written by hand, which costs half the time.

Refuses: bytes that are no such message, and versions that this program does not know. Bytes without
a version, such as a value of no bytes, are damaged, and are not called the work of a later version.
"""

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

from google.protobuf.message import DecodeError as ProtobufDecodeError
from google.protobuf.message import Message

from stilltide.schemas.errors import DAMAGED, DecodeError, UnknownVersionError, no_bytes
from stilltide.schemas.values import TopicPartition

VERSION = 1
"""The version in every message that has the field."""

M = TypeVar("M", bound=Message)
V = TypeVar("V", bound=tuple[Any, ...])


def from_bytes(kind: type[M], data: bytes, what: str) -> M:
    """The message in these bytes; raises `DecodeError`, which names `what` with its article."""
    try:
        return kind.FromString(data)
    except ProtobufDecodeError as error:
        raise DecodeError(f"not {what}", detail=str(error)) from error


def parsed(kind: type[M], value: bytes, what: str) -> M:
    """The message with a version in a record's value.

    Args:
        kind: class of the message, which has a field `version`.
        value: value of the record.
        what: name of the message in errors, with its article.

    Raises:
        UnknownVersionError: a later version wrote the message.
        DecodeError: the bytes are no such message, or there are none.
    """
    if not value:
        raise no_bytes(what)
    try:
        message = from_bytes(kind, value, what)
    except DecodeError as error:
        error.hint = DAMAGED
        raise
    version: int = getattr(message, "version")  # noqa: B009 - messages have no common type with it
    if version == 0:  # protobuf's value of a field that is absent
        raise DecodeError(f"{what} has no version", hint=DAMAGED)
    if version != VERSION:
        raise UnknownVersionError(
            f"{what} has version {version}",
            detail=f"this program reads version {VERSION}",
            hint="a newer Stilltide wrote it: upgrade this one",
        )
    return message


class FieldRule(NamedTuple):
    """How a field is written and read that a message does not hold as the value has it.

    Attributes:
        put: from the value's field to the message's; what is None stays absent.
        get: from the message's field to the value's.
        name: name of the message's field, if it has another one than the value's.
        absent: what the value has for a field that is absent, if the message can tell.
    """

    put: Callable[[Any], Any]
    get: Callable[[Any], Any]
    name: str = ""
    absent: Any = None


def each(put: Callable[[Any], Any], get: Callable[[Any], Any]) -> FieldRule:
    """The rule for a repeated field whose items are converted one by one."""

    def put_each(items: Iterable[Any]) -> Iterable[Any]:
        return map(put, items)

    def get_each(items: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(map(get, items))

    return FieldRule(put_each, get_each)


def checked(check: Callable[[Any], Any]) -> FieldRule:
    """The rule for a field that is returned by `check` as it is read, or raises `DecodeError`."""
    return FieldRule(_same, check)


class Fields(Generic[V, M]):
    """The field table of a class of values and a class of messages.

    A field of the value may be a group of fields of the message: its table has the same class of
    messages. `data`, a `TopicPartition`, is such a group by itself. A field that is absent is None
    if the message can tell, and a repeated one is a tuple.

    Args:
        value: class of the values, a `NamedTuple`.
        message: class of the messages.
        what: name of the message in errors, with its article.
        own: rules, or field tables of messages within the message, by the value's field.
    """

    def __init__(
        self,
        value: type[V],
        message: type[M],
        what: str = "",
        **own: "FieldRule | Fields[Any, Any]",
    ) -> None:
        self.message_type = message
        self._value = value
        self._what = what
        self._own = own

    def message(self, value: V) -> M:
        """The message for a value."""
        return self.message_type(**self.fields_of(value))

    def value(self, message: M) -> V:
        """The value in a message; raises `DecodeError` as the rules do."""
        return self._value(*[get(message) for _, get in self._columns])

    def encode(self, value: V) -> bytes:
        """The bytes of the message, with the version if it has the field."""
        fields = self.fields_of(value)
        if self._versioned:
            fields["version"] = VERSION
        return self.message_type(**fields).SerializeToString()

    def decode(self, data: bytes) -> V:
        """The value in such bytes.

        Raises:
            UnknownVersionError: a later version wrote the message.
            DecodeError: the bytes are no such message.
        """
        read = parsed if self._versioned else from_bytes
        return self.value(read(self.message_type, data, self._what))

    def fields_of(self, value: V) -> dict[str, Any]:
        """The fields of the message for a value."""
        fields: dict[str, Any] = {}
        for (put, _), item in zip(self._columns, value, strict=True):
            put(fields, item)
        return fields

    @property
    def _versioned(self) -> bool:
        return "version" in self.message_type.DESCRIPTOR.fields_by_name

    @cached_property
    def _columns(
        self,
    ) -> list[tuple[Callable[[dict[str, Any], Any], None], Callable[[M], Any]]]:
        names: Iterable[str] = getattr(self._value, "_fields")  # noqa: B009 - of a NamedTuple
        return [self._column(name) for name in names]

    def _column(
        self, name: str
    ) -> tuple[Callable[[dict[str, Any], Any], None], Callable[[M], Any]]:
        own = self._own.get(name)
        known = self.message_type.DESCRIPTOR.fields_by_name
        if own is None and name == "data" and name not in known:
            own = Fields(TopicPartition, self.message_type)
        is_repeated = name in known and known[name].is_repeated
        if isinstance(own, Fields):
            if own.message_type is self.message_type:
                group = own
                return lambda fields, item: fields.update(group.fields_of(item)), group.value
            own = (each if is_repeated else FieldRule)(own.message, own.value)
        rule = own or FieldRule(_same, tuple if is_repeated else _same)
        field = rule.name or name
        has_presence = known[field].has_presence

        def put(fields: dict[str, Any], item: Any) -> None:
            fields[field] = None if item is None and has_presence else rule.put(item)

        def get(message: M) -> Any:
            if has_presence and not message.HasField(field):
                return rule.absent
            return rule.get(getattr(message, field))

        return put, get


def _same(item: Any) -> Any:
    return item
