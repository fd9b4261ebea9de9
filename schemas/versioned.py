"""Messages that say which version of their format they have.

*Source*: docs/protocols A: an unknown version is an error, whatever topic it is in.

Refuses: bytes that are no such message, and versions that this program does not know.
"""

from typing import Protocol, Self, TypeVar

from google.protobuf.message import DecodeError as ProtobufDecodeError

from stilltide.schemas.errors import DecodeError, UnknownVersionError

VERSION = 1
"""Of every message that bears one."""


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
        kind: its class.
        value: the record's.
        what: what it is called in errors, with its article.

    Raises:
        UnknownVersionError: a later version wrote it.
        DecodeError: something else.
    """
    try:
        message = kind.FromString(value)
    except ProtobufDecodeError as error:
        raise DecodeError(
            f"not {what}",
            detail=str(error),
            hint="it was cut off, or something else writes to this topic",
        ) from error
    if message.version != VERSION:
        raise UnknownVersionError(
            f"{what} has version {message.version}",
            detail=f"this program reads version {VERSION}",
            hint="a newer Stilltide wrote it: upgrade this one",
        )
    return message
