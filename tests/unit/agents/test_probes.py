"""The worker's web site on a loopback port, with a memory broker behind it."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession
from prometheus_client import CollectorRegistry, Counter

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.agents.probes import Probes, watch_check
from stilltide.pipeline.config.loading import load_settings
from stilltide.pipeline.drivers.shared import cluster_watch as module
from stilltide.pipeline.drivers.shared.cluster_watch import ClusterWatches, ProbeResult
from stilltide.pipeline.errors import ConfigError

HOST = "127.0.0.1"

WAIT_S = 30


class Site:
    """A site whose second check finds what it is told."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.finding = ProbeResult(passed=True, text="serving: [0]")
        registry = CollectorRegistry()
        Counter("stilltide_example", "An example.", registry=registry).inc(3)
        self.registry = registry
        self.address = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Site"]:
        """Watches the broker and listens on a free port during the block."""
        watching = ClusterWatches().watching("a", "memory", MemoryConnector(self.broker))
        async with watching as watch:
            self.probes = Probes(self.registry, {"broker": watch_check(watch), "own": self._own})
            try:
                self.address = await self.probes.start(HOST, 0)
                yield self
            finally:
                await self.probes.close()

    async def get(self, path: str) -> tuple[int, str, str]:
        """Status, content type and body."""
        async with ClientSession() as session, session.get(self.address + path) as response:
            return response.status, response.content_type, await response.text()

    async def _own(self) -> ProbeResult:
        return self.finding


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """A site on a free port."""
    async with Site().open() as made:
        yield made


async def test_metrics_are_those_of_the_registry(site: Site):
    """Prometheus gets its text format."""
    status, kind, body = await site.get("/metrics")
    assert (status, kind) == (200, "text/plain")
    assert "stilltide_example_total 3.0" in body.splitlines()


async def test_it_is_alive_while_its_loop_turns(site: Site):
    """An answer is proof; nothing outside the process has a say, or restarts would not help."""
    site.broker.down()
    site.finding = ProbeResult(passed=False, text="recovering: [0]")
    status, _, body = await site.get("/livez")
    assert (status, body.count("\n")) == (200, 1)
    assert body.startswith("[+]loop ")


async def test_it_is_ready_when_every_check_passes(site: Site):
    """A line for each check, and 200."""
    status, _, body = await site.get("/readyz")
    assert (status, body) == (200, "[+]broker answers\n[+]own serving: [0]\n")


async def test_one_check_that_fails_makes_it_unready(site: Site):
    """503, and the line says which and why; the others are shown too."""
    site.finding = ProbeResult(passed=False, text="recovering: [0]")
    status, _, body = await site.get("/readyz")
    assert (status, body) == (503, "[+]broker answers\n[-]own recovering: [0]\n")


async def test_a_broker_that_is_away_makes_it_unready(monkeypatch: pytest.MonkeyPatch):
    """B9: the line names the cluster, its address and since when; its return is told, too."""
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    async with Site().open() as site:
        assert (await site.get("/readyz"))[0] == 200
        site.broker.down()
        async with asyncio.timeout(WAIT_S):
            while (await site.get("/readyz"))[0] == 200:
                """Each look takes a round trip."""
        status, _, body = await site.get("/readyz")
        assert status == 503
        line = body.splitlines()[0]
        assert re.fullmatch(
            r"\[-\]broker awaits cluster a at memory since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ "
            r"\(\d+ s\): no answer from memory",
            line,
        ), line
        site.broker.up()
        async with asyncio.timeout(WAIT_S):
            while (await site.get("/readyz"))[0] != 200:
                """Each look takes a round trip."""


async def test_the_broker_is_not_asked_for_every_probe(site: Site):
    """Between two looks of the watch the last answer stands: probing costs the broker nothing."""
    assert (await site.get("/readyz"))[0] == 200
    site.broker.down()
    assert (await site.get("/readyz"))[0] == 200


async def test_a_port_that_is_taken_names_the_setting():
    """The error says which setting to change, and to what."""
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"web_port {port} of {HOST}") as caught:
            await Probes(CollectorRegistry(), {}).start(HOST, port)
    assert "STILLTIDE_WEB_PORT" in caught.value.hint


async def test_nobody_else_reaches_it_unless_told(site: Site):
    """Bound to the default host it answers at that address alone, not at every one of the host."""
    assert load_settings().web_host == HOST
    port = int(site.address.rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.2", port)
