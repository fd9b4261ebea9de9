"""Offsets of groups in a broker's answers, of which only what changed is decoded.

*Source*: version 8 of Kafka's OffsetFetchResponse; docs/protocols I16. kafka-python makes an object
for each partition of each group: 17 ms for 10 000 of them, ten times a second and for each owner,
though a second changes a few.

*Invariants*: what `read` returns is a function of the bytes. Bytes that stand where the same bytes
stood in the last answer mean the same: no part of the format says anything about a later part but
its length, which is in front of it.

Requests that are made again and again: encoded once, and answered with bytes.

*Source*: docs/protocols I16. kafka-python encodes a request and decodes its answer at each use,
field by field; a question for the offsets of thousands of groups and partitions is the same for
hours, and so is most of its answer (`group_offsets`).

*Invariants*: what is sent are the bytes of kafka-python's request, with the number of this use.
"""

from collections.abc import Callable
from struct import Struct, error, pack, unpack_from
from typing import Any, Generic, NamedTuple, TypeVar

from kafka.errors import KafkaProtocolError

from stilltide.connectors.kafka.errors import on_group, on_topic
from stilltide.connectors.kafka.raw.line import Line, check
from stilltide.connectors.ports.readers import Committed
from stilltide.schemas.rights import Operation
from stilltide.schemas.values import Offset, TopicPartition

T = TypeVar("T")

THROTTLE_BYTES = 4
"""With so many bytes an answer begins, which say nothing about what was asked."""

_FIXED = slice(0, 8)  # size of the frame, key and version of the request
_REST = slice(12, None)  # after the number that tells answers apart


class RawAnswer(NamedTuple):
    """An answer without its header.

    Attributes:
        throttle_time_ms: how long the broker wants no requests; kafka-python keeps to it.
        data: the answer, with the time in its first four bytes.
    """

    throttle_time_ms: int
    data: bytes


class RepeatedRequest:
    """A request in the form that kafka-python sends, whose answer is a `RawAnswer`.

    Args:
        request: the request of kafka-python, of an API whose answers begin with a throttle time.
    """

    def __init__(self, request: Any) -> None:
        self._request = request
        self._encoded: tuple[object, bytes] = None, b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    @property
    def API_VERSION(self) -> int | None:  # noqa: N802 - kafka-python's name
        """The version, which kafka-python sets when it knows the broker."""
        return self._request.API_VERSION

    @API_VERSION.setter
    def API_VERSION(self, version: int) -> None:  # noqa: N802 - as above
        self._request.API_VERSION = version

    @property
    def header(self) -> "_Header":
        """The header, which names the type of the answer."""
        return _Header(self._request.header)

    def encode(self, **form: Any) -> bytes:
        """The request in a frame, with its header."""
        assert form == {"framed": True, "header": True}
        header = self._request.header
        key = header.request_api_version, header.client_id
        if self._encoded[0] != key:
            self._encoded = key, self._request.encode(**form)
        data = self._encoded[1]
        return b"".join((data[_FIXED], pack(">i", header.correlation_id), data[_REST]))


class RepeatedQuestion(Generic[T]):
    """A question that is asked again and again, and what its last answer means.

    Args:
        request: as of `RepeatedRequest`.
        decode: what an answer means, a function of its bytes; these begin with the throttle time.
    """

    def __init__(self, request: Any, decode: Callable[[bytes], T]) -> None:
        self._request = RepeatedRequest(request)
        self._decode = decode
        self._last: tuple[bytes, T] | None = None

    async def ask(self, line: Line, node: int) -> T:
        """The answer of this broker; the same object as long as the bytes are the same."""
        data: bytes = (await line.send(self._request, node)).data
        rest = data[THROTTLE_BYTES:]
        if self._last is None or self._last[0] != rest:
            self._last = rest, self._decode(data)
        return self._last[1]


class _Header:
    """A header whose type of answer leaves the answer as it is."""

    def __init__(self, header: Any) -> None:
        self._header = header
        self._answer = header.get_response_class()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._header, name)

    def get_response_class(self) -> "_Header":
        """What decodes the answer."""
        return self

    def parse_header(self, buffer: Any) -> Any:
        """The header of the answer."""
        return self._answer.parse_header(buffer)

    def decode(self, buffer: Any) -> RawAnswer:
        """The answer."""
        data = buffer.read()
        return RawAnswer(unpack_from(">i", data)[0], data)


VERSION = 8

Commits = dict[str, dict[TopicPartition, Committed]]
"""Commits by group; a user must not change them."""

_PARTITION = Struct(">iqi")  # number, offset, epoch of the leader
_ERROR = Struct(">h")

_MORE = 0x80
"""The bit of a byte that says that another one follows."""

_RUN = 32
"""Partitions that are compared, and decoded if they differ, together."""


class _Run(NamedTuple):
    """Partitions that follow each other, as bytes and decoded."""

    data: bytes
    commits: dict[TopicPartition, Committed]


_RunKey = tuple[int, str, int, int]


class _Group(NamedTuple):
    """A group as bytes and decoded.

    Attributes:
        runs: by place and name of the topic, place of the first partition, and how many they are.
    """

    data: bytes
    commits: dict[TopicPartition, Committed]
    runs: dict[_RunKey, _Run]


class OffsetsAnswers:
    """The answers to one question for offsets that is asked again and again."""

    def __init__(self) -> None:
        self._data: bytes | None = None
        self._commits: Commits = {}
        self._groups: dict[str, _Group] = {}

    def read(self, data: bytes) -> Commits:
        """The commits; the same object as long as nothing changes.

        Raises:
            KafkaError: the bytes are no answer of version 8, or hold an error code.
        """
        rest = data[THROTTLE_BYTES:]
        if rest != self._data:
            try:
                groups, end = self._answer(rest)
            except (error, IndexError, UnicodeDecodeError) as fault:
                raise KafkaProtocolError(f"offsets of groups: {fault}") from fault
            if end != len(rest):
                raise KafkaProtocolError(f"offsets of groups: {end} bytes of {len(rest)}")
            self._data, self._groups = rest, groups
            self._commits = {name: group.commits for name, group in groups.items()}
        return self._commits

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
        check(code, on_group(Operation.DESCRIBE, name))
        at = _after_tags(data, at + _ERROR.size)
        commits: dict[TopicPartition, Committed] = {}
        for run in runs.values():
            commits |= run.commits
        return _Group(data[began:at], commits, runs)

    def _run(self, data: bytes, began: int, topic: str, count: int) -> _Run:
        at = began
        commits: dict[TopicPartition, Committed] = {}
        for _ in range(count):
            number, offset, _ = _PARTITION.unpack_from(data, at)
            metadata, at = _string(data, at + _PARTITION.size)
            (code,) = _ERROR.unpack_from(data, at)
            if code:
                check(code, on_topic(Operation.DESCRIBE, topic))
            at = _after_tags(data, at + _ERROR.size)
            if offset >= 0:
                # librdkafka commits the NUL at the end of its C string, too.
                commit = Committed(Offset(offset), metadata.rstrip("\0"))
                commits[TopicPartition(topic, number)] = commit
        return _Run(data[began:at], commits)


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
