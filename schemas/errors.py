"""The root of every error Stilltide raises, the decode errors of the wire formats, and their place.

*Source*: architecture.md, Habits of the code: a primary line, then detail and hint, with topic,
partition and offset as attributes.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from operator import length_hint
from types import TracebackType
from typing import Protocol, TypeVar


class StilltideError(Exception):
    """A failure the caller can read: `primary` says what, `detail` why, `hint` the next step.

    Topic, partition and offset are set where the failure concerns one; `str()` joins all of it.
    """

    def __init__(
        self,
        primary: str,
        *,
        detail: str = "",
        hint: str = "",
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(primary)
        self.primary = primary
        self.detail = detail
        self.hint = hint
        self.topic = topic
        self.partition = partition
        self.offset = offset

    def at(self, topic: str, partition: int, offset: int) -> "StilltideError":
        """Says where the record that caused it lies; returns itself, to be raised."""
        self.topic, self.partition, self.offset = topic, partition, offset
        return self

    @property
    def place(self) -> str:
        """`topic/partition@offset` as far as known, else empty."""
        if self.topic is None:
            return ""
        place = self.topic
        if self.partition is not None:
            place += f"/{self.partition}"
        if self.offset is not None:
            place += f"@{self.offset}"
        return place

    def __str__(self) -> str:
        text = f"{self.place}: {self.primary}" if self.place else self.primary
        if self.detail:
            text += f"\n  detail: {self.detail}"
        if self.hint:
            text += f"\n  hint: {self.hint}"
        return text


class DecodeError(StilltideError):
    """Bytes that are not what their topic holds."""


class UnknownVersionError(DecodeError):
    """A frame of a version this program does not know; never guessed at (A)."""


class OversizeError(DecodeError):
    """More bytes or records than any writer of this format may produce."""


class MalformedHeaderError(DecodeError):
    """A `txn` header that is not exactly one value of 16 bytes (D)."""


class Placed(Protocol):
    """What lies in a partition: a record, or the end of what was read."""

    @property
    def topic(self) -> str:
        """The partition's topic."""
        ...

    @property
    def partition(self) -> int:
        """The partition's number."""
        ...


T = TypeVar("T", bound=Placed)


def placed(
    record: Placed, errors: type[StilltideError] = DecodeError
) -> AbstractContextManager[object]:
    """A block of code about one record: an error that leaves it names the record's place.

    An error that names an offset already keeps its place.

    Args:
        record: what the block is about.
        errors: which errors; all others pass as they are.
    """
    return _PlacedEach([record], errors)


def placed_each(
    records: Sequence[T], errors: type[StilltideError] = DecodeError
) -> AbstractContextManager[Iterator[T]]:
    """A block with a loop over records: an error names the record that the loop took last.

    The block costs nothing per record. It has the form `with placed_each(records) as each:` around
    `for record in each:`.

    Args:
        records: what the loop is over.
        errors: which errors; all others pass as they are.
    """
    return _PlacedEach(records, errors)


class _PlacedEach(AbstractContextManager[Iterator[T]]):
    """Tells from what is left of an iterator which record the loop is at."""

    def __init__(self, records: Sequence[T], errors: type[StilltideError]) -> None:
        self._records = records
        self._errors = errors
        self._left = iter(records)

    def __enter__(self) -> Iterator[T]:
        return self._left

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, self._errors) and error.offset is None:
            taken = len(self._records) - length_hint(self._left)
            record = self._records[max(0, taken - 1)]
            error.topic, error.partition = record.topic, record.partition
            error.offset = getattr(record, "offset", None)
