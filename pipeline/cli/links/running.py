"""A link that a command runs until it is stopped: its web site, and its lines on both outputs."""

import asyncio
import json
import signal
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline import interpreter
from stilltide.pipeline.agents.probes import ProbeResult
from stilltide.pipeline.cli.common.site import serving_site
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.drivers.links.link import Replication
from stilltide.pipeline.logging import get_logger
from stilltide.pipeline.metrics.links import LinkMetrics

_YOUNG_OBJECTS_MAX = 50_000
"""A link reads 16 000 records ahead, and each is three objects. With fewer, the garbage collector
visits these records over and over."""

_log = get_logger(__name__)


class RunningLink:
    """A link with its web site and its lines on stdout and stderr.

    Args:
        settings: the process's settings.
        replication: the link.
        ends: names of source and target, as metrics show them.
        clusters: by name of check: name, address and connector of a cluster.
        announced: makes the JSON line on stdout from the names of the topics, once they are copied.
    """

    def __init__(
        self,
        settings: Settings,
        replication: Replication,
        ends: tuple[str, str],
        clusters: Mapping[str, tuple[str, str, Connector]],
        announced: Callable[[list[str]], dict[str, Any]],
    ) -> None:
        self._settings = settings
        self._replication = replication
        self._ends = ends
        self._clusters = clusters
        self._announced = announced
        self._copies = False
        self._web: str | None = None

    async def run(self, web_port: int | None, progress_s: float) -> None:
        """Copies until SIGTERM or SIGINT; raises as `Replication.run`, and if a port is taken."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._replication.stop)
        registry = CollectorRegistry()
        source, target = self._ends
        shown = {source: self._replication.progress}
        registry.register(LinkMetrics(target, lambda: shown, SystemClock()))
        # `/readyz` names the clusters, so that a container that is not ready says which is away.
        checks = {"link": self._ready}
        site = serving_site(self._settings, web_port, registry, self._clusters, checks)
        async with site as self._web:
            telling = asyncio.create_task(_tell(self._replication, progress_s))
            try:
                await self._replication.run(self._serving)
            finally:
                telling.cancel()

    def _serving(self, topics: list[str]) -> None:
        self._copies = True
        print(json.dumps({**self._announced(topics), "web": self._web}), flush=True)
        interpreter.tune(_YOUNG_OBJECTS_MAX)

    async def _ready(self) -> ProbeResult:
        error, said = self._replication.last_error, ""
        if error is not None:
            ago_s = max(0, SystemClock().now_ms() - error.happened_ms) / 1000
            said = f"; last error {ago_s:.0f} s ago: {error.cause}"
        if not self._copies:
            return ProbeResult(passed=False, text=f"has not begun{said}")
        progress = self._replication.progress
        text = f"copies; {progress.lag} offsets behind{progress.refusals}{said}"
        return ProbeResult(passed=True, text=text)


async def _tell(replication: Replication, progress_s: float) -> None:
    """Logs progress, except while there is nothing new."""
    told = -1
    while True:
        await asyncio.sleep(progress_s)
        progress = replication.progress
        if (progress.records, progress.lag) == (told, 0):
            continue
        now_ms = SystemClock().now_ms()
        lag_s = max((one.lag_s(now_ms) for one in progress.partitions.values()), default=0.0)
        _log.info(
            "progress",
            copied=progress.records,
            lag_records=progress.lag,
            lag_s=round(lag_s, 3),
        )
        told = progress.records
