"""Requests that are made again and again: encoded once, and answered with bytes.

*Source*: docs/protocols I16. kafka-python encodes a request and decodes its answer at each use,
field by field; a question for the offsets of thousands of groups and partitions is the same for
hours, and so is most of its answer (`group_offsets`).

*Invariants*: what is sent are the bytes of kafka-python's request, with the number of this use.
"""

from struct import pack, unpack_from
from typing import Any, NamedTuple

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
