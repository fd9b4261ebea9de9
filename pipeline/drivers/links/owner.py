"""Runs links for as long as a partition is assigned, and starts a link again after a failure.

*Source*: docs/protocols B4, H2.

*Invariants*: a fenced link starts again only while the partition is assigned, after a random delay;
any other error of a link is logged, and the link starts again at growing distances, so that the
error ends neither the links from other sources nor the worker's other services (B8). A link whose
records the cluster refuses starts again at the shortest distance (C17).
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial

from stilltide.connectors.chance import Chance
from stilltide.connectors.errors import FencedError, RecordRefusedError
from stilltide.pipeline.drivers.links.link import LinkRun
from stilltide.pipeline.drivers.service.ended import OwnerEnd
from stilltide.pipeline.drivers.service.tenure import Retry, hold
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.errors import StilltideError

_log = get_logger(__name__)

AGAIN_S = 2.0

AGAIN_S_MAX = 300.0
"""Longest time to the next start of a link that has failed again and again."""


class LinksDriver:
    """Runs one link from each source; a driver of `PartitionOwners`.

    Args:
        sources: names of the clusters to copy from.
        link: makes the link from a source.
        watching: watches a source during a block.
        chance: chooses the time to a link's next start.
        again_s: shortest time from the end of a link to its next start; the longest is double.

    Attributes:
        links: running links, by source.
        ends: links that have ended by an error and have not copied since, by source.
    """

    def __init__(
        self,
        sources: Sequence[str],
        link: Callable[[str], LinkRun],
        watching: Callable[[str], AbstractAsyncContextManager[object]] = nullcontext,
        *,
        chance: Chance,
        again_s: float = AGAIN_S,
    ) -> None:
        self.assigned = True
        self.links: dict[str, LinkRun] = {}
        self.ends: dict[str, OwnerEnd] = {}
        self._sources = sources
        self._link = link
        self._watching = watching
        self._chance = chance
        self._again_s = again_s

    @property
    def serving(self) -> bool:
        """Always True: no caller waits for a link."""
        return True

    async def run(self) -> None:
        """Copies until cancelled, or fenced and not assigned any more."""
        if not self._sources:
            await asyncio.get_running_loop().create_future()
        tasks = [asyncio.create_task(self._keep(source)) for source in self._sources]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def requests_received(self, value: bytes | None) -> None:
        """Never called: links have no requests."""
        raise AssertionError(value)

    async def _keep(self, source: str) -> None:
        async with self._watching(source):
            await hold(self, partial(self._copy, source), partial(self._failed, source))

    async def _copy(self, source: str) -> None:
        link = self.links[source] = self._link(source)
        try:
            await link.run(lambda _: self._serves(source))
        finally:
            del self.links[source]

    def _serves(self, source: str) -> None:
        self.ends.pop(source, None)

    def _failed(self, source: str, error: StilltideError) -> Retry | None:
        now_s = asyncio.get_running_loop().time()
        again_s = self._chance.between(1, 2) * self._again_s
        if isinstance(error, FencedError):
            _log.warning("another link has taken over", source=source, reason=str(error))
            return Retry(again_s)
        before = self.ends.get(source)
        since_s = now_s if before is None else before.ended_s
        if not isinstance(error, RecordRefusedError):  # it goes on soon after the mend (C17)
            again_s = min(again_s + now_s - since_s, AGAIN_S_MAX)  # about double each time
        self.ends[source] = OwnerEnd(error, since_s, now_s + again_s)
        _log.error(
            "a link ended; it begins again",
            source=source,
            reason=str(error),
            again_in_s=round(again_s, 1),
        )
        # Else nothing would start this link again while links from other sources run.
        return Retry(again_s, needs_assignment=False)
