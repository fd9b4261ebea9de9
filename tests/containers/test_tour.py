"""The compose file as the README tours it: up, under load, each part killed once, audited, seen."""

import asyncio
import itertools
import json
import math
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from connectors.kafka.config import KafkaConfig
from connectors.kafka.connector import KafkaConnector
from pipeline.client import Subscription, TransactionClient
from schemas.values import TopicPartition
from tests.support.containers import ROOT, Compose, compose_project
from tests.support.worker_process import PARTITIONS, Load, create_topics

DASHBOARD = ROOT / "deploy/grafana/dashboards/stilltide.json"
STEP = 200
"""Transactions between two events of the tour."""

SEEN_S = 120.0
"""By then Prometheus has scraped often enough for every rate."""

pytestmark = pytest.mark.timeout(600)  # images start, clusters come up

SERVICES = [
    *(f"{kind}-{cluster}" for kind in ("kafka", "worker") for cluster in "abc"),
    *(f"link-{source}-{target}" for source in "abc" for target in "abc" if source != target),
]

COPIED_S = 120.0


@pytest.fixture(scope="module")
def compose() -> Iterator[Compose]:
    """The project, healthy, with Prometheus."""
    with compose_project() as project:
        project("up", "--detach", "--wait", "--wait-timeout", "180")
        project("--profile", "metrics", "up", "--detach", "--wait", "prometheus")
        yield project


def fetch(address: str) -> bytes:
    """What a site of the project answers; an error status is an error."""
    with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 - on loopback
        return answer.read()


def test_everything_is_healthy(compose: Compose):
    """`up --wait` returns when all are; probes answer on loopback with a line for each check."""
    states = compose.states()
    assert {name: states[name] for name in SERVICES} == dict.fromkeys(SERVICES, "healthy")
    for cluster in "abc":
        lines = fetch(f"{compose.web(cluster)}/readyz").decode().splitlines()
        assert [line[:3] for line in lines] == ["[+]"] * len(lines)
        assert len(lines) >= 2


LOADS: list[Load] = []
"""What the tour has written, for the tests after it."""


class Tour:
    """A load, and waiting for it to get on.

    Attributes:
        load: runs until it is told to stop.
    """

    def __init__(self, load: Load) -> None:
        self.load = load
        self._moved = asyncio.Event()

    def ended(self, _count: int) -> None:
        """A transaction has."""
        self._moved.set()

    async def until(self, committed: int) -> None:
        """Returns when so many transactions were committed."""
        async with asyncio.timeout(180):
            while len(self.load.outcomes.committed) < committed:
                self._moved.clear()
                await self._moved.wait()


async def run_tour(compose: Compose, topics: tuple[str, str]) -> Load:
    """A load on cluster a, while its worker and then its broker are killed and come again."""
    bootstrap = compose.bootstrap("a")
    await create_topics(bootstrap, *topics)
    enable = ("run", "--rm", "-T", "cli", "subscription", "enable", topics[0], "tour")
    await asyncio.to_thread(compose, "--profile", "tools", *enable)
    load = Load(topics, 1_000_000)
    tour = Tour(load)
    connector = KafkaConnector(KafkaConfig(bootstrap, delivery_timeout_s=60))
    async with TransactionClient(
        connector=connector, resend_s=0.5, transaction_timeout_s=60
    ) as client:
        running = asyncio.create_task(load.run(client, tour.ended))
        for service in ("worker-a", "link-a-b", "kafka-a"):
            await tour.until(len(load.outcomes.committed) + STEP)
            await asyncio.to_thread(compose, "kill", service)
            await asyncio.to_thread(compose, "up", "--detach", "--wait", service)
        await tour.until(len(load.outcomes.committed) + STEP)
        load.stop()
        await running
    await load.check(bootstrap, "tour")
    return load


def test_nothing_is_lost_when_each_part_is_killed_once(compose: Compose):
    """Readers see what was committed and nothing else; the audit of the Spark image agrees."""
    topics = ("orders", "payments")
    load = asyncio.run(run_tour(compose, topics))
    LOADS.append(load)
    assert len(load.outcomes.committed) >= 3 * STEP
    named = ["--topics", ",".join(topics), "--update-index"]
    audit = compose("--profile", "audit", "run", "--rm", "-T", "audit", *named, "-o", "json")
    found = json.loads(audit.stdout)
    assert found["verdict"] == "valid"
    listed = compose("--profile", "tools", "run", "--rm", "-T", "cli", "txn", "list", "-o", "json")
    assert isinstance(json.loads(listed.stdout), list)


async def read_numbers(bootstrap: str, topics: tuple[str, str], group: str) -> Counter[int]:
    """How often each transaction's number is visible on a cluster, up to the ends as of now."""
    connector = KafkaConnector(KafkaConfig(bootstrap))
    admin = connector.admin()
    data = [TopicPartition(topic, it) for topic in topics for it in range(PARTITIONS)]
    ends = await admin.end_offsets(data, committed=True)
    await admin.close()
    async with Subscription(topics, group=group, connector=connector) as records:
        return Counter([int(record.value or b"-1") async for record in records.read_to(ends)])


async def fail_over(compose: Compose, load: Load) -> Counter[int]:
    """What consumers see on cluster b once it has all and a is gone."""
    there = compose.bootstrap("b")
    async with asyncio.timeout(COPIED_S):
        for attempt in itertools.count():
            seen = await read_numbers(there, load.topics, f"copied-{attempt}")
            if load.outcomes.committed <= seen.keys():
                break
    await asyncio.to_thread(compose, "kill", "kafka-a")
    return await read_numbers(there, load.topics, "failed-over")


def test_cluster_b_takes_over(compose: Compose):
    """With a gone, b holds what a had committed, each record once."""
    (load,) = LOADS
    seen = asyncio.run(fail_over(compose, load))
    assert load.outcomes.committed <= seen.keys()
    assert seen.keys() <= load.outcomes.committed | load.outcomes.unknown
    assert set(seen.values()) == {2 * load.per_topic}
    compose("up", "--detach", "--wait", "kafka-a", "worker-a")


def expressions() -> list[str]:
    """Of the dashboard, for every cluster."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [
        target["expr"].replace("$cluster", ".*") for panel in panels for target in panel["targets"]
    ]


def samples(compose: Compose, expression: str) -> list[float]:
    """What Prometheus makes of an expression now."""
    query = urllib.parse.urlencode({"query": expression})
    address = f"http://127.0.0.1:{compose.ports['PROMETHEUS_PORT']}/api/v1/query?{query}"
    found: dict[str, Any] = json.loads(fetch(address))
    return [float(each["value"][1]) for each in found["data"]["result"]]


def test_every_panel_shows_data(compose: Compose):
    """Each expression of the dashboard has a sample that is a number, after the tour's load."""
    missing, end_s = expressions(), time.monotonic() + SEEN_S
    while missing and time.monotonic() < end_s:
        missing = [one for one in missing if not any(map(math.isfinite, samples(compose, one)))]
    assert missing == []


def test_alert_rules_fire_when_they_should(compose: Compose):
    """Their unit tests pass in promtool and Prometheus has loaded them."""
    compose(
        *("--profile", "metrics", "run", "--rm", "-T", "--no-deps", "--entrypoint", "promtool"),
        *("prometheus", "test", "rules", "/etc/prometheus/alerts_test.yml"),
    )
    address = f"http://127.0.0.1:{compose.ports['PROMETHEUS_PORT']}/api/v1/rules"
    groups = json.loads(fetch(address))["data"]["groups"]
    assert [rule["health"] for group in groups for rule in group["rules"]]
    assert {rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"}
