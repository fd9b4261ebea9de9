"""The watch of a cluster on the memory broker: one line for an absence, and one for its end."""

from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.drivers.shared import cluster_watch as module
from stilltide.pipeline.drivers.shared.cluster_watch import ClusterWatches
from stilltide.pipeline.metrics.process import ClusterMetrics
from tests.support.coordinator.worker_memory import until


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch asks often, so that tests take milliseconds."""
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    monkeypatch.setattr(module, "AWAY_AFTER_S", 0.02)
    monkeypatch.setattr(module, "SETTLE_S", 0.001)


def sample(watches: ClusterWatches) -> Callable[[str], float | None]:
    """Reads the metrics of cluster `a`."""
    registry = CollectorRegistry()
    registry.register(ClusterMetrics(lambda: watches.watches))
    return lambda name: registry.get_sample_value(name, {"cluster": "a"})


async def test_an_absence_is_one_line_and_its_end_another():
    """B9: with the address, and how long the cluster was away; the metrics agree."""
    broker, watches = MemoryBroker(), ClusterWatches()
    value, returns = sample(watches), list[float]()
    with capture_logs() as lines:
        async with watches.watching("a", "memory", MemoryConnector(broker)) as watch:
            watch.back = lambda: returns.append(watch.away_s)
            assert (await watch.finding()).passed
            assert value("stilltide_cluster_away_seconds") == 0
            for number in (1, 2):
                broker.down()
                await until(lambda: watch.away_s > 0.1)
                assert value("stilltide_cluster_outages_total") == number
                assert (value("stilltide_cluster_away_seconds") or 0) > 0.1
                broker.up()
                await until(lambda: not watch.away_s)
                await until(lambda it=number: len(returns) == it)
    assert returns == [0, 0]
    assert [line["event"] for line in lines] == ["cluster_away", "cluster_back"] * 2
    assert {line["address"] for line in lines} == {"memory"}
    assert lines[1]["away_s"] >= 0.1
    assert watches.watches == {}


async def test_one_lost_question_is_no_absence(monkeypatch: pytest.MonkeyPatch):
    """`/readyz` shows it at once; a line is written only after `AWAY_AFTER_S`."""
    monkeypatch.setattr(module, "AWAY_AFTER_S", 60)
    broker, watches = MemoryBroker(), ClusterWatches()
    with capture_logs() as lines:
        async with watches.watching("a", "memory", MemoryConnector(broker)) as watch:
            broker.down()
            await until(lambda: not watch.answers)
            assert not (await watch.finding()).passed
            broker.up()
            await until(lambda: watch.answers)
    assert lines == []
