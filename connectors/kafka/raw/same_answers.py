"""Requests whose answers are decoded only if they differ from the last ones.

*Source*: docs/protocols I16. kafka-python decodes an answer field by field in Python; the offsets
of groups at rest are asked for twice a second, and the answers are mostly the same.

*Invariants*: an answer with the bytes of the last one, to a request of the same version, is the
same object; its user must not change it. Only the last answer is kept.
"""

from typing import Any


class LastAnswer:
    """The last answer to requests that a user makes again and again, as bytes and decoded."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._data = b""
        self._decoded: Any = None

    def decoded(self, response_type: Any, version: int, buffer: Any) -> Any:
        """What the rest of `buffer` holds."""
        at = buffer.tell()
        data = buffer.read()
        if (version, data) != (self._version, self._data):
            buffer.seek(at)
            self._decoded = response_type.decode(buffer)
            self._version, self._data = version, data
        return self._decoded


class RepeatedRequest:
    """A request in the form that kafka-python sends, with the answer of `LastAnswer`.

    Args:
        request: the request of kafka-python.
        last: the last answer to such requests.
    """

    def __init__(self, request: Any, last: LastAnswer) -> None:
        self._request = request
        self._last = last

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
        return _Header(self._request.header, self._last)


class _Header:
    """A header whose type of answer decodes by `LastAnswer`."""

    def __init__(self, header: Any, last: LastAnswer) -> None:
        self._header = header
        self._last = last
        self._answer = header.get_response_class()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._header, name)

    def get_response_class(self) -> "_Header":
        """What decodes the answer."""
        return self

    def parse_header(self, buffer: Any) -> Any:
        """The header of the answer."""
        return self._answer.parse_header(buffer)

    def decode(self, buffer: Any) -> Any:
        """The answer."""
        return self._last.decoded(self._answer, self._header.request_api_version, buffer)
