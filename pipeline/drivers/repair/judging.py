"""Judges single records of the system topics that keep the last of each key.

*Source*: docs/protocols B10.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from stilltide.connectors.ports.readers import NewRecord, Record
from stilltide.schemas import settings
from stilltide.schemas.coordinator import markers
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.errors import DecodeError, ForeignKeyError, shown
from stilltide.schemas.native import aborted_index
from stilltide.schemas.native.aborted_index import RunKey
from stilltide.schemas.replication import positions, signals
from stilltide.schemas.replication.signals import AppliedKey, UpdateKey
from stilltide.schemas.snapshots import snapshots
from stilltide.schemas.snapshots.snapshots import EndKey, PartKey, checksum
from stilltide.schemas.topics import (
    ABORTED_INDEX,
    REPLICATION_MARKERS,
    REPLICATION_POSITIONS,
    SETTINGS,
    TXN_MARKERS,
    TXN_SNAPSHOTS,
)
from stilltide.schemas.values import TopicPartition


def error_of(record: Record) -> DecodeError | None:
    """Why a record is damaged; None: it decodes, has a foreign key, or changes nothing."""
    try:
        CHECKS[record.topic](record.key, record.value)
    except ForeignKeyError:
        return None
    except DecodeError as error:
        return error
    return None


def _marker(key: bytes | None, value: bytes | None) -> None:
    if markers.is_barrier(key):
        return  # a writer that misses one asks for another
    decoded = markers.decode(key, value)
    if isinstance(decoded, Marker) and decoded.committed and decoded.end_offset is None:
        raise DecodeError("a commit marker without end offset")


def _snapshot(key: bytes | None, value: bytes | None) -> None:
    name = snapshots.decode_key(key)
    if value is None:
        return
    match name:
        case PartKey():
            snapshots.decode_part(value)
        case EndKey():
            snapshots.decode_end(value)
        case _:
            snapshots.decode_star(value)


def _index(key: bytes | None, value: bytes | None) -> None:
    name = aborted_index.decode_key(key)
    if value is None:
        return
    if isinstance(name, RunKey):
        aborted_index.decode_run(name.first, value)
    else:
        aborted_index.decode_coverage(value)


def _bucket(key: bytes | None, value: bytes | None) -> None:
    decode: Callable[[bytes], object] = positions.decode_bucket
    if positions.beat_key(key) is not None:
        decode = positions.decode_beat
    elif positions.last_error_key(key) is not None:
        decode = positions.decode_last_error
    else:
        positions.decode_key(key)
    if value is not None:
        decode(value)


def _setting(key: bytes | None, value: bytes | None) -> None:
    name, setting = settings.decode(key, value)
    kind = settings.kind_of(name)
    if kind is not None and setting is not None and type(setting) is not kind:
        raise DecodeError(f"dynamic setting {name} is {setting!r}, which is no {kind.__name__}")


CHECKS: Mapping[str, Callable[[bytes | None, bytes | None], object]] = {
    TXN_MARKERS: _marker,
    TXN_SNAPSHOTS: _snapshot,
    ABORTED_INDEX: _index,
    REPLICATION_MARKERS: signals.decode,
    REPLICATION_POSITIONS: _bucket,
    SETTINGS: _setting,
}
"""Decodes a record, by topic."""


def snapshot_of(key: bytes | None) -> TopicPartition | None:
    """The data partition to whose snapshot a key belongs; None: a foreign key, or the key `*`."""
    try:
        name = snapshots.decode_key(key)
    except ForeignKeyError:
        return None
    return name.data if isinstance(name, PartKey | EndKey) else None


def part_of(record: Record) -> TopicPartition | None:
    """The data partition of a sealed part of a snapshot; None: the record is no such part."""
    if record.topic != TXN_SNAPSHOTS or record.value is None:
        return None
    data = snapshot_of(record.key)
    return None if data is None or record.key == snapshots.end_key(data) else data


def part_key(data: TopicPartition, number: int) -> bytes:
    """Key of a part of a snapshot."""
    return snapshots.part_key(data, number)


def is_part(record: Record, crc: int) -> bool:
    """Whether a record is the part that an end names."""
    key, value = record.key, record.value
    return key is not None and value is not None and checksum(key, value) == crc


def index_of(key: bytes | None) -> TopicPartition | None:
    """The data partition that a key of the index names; None: a foreign key."""
    try:
        return aborted_index.decode_key(key).data
    except ForeignKeyError:
        return None


def group_of(key: bytes | None) -> tuple[TopicPartition, str] | None:
    """The data partition and the group that the key of a signal names; None: it names none."""
    try:
        name = signals.decode_key(key)
    except ForeignKeyError:
        return None
    return (name.data, name.group) if isinstance(name, UpdateKey | AppliedKey) else None


SHOWN_BYTES = 32


class Repair(NamedTuple):
    """What a repair does about a damaged record.

    Attributes:
        action: in a few words; "" if nothing is safe.
        loses: what that may lose; or why nothing is safe.
        writes: the records to write, for a compacted topic.
    """

    action: str
    loses: str
    writes: Sequence[NewRecord] = ()


class Damage(NamedTuple):
    """A damaged record.

    Attributes:
        record: the record.
        why: why it does not decode.
        remedy: what a repair does.
    """

    record: Record
    why: str
    remedy: Repair

    @property
    def repairable(self) -> bool:
        """Whether a repair is safe."""
        return bool(self.remedy.action)

    @property
    def place(self) -> TopicPartition:
        """The partition that holds the record."""
        return self.record.data

    @property
    def key(self) -> str:
        """The beginning of the key, escaped."""
        return shown(self.record.key)

    @property
    def begins(self) -> str:
        """The beginning of the value, escaped."""
        return repr((self.record.value or b"")[:SHOWN_BYTES])
