"""What keeps a worker from doing its work, for `/readyz`, metrics and the log.

*Source*: docs/protocols C17.

*Invariants*: what fails is counted each time and logged once in a period; a hindrance ends with the
next success of the same work, or when the work was not tried for a while.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from stilltide.connectors.errors import ConnectorError, NotAuthorizedError
from stilltide.connectors.ports.rights import RightsAsker
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.rights import Operation

log = get_logger(__name__)

LOOK_S = 5.0
"""Seconds between two questions for the rights."""

LOG_AGAIN_S = 60.0
"""Seconds between two lines about one hindrance."""

FORGOTTEN_S = 30.0
"""Seconds without another failure after which work that is not tried any more hinders nobody."""

NEEDED = (Operation.READ, Operation.WRITE, Operation.DELETE)
"""What a worker does with every system topic while it serves; the rest is needed at its start."""


class HindranceFinding(NamedTuple):
    """Whether nothing hinders the work, and a text for people."""

    passed: bool
    text: str


class Hindrances:
    """The work that fails now, by kind, such as `answers`.

    Attributes:
        failures: number of failures since the start, by kind of work.
        missing: the rights that the cluster did not give at the last question.
    """

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter()
        self.missing: Sequence[NotAuthorizedError] = ()
        self._now: dict[str, tuple[ConnectorError, float]] = {}
        self._logged: dict[str, float] = {}

    def failed(self, work: str, error: ConnectorError) -> None:
        """Some work of this kind was not done."""
        self.failures[work] += 1
        self._now[work] = error, asyncio.get_running_loop().time()
        self._say(f"{work} {error.primary}", "work_hindered", error, work=work)

    def done(self, work: str) -> None:
        """Work of this kind was done again."""
        if self._now:
            self._now.pop(work, None)

    def rights(self, missing: Sequence[NotAuthorizedError]) -> None:
        """The cluster has told which rights are missing."""
        self.missing = missing
        for error in missing:
            self.failures["rights"] += 1
            self._say(error.primary, "right_missing", error)

    def finding(self) -> HindranceFinding:
        """What `/readyz` says."""
        now_s = asyncio.get_running_loop().time()
        said = [error.primary for error in self.missing]
        for work, (error, at_s) in list(self._now.items()):
            if now_s - at_s > FORGOTTEN_S:
                del self._now[work]
            else:
                said.append(f"{work}: {error.primary}")
        if said:
            return HindranceFinding(passed=False, text="; ".join(said))
        return HindranceFinding(passed=True, text="nothing hinders it")

    def _say(self, key: str, event: str, error: ConnectorError, **more: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._logged.get(key, -LOG_AGAIN_S) < LOG_AGAIN_S:
            return
        self._logged = {it: at for it, at in self._logged.items() if now_s - at < LOG_AGAIN_S}
        self._logged[key] = now_s
        if isinstance(error, NotAuthorizedError):
            more |= {
                "operation": error.operation,
                "resource": error.resource,
                "principal": error.principal,
            }
        log.error(event, why=error.primary, hint=error.hint, **more)


class RightsWatch:
    """Asks a cluster for this process's rights in `run`, until cancelled.

    Args:
        asker: asks the cluster.
        hindrances: where missing rights are noted.
        topics: names of the system topics.
        group: the group of the workers.
        look_s: seconds between two questions.
        unseen: further rights that are missing, on topics of applications (C18).
    """

    def __init__(
        self,
        asker: RightsAsker,
        hindrances: Hindrances,
        topics: Collection[str],
        group: str,
        *,
        look_s: float = LOOK_S,
        unseen: Callable[[], Sequence[NotAuthorizedError]] = tuple,
    ) -> None:
        self._asker = asker
        self._hindrances = hindrances
        self._topics = topics
        self._group = group
        self._look_s = look_s
        self._unseen = unseen

    async def run(self) -> None:
        """Asks every `look_s`; a cluster that is away is the matter of `ClusterWatch`."""
        try:
            while True:
                try:
                    found = await self._asker.missing(self._topics, NEEDED, self._group)
                except ConnectorError as error:
                    log.debug("rights_not_told", why=error.primary)
                else:
                    self._hindrances.rights([*found, *self._unseen()])
                await asyncio.sleep(self._look_s)
        finally:
            await self._asker.close()
