"""Messages with a field for the version of their format.

*Source*: docs/protocols A: an unknown version is an error in every topic.

Refuses: bytes that are no such message, and versions that this program does not know. Bytes without
a version, such as a value of no bytes, are damaged, and are not called the work of a later version.
"""

from typing import Protocol, Self, TypeVar

from google.protobuf.message import DecodeError as ProtobufDecodeError

from stilltide.schemas.errors import DAMAGED, DecodeError, UnknownVersionError, no_bytes

VERSION = 1
"""The version in every message that has the field."""


class Versioned(Protocol):
    """A generated message with a field `version`."""

    version: int

    @classmethod
    def FromString(cls, s: bytes, /) -> Self:  # noqa: N802 - protobuf's name
        """The message in these bytes."""
        ...


M = TypeVar("M", bound=Versioned)


def parsed(kind: type[M], value: bytes, what: str) -> M:
    """The message in a record's value.

    Args:
        kind: class of the message.
        value: value of the record.
        what: name of the message in errors, with its article.

    Raises:
        UnknownVersionError: a later version wrote the message.
        DecodeError: the bytes are no such message, or there are none.
    """
    if not value:
        raise no_bytes(what)
    try:
        message = kind.FromString(value)
    except ProtobufDecodeError as error:
        raise DecodeError(
            f"not {what}",
            detail=str(error),
            hint=DAMAGED,
        ) from error
    if message.version == 0:  # protobuf's value of a field that is absent
        raise DecodeError(f"{what} has no version", hint=DAMAGED)
    if message.version != VERSION:
        raise UnknownVersionError(
            f"{what} has version {message.version}",
            detail=f"this program reads version {VERSION}",
            hint="a newer Stilltide wrote it: upgrade this one",
        )
    return message
