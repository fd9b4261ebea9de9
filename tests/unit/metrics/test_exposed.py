"""Every family that a process exposes, held to committed text.

Dashboards, alert rules and the notes of operators name these families: a renamed family or label
is an error here. `golden/<process>.txt` has a line for each family (name, type, labels, help) and,
indented below, the values of labels that are not names or numbers of the cluster.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from stilltide.connectors.kafka.errors import Caller, not_allowed, on_topic
from stilltide.connectors.memory.clock import MemoryClock
from stilltide.pipeline.core.links.progress import CopiedCount, LinkProgress
from stilltide.pipeline.core.snapshots.effects import SnapshotStats
from stilltide.pipeline.drivers.service.ended import OwnerEnd
from stilltide.pipeline.drivers.service.hindrances import Hindrances
from stilltide.pipeline.drivers.service.own.direct_lines import LineServer
from stilltide.pipeline.metrics.links import LinkMetrics
from stilltide.pipeline.metrics.process import (
    ClusterMetrics,
    EndedMetrics,
    HindranceMetrics,
    LineMetrics,
)
from stilltide.pipeline.metrics.worker import IndexStats, WorkerMetrics
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.rights import Operation
from stilltide.schemas.values import EndOffset, Offset, TopicPartition
from tests.support.groups.clusters import Site, replicated
from tests.support.schemas.wire import STATS
from tests.support.schemas.wire_acks import STORE_STATS

GOLDEN = Path(__file__).parent / "golden"
OF_THE_CLUSTER = {
    *("cluster", "coordinator", "partition", "topic", "group", "source", "target"),
    *("number", "offset", "remote"),
}
SNAPSHOTS = SnapshotStats(2, 3, 4, 5, Offset(7), Offset(6), 8)


def add_link(registry: CollectorRegistry) -> CollectorRegistry:
    """The figures of a link that has copied records of one partition."""
    progress = LinkProgress()
    progress.copied(TopicPartition("orders", 0), CopiedCount(3, 300, newest_ms=1))
    progress.ends_seen({TopicPartition("orders", 0): EndOffset(9)})
    progress.configs_of("orders").carried = 1
    registry.register(LinkMetrics("b", lambda: {"a": progress}, MemoryClock(2)))
    return registry


class Watched:
    """The watch of a cluster that has gone away once."""

    outages = 1
    away_s = 2.0


def add_clusters(registry: CollectorRegistry) -> CollectorRegistry:
    """The figures of a watched cluster."""
    registry.register(ClusterMetrics(lambda: {"a": Watched()}))
    return registry


def worker(groups: Site) -> CollectorRegistry:
    """Of a worker that runs everything that a worker can run."""
    made = WorkerMetrics("a", CollectorRegistry())
    made.coordinator(0)
    made.pending_ack(0)
    made.snapshots(0)
    made.aborted_index(0)
    made.watch_coordinators(lambda: {0: STATS})
    made.watch_pending_acks(lambda: {0: STORE_STATS})
    made.watch_snapshots(lambda: {0: SNAPSHOTS})
    made.watch_indexers(lambda: {0: IndexStats(3, 1, 7, 5)})
    made.registry.register(groups.metrics)
    end = OwnerEnd(DecodeError("no batch", topic="stilltide.txn-log", partition=2, offset=7), 1, 2)
    made.registry.register(EndedMetrics("a", lambda: {"coordinator": {"2": end}}, lambda: 3.0))
    hindrances = Hindrances()
    caller = Caller("host:9092", "User:w")
    missing = not_allowed(caller, "missing", on_topic(Operation.WRITE, "stilltide.txn-log"), "")
    hindrances.rights([missing])
    made.registry.register(HindranceMetrics("a", hindrances))
    made.registry.register(LineMetrics("a", LineServer("127.0.0.1", 0, advertised="here")))
    return add_clusters(add_link(made.registry))


def index() -> CollectorRegistry:
    """Of `stilltide index run`."""
    made = WorkerMetrics("a", CollectorRegistry())
    made.watch_indexers(lambda: {0: IndexStats(3, 1, 7, 5)})
    return add_clusters(made.registry)


def lines(family: Metric) -> Iterator[str]:
    """The lines of one family."""
    samples = [one for one in family.samples if not one.name.endswith("_created")]
    names = dict.fromkeys(label for one in samples for label in one.labels)
    shown = "{" + ",".join(names) + "}" if samples else "without samples"
    suffix = "_total" if family.type == "counter" else ""
    yield f"{family.name}{suffix} {family.type} {shown} {family.documentation}"
    for label in names:
        if label not in OF_THE_CLUSTER:
            values = dict.fromkeys(one.labels[label] for one in samples if label in one.labels)
            yield f"    {label}: {' '.join(values)}"


def exposed(registry: CollectorRegistry) -> str:
    """The lines of all families of Stilltide, by name."""
    families = sorted(registry.collect(), key=lambda family: family.name)
    ours = (family for family in families if family.name.startswith("stilltide_"))
    return "".join(f"{line}\n" for family in ours for line in lines(family))


async def test_a_worker_exposes_what_it_always_did():
    """Names, types, labels and help of coordinators, stores, snapshots, index, links, groups."""
    async with replicated("ab", "g") as sites:
        a = sites["a"]
        a.write(b"1", b"2", b"3")
        a.commit("g", 1)
        labels = {"cluster": "a", "topic": "orders", "partition": "0", "group": "g"}
        registry = worker(a)
        name = "stilltide_subscription_read_again_records"
        await sites.until(lambda: registry.get_sample_value(name, labels) is not None)
        assert exposed(registry) == (GOLDEN / "worker.txt").read_text()


@pytest.mark.parametrize(
    ("process", "make"),
    [("link", lambda: add_clusters(add_link(CollectorRegistry()))), ("index", index)],
)
def test_a_process_of_its_own_exposes_what_it_always_did(
    process: str, make: Callable[[], CollectorRegistry]
):
    """Names, types, labels and help of `stilltide replicate` and `stilltide index run`."""
    assert exposed(make()) == (GOLDEN / f"{process}.txt").read_text()
