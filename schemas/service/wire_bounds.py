"""Bounds of what strangers send: bytes and elements are counted before a message is parsed.

*Source*: docs/protocols C16. A message of 3.8 MB with 1.9 million empty parts took half a second
and 60 MB to parse, and ten times that as Python objects.

*Invariants*: the time of a check is bounded by the bound of elements, not by the bytes.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from stilltide.schemas.errors import DecodeError, OversizeError

REQUESTS_MAX = 1000
"""Most requests in one record; clients put at most 512 into one."""

REQUEST_BYTES_MAX = 1024 * 1024
"""Longest request: 1000 partitions with the longest names, or 100 000 offsets, fit."""

REQUEST_ELEMENTS_MAX = 25_000
"""Most partitions, subscriptions and ranges of one request together."""

_LENGTH_DELIMITED = 2
_FIXED = {1: 8, 5: 4}
_MORE = 0x80
_SHIFT_MAX = 63

Shape = Mapping[int, "Shape"]
"""The fields of a message, by number, whose own fields are counted too, and their shapes."""

LEAF: Shape = MappingProxyType({})


def check_elements(data: bytes, elements_max: int, shape: Shape, what: str) -> None:
    """Passes if a message has at most `elements_max` fields, repetitions counted.

    Raises:
        OversizeError: there are more.
        DecodeError: the bytes are no message.
    """
    if len(data) <= 2 * elements_max:  # a field has two bytes at least
        return
    left = elements_max
    waiting = [(0, len(data), shape)]
    while waiting:
        position, end, shape = waiting.pop()
        while position < end:
            if left == 0:
                raise OversizeError(f"{what} has more than {elements_max} elements")
            left -= 1
            tag, position = _varint(data, position)
            kind = tag & 7
            if kind == _LENGTH_DELIMITED:
                size, position = _varint(data, position)
                inner = shape.get(tag >> 3)
                if inner is not None:
                    waiting.append((position, position + size, inner))
                position += size
            elif kind == 0:
                _, position = _varint(data, position)
            elif kind in _FIXED:
                position += _FIXED[kind]
            else:
                raise DecodeError(f"{what} has a field of wire type {kind}")
        if position > end:
            raise DecodeError(f"{what} ends within a field")


def check_request(data: bytes, shape: Shape) -> None:
    """Passes if one request is within its bounds of bytes and elements; raises `DecodeError`."""
    if len(data) > REQUEST_BYTES_MAX:
        raise OversizeError(f"a request of {len(data)} bytes; the most is {REQUEST_BYTES_MAX}")
    check_elements(data, REQUEST_ELEMENTS_MAX, shape, "a request")


def shape_of(paths: Iterable[tuple[int, ...]]) -> Shape:
    """The shape in which the fields on these paths, of field numbers, are counted."""
    shape: dict[int, Shape] = {}
    for first in {path[0] for path in paths}:
        shape[first] = shape_of([path[1:] for path in paths if path[0] == first and path[1:]])
    return MappingProxyType(shape)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data):
            raise DecodeError("a message that ends within a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < _MORE:
            return value, position
        shift += 7
        if shift > _SHIFT_MAX:
            raise DecodeError("a number of more than 64 bits")
