"""Runs the driver of one partition again and again, at growing distances after it has ended.

*Source*: docs/protocols B8.

*Invariants*: an error ends one owner, never its neighbours; the owner is tried again after
`AGAIN_S`, later after twice as long and so on up to `AGAIN_S_MAX`, and at once when its partition
is assigned again, so that it serves after a repair without a restart.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import islice
from typing import NamedTuple

from stilltide.pipeline.errors import OwnerEndedError
from stilltide.schemas.coordinator.transactions import ReportedEnd
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.service.notices import OwnerEnded

AGAIN_S = 60.0
"""From the first end of an owner to its next try."""

AGAIN_S_MAX = 600.0
"""Longest time between two tries."""

REPORTED_MAX = 100
"""Owners that an answer names; metrics and the log name all."""

WHY_CHARS = 500
"""Letters of a cause in an answer."""

SOUND_S = 600.0
"""An owner that has run for this long ends for the first time, not once more."""


class OwnerEnd(NamedTuple):
    """Why an owner does not run.

    Attributes:
        error: what has ended the owner.
        ended_s: loop time of the first end since the owner last ran for `SOUND_S`.
        again_s: loop time of the next try.
    """

    error: Exception
    ended_s: float
    again_s: float

    @property
    def place(self) -> tuple[str, str, str]:
        """Topic, partition and offset, each empty if the error does not name it."""
        error = self.error
        if not isinstance(error, StilltideError):
            return "", "", ""
        found = error.topic, error.partition, error.offset
        topic, partition, offset = ("" if it is None else str(it) for it in found)
        return topic, partition, offset

    @property
    def cause(self) -> str:
        """One line: place and cause."""
        return cause_of(self.error)

    def notice(self, owner: int) -> OwnerEnded:
        """What the clients of the owner with this number are told."""
        hint: str = getattr(self.error, "hint", "")
        return OwnerEnded(owner, self.cause[:WHY_CHARS], hint[:WHY_CHARS])

    def text(self, now_s: float) -> str:
        """One line: place and cause, and when the owner is tried again."""
        return f"{self.cause} (tried again in {max(0.0, self.again_s - now_s):.0f} s)"


def reported_ends(
    ends: Mapping[str, Mapping[str, OwnerEnd]], now_ms: int
) -> tuple[ReportedEnd, ...]:
    """The first `REPORTED_MAX` owners that have ended, as an operator is told of them.

    Args:
        ends: the owners, by kind, and by number or name.
        now_ms: wall clock, milliseconds since 1970.
    """
    now_s = asyncio.get_running_loop().time()
    found = (
        ReportedEnd(
            kind,
            name,
            now_ms - round((now_s - end.ended_s) * 1000),
            end.text(now_s)[:WHY_CHARS],
            getattr(end.error, "hint", "")[:WHY_CHARS],
        )
        for kind, named in ends.items()
        for name, end in named.items()
    )
    return tuple(islice(found, REPORTED_MAX))


def cause_of(error: Exception) -> str:
    """One line: place and cause."""
    if isinstance(error, StilltideError):
        return f"{error.place}: {error.primary}" if error.place else error.primary
    return f"{type(error).__name__}: {error}"


def ended_error(kind: str, notice: OwnerEnded, detail: str = "") -> OwnerEndedError:
    """The error for a request to an owner that has ended.

    Args:
        kind: name of an owner in messages.
        notice: what its clients are told.
        detail: what is known of the request.
    """
    owner = f"{kind} {notice.owner}"
    return OwnerEndedError(
        f"{owner} has ended by an error: {notice.why}",
        detail=detail,
        hint=notice.hint or f"the log of the worker that owns {owner} has more",
    )


class Tries:
    """The tries of one owner.

    Args:
        ended: called with each end.
        again_s: time from the first end to the next try.
    """

    def __init__(self, ended: Callable[[OwnerEnd], None], *, again_s: float = AGAIN_S) -> None:
        self.end: OwnerEnd | None = None
        self._ended = ended
        self._first_s = self._delay_s = again_s
        self._now = asyncio.Event()

    def at_once(self) -> None:
        """Ends the wait for the next try; does nothing while the owner runs."""
        self._now.set()

    async def run(self, own: Callable[[], Awaitable[None]]) -> None:
        """Calls `own` until it returns; `end` is set from an error to the next call."""
        loop = asyncio.get_running_loop()
        first_s: float | None = None
        while True:
            began_s, self.end = loop.time(), None
            try:
                return await own()
            except Exception as error:  # noqa: BLE001 - whatever ends one owner must not end others
                now_s = loop.time()
                if first_s is None or now_s - began_s > SOUND_S:
                    first_s, self._delay_s = now_s, self._first_s
                self.end = OwnerEnd(error, first_s, now_s + self._delay_s)
            self._ended(self.end)
            self._now.clear()
            try:
                async with asyncio.timeout(self._delay_s):
                    await self._now.wait()
            except TimeoutError:
                self._delay_s = min(2 * self._delay_s, AGAIN_S_MAX)
