"""The rules of deploy/prometheus/alerts.yml, asked on what processes expose in the states meant.

`deploy/prometheus/alerts_test.yml` has their times, texts and labels, on written series. A label or
a value that a process never exposes would pass there, and leave the alert silent.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from stilltide.connectors.memory.clock import MemoryClock
from stilltide.pipeline.core.groups.group import GroupLag, Standing
from stilltide.pipeline.core.links.progress import CopiedCount, LinkProgress
from stilltide.pipeline.core.snapshots.effects import SnapshotStats
from stilltide.pipeline.drivers.service.ended import OwnerEnd
from stilltide.pipeline.metrics.groups import ControllerStats, GroupMetrics
from stilltide.pipeline.metrics.jobs import ALL, AuditFigures, AuditMetrics, CheckFigures
from stilltide.pipeline.metrics.links import LinkMetrics
from stilltide.pipeline.metrics.process import ClusterMetrics, EndedMetrics
from stilltide.pipeline.metrics.worker import IndexStats, WorkerMetrics
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.values import EndOffset, Offset, TopicPartition
from tests.support.metrics.promql import Scrape, Vector, asked, scrape
from tests.support.schemas.wire import STATS

RULES: Mapping[str, Mapping[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load(
        (Path(__file__).parents[3] / "deploy/prometheus/alerts.yml").read_text()
    )["groups"]
    for rule in group["rules"]
}
OF_PROMETHEUS = {"StilltideWorkerAway", "StilltideLinkAway"}
"""Rules about `up`, which no process exposes: Prometheus itself does."""

OF_TARGET = {"instance"}
"""Labels that Prometheus adds to what it scrapes."""

ORDERS = TopicPartition("orders", 0)
WELL_S, ILL_S = 1000.0, 1090.0
"""Times of the two scrapes, less than the shortest window of a rule apart."""

Process = Callable[[], Iterator[CollectorRegistry]]


@dataclass
class Watch:
    """The watch of a cluster."""

    away_s: float = 0.0
    outages: int = 0


def _worker() -> WorkerMetrics:
    return WorkerMetrics("a", CollectorRegistry())


def cluster_away() -> Iterator[CollectorRegistry]:
    """A process whose cluster goes away for longer than a minute."""
    watch, registry = Watch(), CollectorRegistry()
    registry.register(ClusterMetrics(lambda: {"a": watch}))
    yield registry
    watch.away_s, watch.outages = 61.0, 1
    yield registry


def owner_ended() -> Iterator[CollectorRegistry]:
    """A worker one of whose coordinators ends by an error, and stays so."""
    ends: dict[str, OwnerEnd] = {}
    registry = CollectorRegistry()
    registry.register(EndedMetrics("a", lambda: {"coordinator": ends}, lambda: 100.0))
    yield registry
    error = DecodeError("no batch", topic="stilltide.txn-log", partition=2, offset=7)
    ends["2"] = OwnerEnd(error, 1, 2)
    yield registry


def transactions_stuck() -> Iterator[CollectorRegistry]:
    """A coordinator with decided transactions, which answers nobody."""
    made, stats = _worker(), {0: STATS._replace(committing_count=0, aborting_count=0)}
    made.coordinator(0).answers.inc(7)
    made.watch_coordinators(lambda: stats)
    yield made.registry
    stats[0] = STATS._replace(committing_count=0, aborting_count=1)
    yield made.registry


def prepared_waits() -> Iterator[CollectorRegistry]:
    """A coordinator whose prepared transaction nobody decides."""
    made, stats = _worker(), {0: STATS}
    made.watch_coordinators(lambda: stats)
    yield made.registry
    stats[0] = STATS._replace(prepared_count=1, oldest_prepared_ms=int(ILL_S - 61) * 1000)
    yield made.registry


def requests_unanswered() -> Iterator[CollectorRegistry]:
    """A worker that takes requests, and whose answers stop."""
    made = _worker()
    owner = made.coordinator(0)
    owner.requests.inc(3)
    owner.answers.inc(3)
    yield made.registry
    owner.requests.inc()
    yield made.registry


def owners_fight() -> Iterator[CollectorRegistry]:
    """Two coordinators that are taken over again and again."""
    made = _worker()
    owners = made.coordinator(0), made.coordinator(1)
    yield made.registry
    for owner in owners:
        owner.fenced.inc(3)
    yield made.registry


def snapshots_fail() -> Iterator[CollectorRegistry]:
    """A writer whose snapshots cannot be written."""
    made = _worker()
    writer = made.snapshots(0)
    yield made.registry
    writer.failed.inc(4)
    yield made.registry


def snapshots_lag() -> Iterator[CollectorRegistry]:
    """A writer whose snapshot an open transaction holds back."""
    made = _worker()
    stats = {0: SnapshotStats(2, 3, 4, 5, Offset(7), Offset(6), 8)}
    made.watch_snapshots(lambda: stats)
    yield made.registry
    stats[0] = stats[0]._replace(max_read_position_lag=1_000_001)
    yield made.registry


def _link(progress: LinkProgress, clock: MemoryClock) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(LinkMetrics("b", lambda: {"a": progress}, clock))
    return registry


def link_lags() -> Iterator[CollectorRegistry]:
    """A link behind which records wait for longer than a minute."""
    progress, clock = LinkProgress(), MemoryClock(100_000)
    progress.copied(ORDERS, CopiedCount(3, 300, newest_ms=90_000))
    progress.ends_seen({ORDERS: EndOffset(9)})
    yield _link(progress, clock)
    yield _link(progress, MemoryClock(150_001))


def link_lost() -> Iterator[CollectorRegistry]:
    """A link whose source has deleted records before they were copied."""
    progress = LinkProgress()
    progress.of(ORDERS)
    registry = _link(progress, MemoryClock(1))
    yield registry
    progress.lost(ORDERS, 5)
    yield registry


def link_configs_refused() -> Iterator[CollectorRegistry]:
    """A link whose target refuses to alter configs."""
    progress = LinkProgress()
    configs = progress.configs_of("orders")
    registry = _link(progress, MemoryClock(1))
    yield registry
    configs.refused = "not authorised"
    yield registry


_WELL = ControllerStats(0, 1, 0, {"b": True}, Counter({Standing.ACTIVE: 1}), {}, {})


def _groups(**changed: Any) -> Iterator[CollectorRegistry]:
    stats = {ORDERS: _WELL}
    registry = CollectorRegistry()
    registry.register(GroupMetrics("a", lambda: stats))
    yield registry
    stats[ORDERS] = _WELL._replace(**changed)
    yield registry


def update_lags() -> Iterator[CollectorRegistry]:
    """A group whose position no other cluster learns of."""
    return _groups(lags={"billing": GroupLag(Standing.ACTIVE, 9, 60_001)})


def replication_link_stopped() -> Iterator[CollectorRegistry]:
    """A controller whose links with another cluster do not run."""
    return _groups(connected={"b": False})


def replication_snapshots_time_out() -> Iterator[CollectorRegistry]:
    """A controller whose position snapshots nobody answers."""
    return _groups(timed_out=3)


def index_lags() -> Iterator[CollectorRegistry]:
    """An indexer of native transactions that does not come along."""
    made, stats = _worker(), {0: IndexStats(3, 1, 7, 5)}
    made.watch_indexers(lambda: stats)
    yield made.registry
    stats[0] = stats[0]._replace(lag=1_000_001)
    yield made.registry


def audit_invalid() -> Iterator[CollectorRegistry]:
    """A continuous audit that finds a violation; the verdict of the whole is no second alert."""
    verdicts = {"visibility": "valid", ALL: "valid"}
    registry = CollectorRegistry()
    registry.register(
        AuditMetrics(
            lambda: AuditFigures(
                {name: CheckFigures(verdict, {}) for name, verdict in verdicts.items()}, {}, 1, 1.0
            )
        )
    )
    yield registry
    verdicts.update(dict.fromkeys(verdicts, "invalid"))
    yield registry


PROCESSES: Sequence[Process] = (
    cluster_away,
    owner_ended,
    transactions_stuck,
    prepared_waits,
    requests_unanswered,
    owners_fight,
    snapshots_fail,
    snapshots_lag,
    link_lags,
    link_lost,
    link_configs_refused,
    update_lags,
    replication_link_stopped,
    replication_snapshots_time_out,
    index_lags,
    audit_invalid,
)


def alert_of(process: Process) -> str:
    """The alert of a state, by its name."""
    return "Stilltide" + process.__name__.title().replace("_", "")


def raised(scrapes: Sequence[Scrape]) -> dict[str, Vector]:
    """What each rule gives that gives something."""
    asks = {name: rule["expr"] for name, rule in RULES.items() if name not in OF_PROMETHEUS}
    given = {name: asked(expression, scrapes) for name, expression in asks.items()}
    return {name: vector for name, vector in given.items() if vector}


def test_every_alert_has_a_state_or_is_prometheus_own():
    """A new rule needs one."""
    assert {alert_of(process) for process in PROCESSES} | OF_PROMETHEUS == set(RULES)
    assert all(RULES[name]["expr"].startswith("up{") for name in OF_PROMETHEUS)


@pytest.mark.parametrize("process", PROCESSES, ids=alert_of)
def test_a_process_in_the_state_raises_the_alert_and_no_other(process: Process):
    """One that is well raises none; the labels that the texts of the alert name are there."""
    states = zip(process(), (WELL_S, ILL_S), strict=True)
    scrapes = [scrape(registry, at_s) for registry, at_s in states]
    assert raised(scrapes[:1]) == {}
    alert, vector = raised(scrapes).popitem()
    assert (alert, raised(scrapes).keys()) == (alert_of(process), {alert})
    (labels,) = vector
    texts = RULES[alert]["annotations"].values()
    named = {name for text in texts for name in re.findall(r"\$labels\.(\w+)", text)}
    assert named - OF_TARGET <= dict(labels).keys()
