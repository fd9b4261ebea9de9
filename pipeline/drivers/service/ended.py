"""Why an owner does not run, for operators and for its clients.

*Source*: docs/protocols B8.
"""

import asyncio
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from stilltide.pipeline.errors import OwnerEndedError
from stilltide.schemas.coordinator.transactions import ReportedEnd
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.service.envelopes import OwnerEnded

REPORTED_MAX = 100
"""Owners that an answer names; metrics and the log name all."""

WHY_CHARS = 500
"""Letters of a cause in an answer."""


class OwnerEnd(NamedTuple):
    """Why an owner does not run (B8).

    Attributes:
        error: what has ended the owner.
        ended_s: loop time of the first end in the present row of failures.
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
        place = error.topic, error.partition, error.offset
        topic, partition, offset = ("" if it is None else str(it) for it in place)
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
    reported = (
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
    return tuple(islice(reported, REPORTED_MAX))


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
