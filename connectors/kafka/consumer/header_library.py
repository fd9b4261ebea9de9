"""Reads the headers of a message of the client as bytes, from the client library itself.

*Source*: docs/protocols D9; docs/internals/kafka-clients.md, Consumers. The client decodes names as
UTF-8. A name that is not raises `SystemError`, and the client has dropped all headers of the
message by then.

*Invariants*: memory is read only where a message that was made for this purpose has shown the
headers to be. Names are decoded with `surrogateescape`, so that their bytes can be written again.

Refuses: a message whose headers the client has dropped; the caller knows which.
"""

import ctypes
from functools import cache
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, Message, cimpl

from stilltide.schemas.headers import Headers

_WORD = ctypes.sizeof(ctypes.c_void_p)


class _Library(NamedTuple):
    """How headers are read.

    Attributes:
        at: where a message has the address of its headers, in bytes from its own address.
        header: librdkafka's `rd_kafka_header_get_all`.
    """

    at: int
    header: Any


def is_readable() -> bool:
    """Whether this client on this system shows the bytes of headers."""
    return _library() is not None


def headers_of(message: Message) -> Headers | None:
    """The headers of a message that has them still; None when there are none.

    To be called only if `is_readable`.
    """
    library = _library()
    assert library is not None
    headers = ctypes.c_void_p.from_address(id(message) + library.at).value
    if headers is None:  # the client has converted them, or there are none
        return message.headers()  # pyright: ignore[reportReturnType] - names and values
    name, value, size = ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_size_t()
    decoded_headers: list[tuple[str, bytes | None]] = []
    while not library.header(headers, len(decoded_headers), name, value, size):
        decoded = (name.value or b"").decode("utf-8", "surrogateescape")
        at = value.value
        decoded_headers.append((decoded, None if at is None else ctypes.string_at(at, size.value)))
    return decoded_headers


@cache
def _library() -> _Library | None:
    at = _headers_at()
    if at is None:
        return None
    try:
        # The symbols of a library include those of the libraries that it was linked with.
        header = ctypes.PyDLL(cimpl.__file__).rd_kafka_header_get_all
    except (OSError, AttributeError):
        return None
    header.restype = ctypes.c_int
    header.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_char_p),
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.POINTER(ctypes.c_size_t),
    ]
    return _Library(at, header)


def _headers_at() -> int | None:
    """Where messages have the address of headers that are not converted: behind the converted ones.

    A message that is made with headers has those converted already, so the address is null.
    """
    headers: list[tuple[str, str | bytes | None]] = [("name", b"value")]
    error = KafkaError(KafkaError._FAIL)  # noqa: SLF001 - the client's public names begin so
    message = Message(headers=headers, error=error)
    offsets = range(object.__basicsize__, Message.__basicsize__ - 2 * _WORD, _WORD)
    for at in offsets:
        words = (ctypes.c_void_p * 3).from_address(id(message) + at)
        if [*words] == [id(headers), None, id(error)]:
            return at + _WORD
    return None
