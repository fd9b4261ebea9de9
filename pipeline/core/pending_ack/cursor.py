"""A group's cursor as the committed offset and the metadata of the group's commit.

`Ahead` holds which offsets that were not read yet are acknowledged, or pending in a transaction.

*Source*: docs/protocols G and I11 (the tag `st1`); Kafka's `offset.metadata.max.bytes`.

    st1;a=<r or b><base64url>;<other fields>

`a` is the set of offsets acknowledged above the committed offset, in the shorter of two forms:
`r`, runs: varints, in turn how many offsets are not acknowledged and how many are; `b`, a bitmap
of the offsets after the committed one, lowest bit first. Unknown fields are kept.

*Invariants*:
- Decoding returns what was encoded. If the set does not fit, its highest offsets are left out, and
  those messages are delivered again. While `always_fits` holds, nothing is left out.
- Metadata of another program contains no acknowledgements, and is never an error, whatever its tag.

*Refuses*: metadata with the tag `st1` that is damaged, or that holds a set of a kind which this
version does not know, because the acknowledgements of committed transactions are kept nowhere else.
A later format keeps the tag and has another kind: another tag is another program's.
"""

from base64 import b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Sized
from typing import NamedTuple

from stilltide.pipeline.core.offset_index.intervals import RangeSet
from stilltide.schemas.errors import DecodeError, UnknownVersionError
from stilltide.schemas.pending_ack.acknowledgements import Acks
from stilltide.schemas.values import OFFSET_MAX, EndOffset, Offset, Range, Ranges

METADATA_CHARS_MAX = 4095
"""Most characters of a commit's metadata; ASCII, so as many bytes."""

_TAG = "st1"
_FIELDS_CHARS_MAX = 256
"""Room that `always_fits` leaves for other fields."""

SET_BYTES_MAX = (METADATA_CHARS_MAX - _FIELDS_CHARS_MAX - len(f"{_TAG};a=r")) // 4 * 3
SPAN_MAX = 8 * SET_BYTES_MAX
"""Offsets after the cursor of which any subset fits as a bitmap."""

_LOW_BITS, _MORE = 0x7F, 0x80
_SHIFT_MAX = 63


class Cursor(NamedTuple):
    """How far a group has acknowledged one partition (G Cursor).

    Attributes:
        offset: offset below which every message is acknowledged or will never be delivered.
        acknowledged: acknowledged ranges above `offset`, with gaps between them.
        fields: other fields of the metadata, which are kept.
    """

    offset: Offset
    acknowledged: Ranges = ()
    fields: tuple[str, ...] = ()

    def moved(self, offset: Offset) -> "Cursor":
        """The cursor of a group that goes on at an offset: behind what is acknowledged there.

        A set of acknowledgements begins above its cursor, and has no room for the cursor itself.
        """
        acknowledged = RangeSet(self.acknowledged)
        first = Offset(acknowledged.end_of(offset))
        acknowledged.trim_below(first)
        return Cursor(first, acknowledged.ranges(), self.fields)


def always_fits(unacknowledged: int, span: int) -> bool:
    """Whether every way to acknowledge some of these offsets can be encoded (G Cursor).

    Args:
        unacknowledged: number of unacknowledged offsets and of acknowledged ranges.
        span: number of offsets from the cursor to the end of what may be acknowledged.
    """
    if span <= SPAN_MAX:
        return True
    varint_bytes = (span.bit_length() + 6) // 7
    return unacknowledged * 2 * varint_bytes <= SET_BYTES_MAX


