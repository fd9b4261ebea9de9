"""Watches the clusters of a process: since when one is away, in one line, a metric and `/readyz`.

*Source*: docs/protocols B9.

*Invariants*: a cluster is away when it has not answered for `AWAY_AFTER_S`, and back with its first
answer. One line is logged for each absence and one for its end, by the watch alone; what the
clients say meanwhile is held and counted (`pipeline.log_folding`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import NamedTuple

from stilltide.connectors.clock import Clock
from stilltide.connectors.errors import ConnectorError, RetriableError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.drivers.shared.tasks import cancelled
from stilltide.pipeline.logging import get_logger, line_fold
from stilltide.schemas.topics import TXN_LOG

log = get_logger(__name__)

LOOK_S = 1.0
"""Seconds between two questions to a cluster."""

ANSWER_S = 2.0
"""Seconds that a cluster may take to answer one."""

AWAY_AFTER_S = 4.0
"""Seconds without an answer after which a cluster counts as away: one lost question is none."""

SETTLE_S = 10.0
"""Seconds after an absence in which clients connect again, and still complain."""

KINDS_SHOWN = 5
"""Kinds of held lines that the line about them names."""


_WAITS = "this process waits for it; /readyz and stilltide_cluster_away_seconds show it"

_NEVER_MET = (
    "nobody has answered there since this process began: correct the address, or start a broker;"
    " this process waits for it"
)


class ProbeResult(NamedTuple):
    """The result of a check: whether it passed, and a text for people."""

    passed: bool
    text: str


class ClusterWatch:
    """Asks one cluster in `run`, until cancelled.

    Args:
        name: name of the cluster.
        address: addresses of its brokers.
        admin: asks it; used by no other caller, since slow questions are cancelled.
        clock: tells since when it is away.

    Attributes:
        name: name of the cluster.
        outages: how often the cluster went away.
        back: called after each absence, once the clients have had their time to connect again.
    """

    def __init__(self, name: str, address: str, admin: LogAdmin, clock: Clock) -> None:
        self.name = name
        self.outages = 0
        self.back: Callable[[], None] = lambda: None
        self._address = address
        self._admin = admin
        self._clock = clock
        self._asked = asyncio.Event()  # set after the first question
        self._lost_s: float | None = None  # loop time of the first question without an answer
        self._lost_at = ""
        self._away = False
        self._met = False
        self._problem = "was not asked yet"
        self._settling: asyncio.TimerHandle | None = None
        self._fold = line_fold()

    @property
    def away_s(self) -> float:
        """Seconds since the cluster went away; 0 while it is there."""
        return self._silent_s if self._away else 0.0

    @property
    def answers(self) -> bool:
        """Whether the last question was answered, and not by a refusal."""
        return not self._problem

    async def run(self) -> None:
        """Asks every `LOOK_S`, until cancelled."""
        if self._fold is not None:
            self._fold.watch(self._address)
        try:
            while True:
                await self._ask()
                await asyncio.sleep(LOOK_S)
        finally:
            if self._settling is not None:
                self._settling.cancel()
                self._settled()
            if self._fold is not None:
                self._fold.unwatch(self._address)

    async def finding(self) -> ProbeResult:
        """What `/readyz` says; waits for the first question."""
        await self._asked.wait()
        if not self._problem:
            return ProbeResult(passed=True, text="answers")
        text = self._problem
        if self._lost_s is not None:
            text = (
                f"awaits cluster {self.name} at {self._address} since {self._lost_at} "
                f"({self._silent_s:.0f} s): {self._problem}"
            )
        return ProbeResult(passed=False, text=text)

    @property
    def _silent_s(self) -> float:
        lost_s = self._lost_s
        return 0.0 if lost_s is None else asyncio.get_running_loop().time() - lost_s

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._admin.describe_topics([TXN_LOG])
        except TimeoutError:
            self._silent(asked_s, f"did not answer within {ANSWER_S:g} s")
        except RetriableError as error:
            self._silent(asked_s, error.primary)
        except ConnectorError as error:
            self._answered(asked_s, error.primary)  # it is there, and refuses
        else:
            self._answered(asked_s, "")
        self._asked.set()

    def _silent(self, asked_s: float, problem: str) -> None:
        self._problem = problem
        if self._lost_s is None:
            self._lost_s = asked_s
            now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
            self._lost_at = f"{now:%Y-%m-%dT%H:%M:%SZ}"
        if self._away or self._silent_s < AWAY_AFTER_S:
            return
        self._away = True
        self.outages += 1
        if self._settling is not None:
            self._settling.cancel()
        log.warning(
            "cluster_away",
            cluster=self.name,
            address=self._address,
            why=problem,
            hint=_WAITS if self._met else _NEVER_MET,
        )
        if self._fold is not None:
            self._fold.away(self._address)

    def _answered(self, asked_s: float, problem: str) -> None:
        self._problem, self._met = problem, True
        away_s, self._lost_s = self.away_s, None
        if not self._away:
            if self._fold is not None:
                self._fold.answered(self._address, asked_s)
            return
        self._away = False
        log.warning(
            "cluster_back",
            cluster=self.name,
            address=self._address,
            away_s=round(away_s, 1),
        )
        self._settling = asyncio.get_running_loop().call_later(SETTLE_S, self._connected)

    def _connected(self) -> None:
        self._settled()
        self.back()

    def _settled(self) -> None:
        """The clients have had their time to connect again: says how much they said meanwhile."""
        self._settling = None
        folded = None if self._fold is None or self._away else self._fold.back(self._address)
        if folded:
            most = dict(folded.most_common(KINDS_SHOWN))
            log.info("lines_held", cluster=self.name, lines=folded.total(), most=most)


class ClusterWatches:
    """The watches of one process.

    Attributes:
        watches: the clusters that are watched now, by name.
    """

    def __init__(self) -> None:
        self.watches: dict[str, ClusterWatch] = {}

    @asynccontextmanager
    async def watching(
        self, name: str, address: str, connector: Connector
    ) -> AsyncIterator[ClusterWatch]:
        """Watches a cluster during the block.

        Args:
            name: name of the cluster.
            address: addresses of its brokers.
            connector: the cluster.
        """
        admin = connector.admin()
        watch = self.watches[name] = ClusterWatch(name, address, admin, connector.clock)
        running = asyncio.create_task(watch.run(), name=f"watch-{name}")
        try:
            yield watch
        finally:
            del self.watches[name]
            await cancelled(running)
            await admin.close()
