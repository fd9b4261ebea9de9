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
    """Counts calls that are not made for every record.

    Args:
        what: as for `check_awaited`.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        # An iterator counts, because other threads may make coroutines for the event loop.
        self._made = itertools.count().__next__
        self._begun = 0
        self._ended = 0

    def counted(self, coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """The coroutine, to be awaited by the caller."""
        self._made()
        return self._run(coroutine)

    async def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self._begun += 1
        try:
            return await coroutine
        finally:
            self._ended += 1

    def check(self) -> None:
        """Raises as `check_awaited`; called once, when no further call is allowed."""
        check_awaited(self._what, self._made(), self._begun, self._ended)
