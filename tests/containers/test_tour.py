"""The compose file: up and probed, under load with services killed, audited, seen.

TOUR_S in the environment has every service killed once, spread over so many seconds.
"""

import asyncio
import json
import math
import os
import time
import urllib.parse
import urllib.request
from typing import Any

import pytest

from tests.support.processes.compose_tour import INVOICES, ORDERS, STEP, Tour
from tests.support.processes.containers import ROOT, Compose, docker, ready
from tests.support.processes.worker_process import create_topics

DASHBOARD = ROOT / "deploy/grafana/dashboards/stilltide.json"
SEEN_S = 120.0
"""By then Prometheus has scraped often enough for every rate."""

RECORDED_S = 2 * 60 * 60
"""No run of these tests takes longer."""

RECORDED_STEP_S = 15

SERVICES = [
    *(f"{kind}-{cluster}" for kind in ("kafka", "worker") for cluster in "abc"),
    *(f"link-{source}-{target}" for source in "abc" for target in "abc" if source != target),
    "console",
]

TOUR_S = float(os.environ.get("TOUR_S", "0"))
VICTIMS = SERVICES if TOUR_S else ["worker-a", "link-a-b", "kafka-a", "worker-b"]

pytestmark = pytest.mark.timeout(1800 + 2 * TOUR_S)  # of which the kills may take twice their time


def fetch(address: str) -> bytes:
    """What a site of the project answers; an error status is an error."""
    with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 - on loopback
        return answer.read()


def test_everything_is_healthy(compose: Compose):
    """`up --wait` returns when all are; probes answer with a line for each check."""
    states = compose.states()
    assert {name: states[name] for name in SERVICES} == dict.fromkeys(SERVICES, "healthy")
    for service in SERVICES:
        kind, *ends = service.split("-")
        if kind == "worker":
            assert fetch(f"{compose.web(ends[0])}/livez").startswith(b"[+]loop ")
            assert [line.split()[0] for line in ready(compose.container(service))] == [
                "[+]broker",
                "[+]partitions",
                "[+]work",
            ]
        elif kind == "link":
            *clusters, link = ready(compose.container(service))
            assert clusters == [f"[+]{name} answers" for name in ends]
            assert link.startswith("[+]link copies;")
        elif kind == "console":
            assert ready(compose.container(service)) == ["[+]console serves"]


def test_an_indexer_is_probed_and_stopped(compose: Compose):
    """It is ready when it has read the index, and ends well when the engine stops it."""
    asyncio.run(create_topics(compose.bootstrap("a"), "indexed"))
    command = ["index", "run", "indexed", "--web-port", "6066"]
    started = compose("run", "--detach", "cli", *command).stdout.split()[-1]
    try:
        broker, index = ready(started)
        assert broker == "[+]broker answers"
        assert index.startswith("[+]index indexes 3 partitions;")
        docker("stop", started)
        assert docker("inspect", "--format", "{{.State.ExitCode}}", started).stdout == "0\n"
    finally:
        docker("rm", "--force", started)


def test_nothing_is_lost_when_each_service_is_killed_once(compose: Compose):
    """On every cluster readers see what was committed, once; so does the audit of the Spark image.

    An application on b makes an invoice of each order that is copied there, and c gets the copies.
    """
    tour = Tour(compose, VICTIMS, TOUR_S)
    asyncio.run(tour.run())
    assert len(tour.load.outcomes.committed) >= STEP * len(VICTIMS)
    for cluster, topics in (("a", ORDERS), ("b", (*ORDERS, INVOICES))):
        address = ["--bootstrap-servers", f"kafka-{cluster}:19092"]
        named = ["--topics", ",".join(topics), "--update-index"]
        audit = compose("run", "--rm", "-T", "audit", *address, *named, "-o", "json")
        assert json.loads(audit.stdout)["verdict"] == "valid"
    listed = compose("run", "--rm", "-T", "cli", "txn", "list", "-o", "json")
    assert isinstance(json.loads(listed.stdout), list)


def expressions() -> list[str]:
    """Of the dashboard, for every cluster."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [
        target["expr"].replace("$cluster", ".*") for panel in panels for target in panel["targets"]
    ]


def samples(compose: Compose, expression: str) -> list[float]:
    """What Prometheus makes of an expression, of the whole run: an audit outlasts a rate."""
    now_s = time.time()
    query = urllib.parse.urlencode(
        {
            "query": expression,
            "start": now_s - RECORDED_S,
            "end": now_s,
            "step": RECORDED_STEP_S,
        }
    )
    address = f"http://127.0.0.1:{compose.ports['PROMETHEUS_PORT']}/api/v1/query_range?{query}"
    found: dict[str, Any] = json.loads(fetch(address))
    return [float(value) for each in found["data"]["result"] for _, value in each["values"]]


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