def encode(cursor: Cursor) -> str:
    """Metadata for a commit of `cursor.offset`, in ASCII; empty without ranges and fields."""
    fields = list(cursor.fields)
    room = METADATA_CHARS_MAX - len(";".join([_TAG, "a=r", *fields]))
    payload = _encode_set(cursor, room // 4 * 3)
    if payload:
        fields.insert(0, f"a={payload}")
    return ";".join([_TAG, *fields]) if fields else ""


def decode(offset: Offset, metadata: str) -> Cursor | None:
    """The cursor that a group has committed; None: another program wrote the metadata.

    Raises:
        DecodeError: the metadata has the tag `st1` and is damaged.
        UnknownVersionError: its set of acknowledgements is of a kind of a later version.
    """
    tag, *fields = metadata.split(";")
    if tag != _TAG:
        return None if metadata else Cursor(offset)
    sets = [field for field in fields if field.startswith("a=")]
    if len(sets) > 1:
        raise DecodeError("commit metadata with two sets of acknowledgements")
    acknowledged = _decode_set(offset, sets[0][2:]) if sets else ()
    return Cursor(offset, acknowledged, tuple(it for it in fields if it not in sets))


def _encode_set(cursor: Cursor, bytes_max: int) -> str:
    runs, complete = _runs(cursor, bytes_max)
    if cursor.acknowledged:
        bits = cursor.acknowledged[-1][1] - cursor.offset - 1
        bitmap_bytes = (bits + 7) // 8
        if bitmap_bytes <= bytes_max and (not complete or bitmap_bytes < len(runs)):
            return "b" + _base64(_bitmap(cursor, bitmap_bytes))
    return "r" + _base64(runs) if runs else ""


def _runs(cursor: Cursor, bytes_max: int) -> tuple[bytes, bool]:
    """As many runs as fit, and whether all of them do."""
    encoded = bytearray()
    before: int = cursor.offset
    for first, end in cursor.acknowledged:
        run = _varint(first - before) + _varint(end - first)
        if len(encoded) + len(run) > bytes_max:
            return bytes(encoded), False
        encoded += run
        before = end
    return bytes(encoded), True


def _bitmap(cursor: Cursor, byte_count: int) -> bytes:
    bits = 0
    for first, end in cursor.acknowledged:
        bits |= ((1 << (end - first)) - 1) << (first - cursor.offset - 1)
    return bits.to_bytes(byte_count, "little")


def _decode_set(offset: int, text: str) -> Ranges:
    kind = text[:1]
    if kind.isalpha() and kind not in {"b", "r"}:
        raise UnknownVersionError(
            f"commit metadata with acknowledgements of kind {kind!r}",
            hint="a later version of this program has written it: use that one",
        )
    payload = _from_base64(text[1:])
    if kind == "b":
        return tuple(_of_bitmap(offset + 1, payload))
    if kind == "r":
        return tuple(_of_runs(offset, payload))
    raise DecodeError(f"commit metadata with acknowledgements of kind {kind!r}")


def _of_runs(offset: int, payload: bytes) -> list[Range]:
    numbers = _varints(payload)
    if len(numbers) % 2 or 0 in numbers:
        raise DecodeError("commit metadata with a run of nothing")
    runs: list[Range] = []
    end = offset
    for skipped, length in zip(numbers[::2], numbers[1::2], strict=True):
        first = end + skipped
        end = first + length
        runs.append(Range(Offset(first), EndOffset(end)))
    if end > OFFSET_MAX:
        raise DecodeError("commit metadata with an offset that cannot be")
    return runs


def _of_bitmap(offset: int, payload: bytes) -> list[Range]:
    bits = int.from_bytes(payload, "little")
    runs: list[Range] = []
    while bits:
        zeros = (bits & -bits).bit_length() - 1
        bits >>= zeros
        ones = (~bits & (bits + 1)).bit_length() - 1
        bits >>= ones
        first, offset = offset + zeros, offset + zeros + ones
        runs.append(Range(Offset(first), EndOffset(offset)))
    return runs


def _varint(number: int) -> bytes:
    """Seven bits in each byte, lowest first; the high bit is set in all bytes but the last."""
    encoded = bytearray()
    while number > _LOW_BITS:
        encoded.append(number & _LOW_BITS | _MORE)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _varints(data: bytes) -> list[int]:
    numbers: list[int] = []
    number = shift = 0
    for byte in data:
        number |= (byte & _LOW_BITS) << shift
        shift += 7
        if not byte & _MORE:
            numbers.append(number)
            number = shift = 0
        elif shift > _SHIFT_MAX:
            break
    if shift:
        raise DecodeError("commit metadata with a number that does not end")
    return numbers


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _from_base64(text: str) -> bytes:
    try:
        return b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (Base64Error, ValueError) as error:
        raise DecodeError("commit metadata that is not base64", detail=str(error)) from error


class Ahead:
    """Offsets at or above the position of one member.

    Args:
        cursor: cursor that the group has committed.

    Attributes:
        acknowledged: offsets acknowledged by the committed cursor or the store's answer.
        acknowledged_end: end offset of everything that was ever acknowledged.
        pending: offsets pending in transactions, by the store's last answer.
    """

    __slots__ = ("acknowledged", "acknowledged_end", "pending")

    def __init__(self, cursor: Cursor) -> None:
        self.acknowledged = RangeSet(cursor.acknowledged)
        self.acknowledged_end = max((it.end for it in cursor.acknowledged), default=EndOffset(0))
        self.pending = RangeSet()

    def note(self, acks: Acks, position: int) -> None:
        """Takes the store's answer about offsets at or above the position."""
        for first, end in acknowledged_in(acks):
            self.acknowledged.add(first, end)
            self.acknowledged_end = max(self.acknowledged_end, end)
        self.acknowledged.trim_below(position)
        self.pending = pending_in(acks)
        self.pending.trim_below(position)

    def fits(self, offset: int, lowest: int, open_offsets: Iterable[Sized]) -> bool:
        """Whether the cursor fits the commit's metadata, whichever offsets are acknowledged.

        Args:
            offset: highest offset that is taken.
            lowest: offset of the cursor, or below.
            open_offsets: collections of the offsets in between that are not acknowledged.
        """
        span = max(offset + 1, self.acknowledged_end) - lowest
        if span <= SPAN_MAX:  # the same result as below, without counting
            return True
        unacknowledged = sum(map(len, open_offsets))
        return always_fits(unacknowledged + self.acknowledged.range_count + 1, span)


def acknowledged_in(acks: Acks) -> RangeSet:
    """The acknowledged offsets of an answer."""
    return RangeSet([(0, acks.cursor), *acks.acknowledged])


def pending_in(acks: Acks) -> RangeSet:
    """The offsets of an answer that are pending in any transaction."""
    pending = RangeSet()
    for _, ranges, cumulative_offset, _ in acks.pending:
        for first, end in ranges:
            pending.add(first, end)
        if cumulative_offset is not None:
            pending.add(0, cumulative_offset + 1)
    return pending
