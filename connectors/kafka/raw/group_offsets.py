"""Offsets of groups in a broker's answers, of which only what changed is decoded.

*Source*: version 8 of Kafka's OffsetFetchResponse; docs/protocols I16. kafka-python makes an object
for each partition of each group: 17 ms for 10 000 of them, ten times a second and for each owner,
though a second changes a few.

*Invariants*: what `read` returns is a function of the bytes. Bytes that stand where the same bytes
stood in the last answer mean the same: no part of the format says anything about a later part but
its length, which is in front of it.
"""

from collections.abc import Callable
from struct import Struct, error
from typing import NamedTuple

from stilltide.connectors.kafka.raw.repeated import THROTTLE_BYTES
from stilltide.connectors.ports.readers import Committed
from stilltide.schemas.values import Offset, TopicPartition

VERSION = 8

Found = dict[str, dict[TopicPartition, Committed]]
"""Commits by group; a user must not change them."""

_PARTITION = Struct(">iqi")  # number, offset, epoch of the leader
_ERROR = Struct(">h")

_MORE = 0x80
"""The bit of a byte that says that another one follows."""

_RUN = 32
"""Partitions that are compared, and decoded if they differ, together."""


class MalformedOffsetsError(Exception):
    """An answer is not what Kafka's protocol says."""


class ErrorCheck(NamedTuple):
    """What raises for an error code other than 0, of a group, or of a topic's partition."""

    of_group: Callable[[int, str], None]
    of_partition: Callable[[int, str], None]


class _Run(NamedTuple):
    """Partitions that follow each other, as bytes and decoded."""

    data: bytes
    found: dict[TopicPartition, Committed]


_RunKey = tuple[int, str, int, int]


class _Group(NamedTuple):
    """A group as bytes and decoded.

    Attributes:
        runs: by place and name of the topic, place of the first partition, and how many they are.
    """

    data: bytes
    found: dict[TopicPartition, Committed]
    runs: dict[_RunKey, _Run]


class OffsetsAnswers:
    """The answers to one question for offsets that is asked again and again.

    Args:
        check: raises for error codes.
    """

    def __init__(self, check: ErrorCheck) -> None:
        self._check = check
        self._data: bytes | None = None
        self._found: Found = {}
        self._groups: dict[str, _Group] = {}

    def read(self, data: bytes) -> Found:
        """The commits; the same object as long as nothing changes.

        Raises:
            MalformedOffsetsError: the bytes are no answer of version 8.
        """
        rest = data[THROTTLE_BYTES:]
        if rest != self._data:
            try:
                groups, end = self._answer(rest)
            except (error, IndexError, UnicodeDecodeError) as fault:
                raise MalformedOffsetsError(f"offsets of groups: {fault}") from fault
            if end != len(rest):
                raise MalformedOffsetsError(f"offsets of groups: {end} bytes of {len(rest)}")
            self._data, self._groups = rest, groups
            self._found = {name: group.found for name, group in groups.items()}
        return self._found

    def _answer(self, data: bytes) -> tuple[dict[str, _Group], int]:
        count, at = _varint(data, 0)
        groups: dict[str, _Group] = {}
        for _ in range(count - 1):
            name, _ = _string(data, at)
            group = self._groups.get(name)
            if group is None or not data.startswith(group.data, at):
                group = self._group(data, at, group)
            groups[name] = group
            at += len(group.data)
        return groups, _after_tags(data, at)

    def _group(self, data: bytes, began: int, known: _Group | None) -> _Group:
        name, at = _string(data, began)
        count, at = _varint(data, at)
        runs: dict[_RunKey, _Run] = {}
        for place in range(count - 1):
            topic, at = _string(data, at)
            partitions, at = _varint(data, at)
            for first in range(0, partitions - 1, _RUN):
                key = place, topic, first, min(_RUN, partitions - 1 - first)
                run = None if known is None else known.runs.get(key)
                if run is None or not data.startswith(run.data, at):
                    run = self._run(data, at, topic, key[-1])
                runs[key] = run
                at += len(run.data)
            at = _after_tags(data, at)
        (code,) = _ERROR.unpack_from(data, at)
        self._check.of_group(code, name)
        at = _after_tags(data, at + _ERROR.size)
        found: dict[TopicPartition, Committed] = {}
        for run in runs.values():
            found |= run.found
        return _Group(data[began:at], found, runs)

    def _run(self, data: bytes, began: int, topic: str, count: int) -> _Run:
        at = began
        found: dict[TopicPartition, Committed] = {}
        for _ in range(count):
            number, offset, _ = _PARTITION.unpack_from(data, at)
            metadata, at = _string(data, at + _PARTITION.size)
            (code,) = _ERROR.unpack_from(data, at)
            if code:
                self._check.of_partition(code, topic)
            at = _after_tags(data, at + _ERROR.size)
            if offset >= 0:
                # librdkafka commits the NUL at the end of its C string, too.
                held = Committed(Offset(offset), metadata.rstrip("\0"))
                found[TopicPartition(topic, number)] = held
        return _Run(data[began:at], found)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned number, and where it ends."""
    byte = data[at]
    if byte < _MORE:
        return byte, at + 1
    value = shift = 0
    while byte >= _MORE:
        value |= (byte - _MORE) << shift
        shift += 7
        at += 1
        byte = data[at]
    return value | byte << shift, at + 1


def _string(data: bytes, at: int) -> tuple[str, int]:
    """A text, empty if there is none, and where it ends."""
    length, at = _varint(data, at)
    end = at + max(length - 1, 0)
    return data[at:end].decode(), end


def _after_tags(data: bytes, at: int) -> int:
    """Where fields end that a later version of the protocol has added."""
    count, at = _varint(data, at)
    for _ in range(count):
        _, at = _varint(data, at)
        size, at = _varint(data, at)
        at += size
    return at
