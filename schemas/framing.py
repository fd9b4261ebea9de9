"""Framed batches of records, and the bounds of what strangers send.

A framed batch is magic, version, then one protobuf message with the records in field 1. The module
also encodes log records that hold a client's request, whose bytes are not parsed. Bytes and
elements of a request are counted before a message is parsed: a message of 3.8 MB with 1.9 million
empty parts took half a second and 60 MB to parse, and ten times that as Python objects.

*Source*: PIP-160; docs/protocols A, C16. The first byte 0x0E would be field 1 with wire type
6, which protobuf never emits, so a bare record cannot be mistaken for a batch.

*Invariants*: readers accept framed and bare values mixed; an unknown version is an error; the time
of a check is bounded by the bound of elements, not by the bytes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TypeVar

from google.protobuf.message import DecodeError as ProtobufDecodeError

from stilltide.schemas.errors import DecodeError, OversizeError, UnknownVersionError
from stilltide.schemas.v1.framing_pb2 import Batch, RequestRecord

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


T = TypeVar("T")

MAGIC = b"\x0e\x01"
VERSION = b"\x00\x01"
_PREFIX = MAGIC + VERSION

VALUE_BYTES_MAX = 8 * 1024 * 1024
"""Longest value that Stilltide writes; a reader refuses a longer one before parsing it."""

RECORDS_MAX = 1_000_000
"""Most records of a batch that Stilltide writes."""


def encode_batch(records: Sequence[bytes]) -> bytes:
    """Frames records that are serialised already, without parsing them."""
    return _PREFIX + Batch(records=records).SerializeToString()


def encode_request_record(request: bytes, at_ms: int) -> bytes:
    """Bytes of a record of txn-log or pending-ack-log that holds a request, which is not parsed.

    The joined bytes of a message's fields are the message, at a quarter of the cost of making one.

    Args:
        request: bytes of the request, exactly as they arrived.
        at_ms: time of the owner's clock, milliseconds since 1970.
    """
    return request_field(request) + _time_field(at_ms)


def request_field(request: bytes) -> bytes:
    """The field with the request of such a log record; alone, the field is a record too.

    An owner parses an arriving request inside this field: nested one message deeper, as in the log.
    Otherwise a request nested too deeply could be appended and never be read again.
    """
    return _request_head(len(request)) + request


@lru_cache(maxsize=1024)
def _request_head(size_bytes: int) -> bytes:
    """The bytes before a request of `size_bytes` bytes."""
    field = RequestRecord(request=bytes(size_bytes)).SerializeToString()
    return field[: len(field) - size_bytes]


@lru_cache(maxsize=1)
def _time_field(at_ms: int) -> bytes:
    """The field with the time; cached, since requests that arrive together have one time."""
    return RequestRecord(at_ms=at_ms).SerializeToString()


def is_framed(value: bytes) -> bool:
    """Whether a value begins a batch."""
    return value[:1] == MAGIC[:1]


def decode_value(value: bytes | None, *, records_max: int = RECORDS_MAX) -> list[bytes]:
    """The records of a value in append order: of a batch, or the bare record (A Format).

    Args:
        value: value of a Kafka record.
        records_max: most records; a batch with more is not parsed.

    Raises:
        OversizeError: the value is longer, or holds more, than any that Stilltide writes.
        UnknownVersionError: a later version framed the value.
        DecodeError: the value is null, or has no batch after the prefix.
    """
    if value is None:
        raise DecodeError("a log entry has no value", hint="something else writes to this topic")
    if len(value) > VALUE_BYTES_MAX:
        raise OversizeError(f"a value of {len(value)} bytes; the most is {VALUE_BYTES_MAX}")
    if not is_framed(value):
        return [value]
    if value[:2] != MAGIC:
        raise DecodeError(f"magic {value[:2].hex()} is not {MAGIC.hex()}")
    if len(value) < len(_PREFIX):
        raise DecodeError("a batch that ends within its version")
    if value[2:4] != VERSION:
        raise UnknownVersionError(
            f"batch version {value[2:4].hex()} is unknown",
            detail=f"this program reads version {VERSION.hex()}",
            hint="a newer Stilltide wrote it: upgrade this one",
        )
    return _records_of(value[len(_PREFIX) :], records_max)


def decode_each(value: bytes | None, decode: Callable[[bytes], T]) -> Iterator[T]:
    """The requests of a value; a part that is none keeps no other part back (C10).

    Raises:
        DecodeError: as `decode_value`; behind the last request: a part is no request.
    """
    failed: DecodeError | None = None
    for data in decode_value(value, records_max=REQUESTS_MAX):
        try:
            request = decode(data)
        except DecodeError as error:
            failed = error
        else:
            yield request
    if failed is not None:
        raise failed


def _records_of(body: bytes, records_max: int) -> list[bytes]:
    """The records of a batch behind magic and version."""
    if records_max < RECORDS_MAX:  # what strangers may send is counted before it is parsed (C16)
        check_elements(body, records_max, LEAF, "a batch")
    try:
        records = Batch.FromString(body).records
    except ProtobufDecodeError as error:
        raise DecodeError("not a batch behind magic and version", detail=str(error)) from error
    if not records:
        raise DecodeError("a batch without records")
    if len(records) > records_max:
        raise OversizeError(f"a batch of {len(records)} records; the most is {records_max}")
    return list(records)
