"""The web site of a command that runs until stopped, with memory brokers behind it."""

from prometheus_client import CollectorRegistry

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.cli.common.site import serving_site
from stilltide.pipeline.config.loading import load_settings
from stilltide.pipeline.drivers.shared.cluster_watch import ProbeResult
from tests.support.processes.operator import fetch


async def fine() -> ProbeResult:
    """A check of the command's own."""
    return ProbeResult(passed=True, text="copies")


async def test_each_cluster_is_a_line():
    """One that is away makes it unready, under its name; the others are told too."""
    source, target = MemoryBroker(), MemoryBroker()
    target.down()
    clusters = {
        "source": ("a", "a:9092", MemoryConnector(source)),
        "target": ("b", "b:9092", MemoryConnector(target)),
    }
    site = serving_site(load_settings(), 0, CollectorRegistry(), clusters, {"link": fine})
    async with site as web:
        status, text = await fetch(f"{web}/readyz")
        lines = text.splitlines()
        assert status == 503
        assert (lines[0], lines[2]) == ("[+]source answers", "[+]link copies")
        assert lines[1].startswith("[-]target awaits cluster b at b:9092 since ")
        assert lines[1].endswith("no answer from memory")
        assert (await fetch(f"{web}/livez"))[0] == 200


async def test_without_a_port_there_is_none():
    """The web surface is closed unless it is asked for."""
    async with serving_site(load_settings(), None, CollectorRegistry(), {}, {}) as web:
        assert web is None
