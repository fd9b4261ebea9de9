"""The owner of one link: runs the link from its start to its end, for `Runtime`.

*Source*: docs/protocols B4, B8, H2. A link whose records the cluster refuses begins again soon
(C17).
"""

from collections.abc import Callable

from stilltide.connectors.errors import FencedError, RecordRefusedError
from stilltide.pipeline.drivers.links.link import LinkRun
from stilltide.schemas.errors import StilltideError


class LinkOwner:
    """Runs one link.

    Args:
        make: makes the link.

    Attributes:
        link: the link that runs; None: none does.
        serving: whether the link copies.
    """

    def __init__(self, make: Callable[[], LinkRun]) -> None:
        self.link: LinkRun | None = None
        self.serving = False
        self._make = make

    async def run(self) -> None:
        """Copies until an error ends the link."""
        self.link = self._make()
        try:
            await self.link.run(self._serves)
        finally:
            self.link, self.serving = None, False

    def passes(self, error: StilltideError) -> bool:
        """Whether another link has taken over, or the cluster refuses records."""
        return isinstance(error, FencedError | RecordRefusedError)

    def _serves(self, _topics: list[str]) -> None:
        self.serving = True
