"""Repeats calls during an outage of the cluster, up to a time limit.

*Source*: connectors.errors: a call that raised `RetriableError` may succeed when it is repeated.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, ParamSpec, TypeVar

from stilltide.connectors.chance import Chance
from stilltide.connectors.errors import NoBrokerError, RetriableError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.pipeline.errors import UnavailableError
from stilltide.schemas.retry import OUTAGE, Retry
from stilltide.schemas.topics import TXN_MARKERS


class Tries:
    """The tries of one thing; the first begins with the object, which a running loop makes.

        tries = Tries(OUTAGE)
        while True:
            try:
                return await attempt()
            except RetriableError:
                if tries.failed():
                    raise
            await tries.pause()

    Args:
        retry: the distances.
        chance: draws what is taken away of each wait; None: nothing.

    Attributes:
        failing_since_s: loop time of the first failure of the present row.
        due_s: loop time of the next try, as of the last failure.
    """

    def __init__(self, retry: Retry, chance: Chance | None = None) -> None:
        self.failing_since_s = self.due_s = 0.0
        self._retry = retry
        self._chance = chance
        self._failures = 0
        self._now_s = asyncio.get_running_loop().time
        self._began_s = self._now_s()
        self._row_began_s: float | None = None

    def failed(self) -> bool:
        """The present try has failed; whether the failure is final."""
        now_s, retry = self._now_s(), self._retry
        if now_s - self._began_s > retry.sound_s:
            self.succeeded()
        if self._row_began_s is None:
            self.failing_since_s, self._row_began_s = now_s, self._began_s
        self._failures += 1
        luck = 0.0 if self._chance is None else self._chance.between(0, 1)
        self.due_s = now_s + retry.wait_s(self._failures, luck)
        return now_s - self._row_began_s >= retry.give_up_s

    def succeeded(self) -> None:
        """The row of failures has ended."""
        self._failures, self._row_began_s = 0, None

    async def pause(self, woken: asyncio.Event | None = None) -> None:
        """Waits for the next try, which begins then; `woken` ends the wait, and is no failure."""
        try:
            async with asyncio.timeout_at(self.due_s):
                await (woken.wait() if woken else asyncio.get_running_loop().create_future())
            self._failures -= 1  # else those who wake a thing often would make its waits long
        except TimeoutError:
            """The next try is due."""
        self._began_s = self._now_s()


P = ParamSpec("P")
T = TypeVar("T")


START_TIMEOUT_S_MAX = 60.0
"""Longest absence of the cluster while a client starts, also of one without a limit."""

STUCK_S = 300.0
"""Time for which a call may keep failing while the cluster answers other questions. A client that
has lost its brokers for good fails like that (docs/internals/kafka-clients.md); another process
finds them."""


class OutageGuard:
    """Repeats calls while the cluster is away, at most `timeout_s` for each outage.

    Without `timeout_s` there is no limit: a process that has served waits for its cluster (B9).
    The admin client checks whether the cluster is back, because a read of a topic without new
    records does not show that.

    Args:
        admin: asks whether the cluster is back.
        timeout_s: longest outage.
        awaits_contact: whether an outage may last as long before the first contact, too; else a
            wrong address is told at once. Without a limit it always may.
        retry: between two questions.
    """

    def __init__(
        self,
        admin: LogAdmin,
        *,
        timeout_s: float = math.inf,
        awaits_contact: bool = False,
        retry: Retry = OUTAGE,
    ) -> None:
        self._admin = admin
        self._timeout_s = timeout_s
        self._awaits_contact = awaits_contact or timeout_s == math.inf
        self._retry = retry

    def call(
        self, attempt: Callable[P, Awaitable[T]], *args: P.args, **named: P.kwargs
    ) -> Coroutine[Any, Any, T]:
        """The result of `attempt`, which is repeated with its arguments after a `RetriableError`.

        Raises:
            UnavailableError: the cluster stayed away for too long, or the call kept failing
                while the cluster answered; or nothing listens at an address that was never reached.
        """
        return self._call(partial(attempt, *args, **named), may_rest=False)

    def read(self, attempt: Callable[[], Awaitable[T]]) -> Coroutine[Any, Any, T]:
        """As `call`, for a call that may wait while the cluster is there, as a read does.

        The time until its failure does not count as an outage.
        """
        return self._call(attempt, may_rest=True)

    async def _call(self, attempt: Callable[[], Awaitable[T]], *, may_rest: bool) -> T:
        now = asyncio.get_running_loop().time
        failing_since: float | None = None
        stuck_since: float | None = None
        while True:
            began = now()
            try:
                return await attempt()
            except RetriableError as error:
                if isinstance(error, NoBrokerError) and not self._awaits_contact:
                    raise away_too_long(error.primary, error) from None
                if failing_since is None or now() - began > self._timeout_s:
                    failing_since = now() if may_rest else began
                if await self._until_available(failing_since + self._timeout_s, error):
                    stuck_since = None
                stuck_since = now() if stuck_since is None else stuck_since
                if now() - stuck_since > STUCK_S and not may_rest:
                    raise UnavailableError(
                        f"the cluster answers, but a call has failed for {STUCK_S:g} s",
                        detail=str(error),
                        hint="restart this process; its clients may have lost their brokers",
                    ) from error

    async def _until_available(self, deadline: float, error: RetriableError) -> bool:
        """Waits until the cluster answers; whether it was away meanwhile."""
        now = asyncio.get_running_loop().time
        away, tries = False, Tries(self._retry)
        while now() < deadline:
            tries.failed()
            await tries.pause()
            try:
                async with asyncio.timeout_at(None if deadline == math.inf else deadline):
                    await self._admin.describe_topics([TXN_MARKERS])
            except RetriableError as again:
                away, error = True, again
            except TimeoutError:
                break
            else:
                return away
        raise away_too_long(f"the cluster was away for {self._timeout_s:g} s", error) from None


def away_too_long(what: str, error: RetriableError) -> UnavailableError:
    """The error that ends a wait for a cluster; to be raised `from None`, since it says the cause.

    Args:
        what: what happened, such as how long the cluster was away.
        error: the last failure.
    """
    known = [text for text in (error.primary, error.detail) if text and text != what]
    return UnavailableError(what, detail="; ".join(known), hint=error.hint or _CHECK)


_CHECK = "check that its brokers run and are reachable at that address"
