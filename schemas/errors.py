"""The root of every error that Stilltide raises, and the decode errors of the wire formats.

*Source*: docs/internals/style.md, Errors: a primary line, then detail and hint, with topic,
partition and offset as attributes.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache
from importlib.util import find_spec
from operator import length_hint
from types import MappingProxyType, TracebackType
from typing import Protocol, TypeVar

from stilltide.schemas.printable import printable, printable_lines

_COMMAND = re.compile(r"\bstilltide (?:--)?(?P<noun>[a-z][a-z-]*)")
_INSTALL = "pip install 'stilltide["
_MODULES = MappingProxyType(
    {
        "audit": ("pyspark", "spark"),
        "console": ("jinja2", "console"),
        "table": ("pyspark", "spark"),
        "worker": ("faust", "worker"),
    }
)
"""A module and the extra that a command needs besides the extra `cli`."""


def with_extras(hint: str) -> str:
    """A hint that says what installs a command that it names, where the command is missing."""
    if _INSTALL in hint:
        return hint
    needed = {_MODULES.get(noun, ("click", "cli")) for noun in _COMMAND.findall(hint)}
    missing = sorted(extra for module, extra in needed if not _installed(module))
    return f"{hint} ({_INSTALL}{','.join(missing)}]' brings the command)" if missing else hint


@cache
def _installed(module: str) -> bool:
    return module in sys.modules or find_spec(module) is not None


class StilltideError(Exception):
    """A failure: `primary` names what failed, `detail` the cause, `hint` the next step.

    A hint that names a command says what installs it, unless it is installed.

    Topic, partition and offset are set if the failure concerns one (`data` is topic and partition);
    `str()` contains everything, with the text of strangers made printable.
    """

    def __init__(
        self,
        primary: str,
        *,
        detail: str = "",
        hint: str = "",
        data: tuple[str, int] | None = None,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(primary)
        self.primary = primary
        self.detail = detail
        self.hint = hint
        self.topic, self.partition = (topic, partition) if data is None else data
        self.offset = offset

    @property
    def hint(self) -> str:
        """The next step; empty if there is none."""
        return with_extras(self._hint)

    @hint.setter
    def hint(self, hint: str) -> None:
        self._hint = hint

    def at(self, topic: str, partition: int, offset: int) -> "StilltideError":
        """Sets the place of the record that caused the error; returns the error, to be raised."""
        self.topic, self.partition, self.offset = topic, partition, offset
        return self

    @property
    def place(self) -> str:
        """`topic/partition@offset`, as far as these are known; empty without topic."""
        if self.topic is None:
            return ""
        place = self.topic
        if self.partition is not None:
            place += f"/{self.partition}"
        if self.offset is not None:
            place += f"@{self.offset}"
        return place

    def __str__(self) -> str:
        text = printable(f"{self.place}: {self.primary}" if self.place else self.primary)
        if self.detail:
            text += f"\n  detail: {printable_lines(self.detail)}"
        if self.hint:
            text += f"\n  hint: {printable_lines(self.hint)}"
        return text


class DecodeError(StilltideError):
    """Bytes that are not in the format of their topic."""


class UnknownVersionError(DecodeError):
    """A format version that this program does not know; its content is never guessed (A)."""


class OversizeError(DecodeError):
    """More bytes or records than any writer of this format may produce."""


class ForeignKeyError(DecodeError):
    """The key of a record is none of its topic's: no process of Stilltide wrote it (B10)."""


class MalformedHeaderError(DecodeError):
    """A `txn` header that is not exactly one value of 16 bytes (D)."""


class PreparedTokenError(DecodeError):
    """A text that is not the whole token of a prepared transaction (L2)."""


DAMAGED = "it was cut off, or something else writes to this topic"
"""The hint for bytes that no version of Stilltide writes."""


def no_bytes(what: str) -> DecodeError:
    """The error of a value of no bytes, which protobuf would read as a message without fields.

    A value of no bytes is no tombstone: a tombstone has no value.

    Args:
        what: name of the message in the error, with its article.
    """
    return DecodeError(f"{what} is a value of no bytes", hint=DAMAGED)


def damaged_at(error: DecodeError, topic: str, partition: int, offset: int) -> DecodeError:
    """The error of a record that Stilltide needs, with its place and the next step (B10)."""
    if not isinstance(error, UnknownVersionError):
        error.hint = (
            "the record is damaged, or another program has written it; this shows what can be "
            f"done: stilltide repair {topic} --partition {partition} --offset {offset}"
        )
    error.at(topic, partition, offset)
    return error


def shown(key: bytes | None) -> str:
    """The beginning of a key, escaped, for an error: anybody may have written megabytes."""
    return repr(key if key is None else key[:32])


class Placed(Protocol):
    """An item read from a partition: a record, or the event that its end was reached."""

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
        record: record that the block handles.
        errors: class of errors that get the place; other errors are not changed.
    """
    return _PlacedEach([record], errors)


def placed_each(
    records: Sequence[T], errors: type[StilltideError] = DecodeError
) -> AbstractContextManager[Iterator[T]]:
    """A block with a loop over records: an error names the record that the loop took last.

    The block costs nothing per record. It has the form `with placed_each(records) as each:` around
    `for record in each:`.

    Args:
        records: records of the loop.
        errors: class of errors that get the place; other errors are not changed.
    """
    return _PlacedEach(records, errors)


class _PlacedEach(AbstractContextManager[Iterator[T]]):
    """Finds the record at which a loop is from the number of records left in its iterator."""

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
