"""Record headers: `txn` on user records, `epoch` and `serial` on log entries.

*Source*: docs/protocols D1 (one header of 16 bytes marks a coordinated record), A and B2.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from stilltide.schemas.errors import DecodeError, MalformedHeaderError
from stilltide.schemas.values import TXN_ID_BYTES, Offset

Headers = Sequence[tuple[str, bytes | None]]
"""Headers of a record in order; names may repeat. What is not UTF-8 in a name that was read is
decoded with `surrogateescape` (D9)."""

TXN = "txn"
EPOCH = "epoch"
SERIAL = "serial"

_U64 = struct.Struct(">Q")


class EntryStamp(NamedTuple):
    """Writer and number of a log entry: the epoch (the owner's fence's offset) and serial (B2)."""

    epoch: Offset
    serial: int

    def to_headers(self) -> list[tuple[str, bytes]]:
        """The two headers of the entry, 8 bytes each, big-endian."""
        return [(EPOCH, _U64.pack(self.epoch)), (SERIAL, _U64.pack(self.serial))]


def entry_stamp(headers: Headers | None) -> EntryStamp | None:
    """The stamp of a log entry (A Format); None for an entry without one, such as a fence.

    Raises:
        DecodeError: one header without the other, repeated, or not 8 bytes.
    """
    stamps = [(name, value) for name, value in headers or () if name in (EPOCH, SERIAL)]
    if not stamps:
        return None
    values = dict(stamps)
    epoch, serial = values.get(EPOCH), values.get(SERIAL)
    if len(stamps) != 2 or not _is_u64(epoch) or not _is_u64(serial):  # noqa: PLR2004 - both headers
        raise DecodeError(f"headers {stamps!r} are not one epoch and one serial of 8 bytes")
    assert epoch is not None
    assert serial is not None
    return EntryStamp(Offset(_U64.unpack(epoch)[0]), _U64.unpack(serial)[0])


def _is_u64(value: bytes | None) -> bool:
    return value is not None and len(value) == _U64.size


def txn_header(headers: Headers | None) -> bytes | None:
    """The 16 bytes naming the record's transaction, None for a plain record.

    Raises:
        MalformedHeaderError: null, not 16 bytes, or more than one.
    """
    if not headers:
        return None
    values = [value for name, value in headers if name == TXN]
    if not values:
        return None
    value = values[0]
    if len(values) > 1 or value is None or len(value) != TXN_ID_BYTES:
        raise MalformedHeaderError(
            f"a record with {len(values)} `{TXN}` headers, the first {value!r}",
            hint=f"a coordinated record has exactly one `{TXN}` header of {TXN_ID_BYTES} bytes",
        )
    return value


def is_writable(name: str) -> bool:
    """Whether Kafka's client writes a header name as it is: UTF-8 without NUL."""
    if "\0" in name:
        return False
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


def writable(name: str) -> str:
    r"""A header name that was read, with `\xNN` for each byte that is not UTF-8."""
    if is_writable(name):
        return name
    raw = name.encode("utf-8", "surrogateescape")
    return raw.decode("utf-8", "backslashreplace").replace("\0", "\\x00")
