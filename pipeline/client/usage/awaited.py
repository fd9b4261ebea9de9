"""Finds the calls of a transaction that were not awaited, before the transaction commits.

*Source*: Python warns of a coroutine that was never awaited when the coroutine is collected: after
the commit, on stderr, and often unseen. What was to be sent would be lost in silence.
"""

import itertools
from collections.abc import Coroutine
from typing import Any, TypeVar

from stilltide.pipeline.errors import NotAwaitedError

T = TypeVar("T")


def check_awaited(what: str, made: int, begun: int, ended: int) -> None:
    """Passes when each call has ended.

    Args:
        what: one call in the error, such as `send`.
        made: number of calls; each call makes a coroutine.
        begun: number of these coroutines that have begun.
        ended: number of these that have returned or raised.

    Raises:
        NotAwaitedError: some have not; a commit would do without them.
    """
    if never := made - begun:
        raise NotAwaitedError(
            f"{never} {what}s were never awaited" if never > 1 else f"1 {what} was never awaited",
            detail="the transaction is aborted: a commit would do without them",
            hint=f"write `await txn.{what}(...)`",
        )
    if running := begun - ended:
        raise NotAwaitedError(
            f"{running} {what}s have not ended" if running > 1 else f"1 {what} has not ended",
            detail="the transaction is aborted: a commit would do without them",
            hint="await the tasks before the transaction ends, for example in an"
            " `asyncio.TaskGroup` inside of the transaction's block",
        )


class AwaitedCalls:
    """Counts the calls of one method.

    Args:
        what: as for `check_awaited`.

    Attributes:
        made: counts a call, and returns the number of earlier ones.
        begun: number of coroutines that have begun, counted by the method.
        ended: number of these that have returned or raised, counted by the method.
    """

    __slots__ = ("_what", "begun", "ended", "made")

    def __init__(self, what: str) -> None:
        self._what = what
        # An iterator counts, because other threads may make coroutines for the event loop.
        self.made = itertools.count().__next__
        self.begun = 0
        self.ended = 0

    def counted(self, coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """The coroutine of a call, to be awaited by the caller."""
        self.made()
        return self._run(coroutine)

    async def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self.begun += 1
        try:
            return await coroutine
        finally:
            self.ended += 1

    def check(self) -> None:
        """Raises as `check_awaited`."""
        made, begun, ended = self.made(), self.begun, self.ended
        self.begun, self.ended = begun + 1, ended + 1  # the check has counted itself
        check_awaited(self._what, made, begun, ended)
