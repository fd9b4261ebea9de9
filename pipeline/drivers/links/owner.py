"""Runs links for as long as a partition is assigned, and starts a link again after a failure.

*Source*: docs/protocols B4, H2.

*Invariants*: a fenced link starts again only while the partition is assigned, after a random delay;
any other error of a link is logged, and the link starts again, so that the error does not end the
worker's other services.

Refuses: to go on after a record of a system topic that cannot be decoded.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial

from stilltide.connectors.errors import ConnectorError, FencedError
from stilltide.pipeline.drivers.links.link import Replication
from stilltide.pipeline.drivers.service.tenure import Retry, hold
from stilltide.pipeline.errors import PipelineError
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.errors import StilltideError

_log = get_logger(__name__)

AGAIN_S = 2.0


class LinksDriver:
    """Runs one link from each source; a driver of `PartitionOwners`.

    Args:
        sources: names of the clusters to copy from.
        link: makes the link from a source.
        again_s: shortest time from the end of a link to its next start; the longest is double.

    Attributes:
        links: running links, by source.
    """

    def __init__(
        self,
        sources: Sequence[str],
        link: Callable[[str], Replication],
        *,
        again_s: float = AGAIN_S,
    ) -> None:
        self.assigned = True
        self.links: dict[str, Replication] = {}
        self._sources = sources
        self._link = link
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
        await hold(self, partial(self._copy, source), partial(self._failed, source))

    async def _copy(self, source: str) -> None:
        link = self.links[source] = self._link(source)
        try:
            await link.run()
        finally:
            del self.links[source]

    def _failed(self, source: str, error: StilltideError) -> Retry | None:
        delay_s = random.uniform(1, 2) * self._again_s  # noqa: S311 - no secret
        match error:
            case FencedError():
                _log.warning("another link has taken over", source=source, reason=str(error))
                return Retry(delay_s)
            case ConnectorError() | PipelineError():
                _log.error("a link ended; it begins again", source=source, reason=str(error))
                # Else nothing would start this link again while links from other sources run.
                return Retry(delay_s, needs_assignment=False)
            case _:
                return None
