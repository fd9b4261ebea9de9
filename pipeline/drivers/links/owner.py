"""Links that are run for as long as a partition is assigned, whatever ends one of them.

*Source*: protocols.md B4, H2.

*Invariants*: a link that was fenced goes on only while the partition is assigned, after a random
delay; what else ends a link is said, and tried again: it must not end what else a worker serves.

Refuses: to go on where something in a system topic cannot be understood.
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
        sources: names of the clusters that are copied from.
        link: makes the link from one of them.
        again_s: how long a link that ended rests before the next, up to twice as long.

    Attributes:
        links: those that run, by source.
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
        """Nobody waits for a link."""
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
                # Nothing would begin this link again while those from other sources go on.
                return Retry(delay_s, needs_assignment=False)
            case _:
                return None
