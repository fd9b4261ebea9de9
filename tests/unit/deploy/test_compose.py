"""What is deployed fits what is built: metrics, ports, locks."""

import json
import re
from pathlib import Path

import pytest
import yaml

from stilltide.pipeline.metrics.page import SECTIONS

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
COMPOSE = (ROOT / "docker-compose.yml").read_text()
SERVICES = yaml.safe_load(COMPOSE)["services"]
FAMILIES = {family.name for section in SECTIONS for family in section.table}
PORT_MAX = 32_767
"""Those above are given to outgoing connections."""


def expressions() -> list[str]:
    """Of the dashboard and the alert rules."""
    dashboard = json.loads((DEPLOY / "grafana/dashboards/stilltide.json").read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    alerts = (DEPLOY / "prometheus/alerts.yml").read_text()
    return shown + re.findall(r"^ +expr: (.+)$", alerts, re.MULTILINE)


def test_dashboard_and_alerts_ask_for_families_that_exist():
    """A family that was renamed would leave a panel empty and an alert silent."""
    assert len(expressions()) > 20
    for expression in expressions():
        names = re.findall(r"stilltide_\w+", expression)
        known = {re.sub(r"_(?:sum|count|bucket)$", "", name) for name in names}
        assert known <= FAMILIES, expression
        assert names or re.search(r"\b(?:up|process_\w+)\{", expression), expression


def test_every_alert_has_a_unit_test():
    """No rule is trusted that was never seen to fire."""
    alerts, tests = (
        set(re.findall(r"alert(?:name)?: (\w+)", (DEPLOY / "prometheus" / name).read_text()))
        for name in ("alerts.yml", "alerts_test.yml")
    )
    assert alerts == tests


def test_published_ports_are_settable_and_on_loopback():
    """Nobody outside of the host reaches a service, and a taken port can be exchanged."""
    published = [it for said in SERVICES.values() for it in said.get("ports", ())]
    assert len(published) >= 8
    for port in published:
        found = re.fullmatch(r"127\.0\.0\.1:\$\{[A-Z_]+_PORT:-(\d+)\}:\d+", port)
        assert found, port
        assert int(found[1]) <= PORT_MAX


@pytest.mark.parametrize("service", SERVICES)
def test_services_have_no_rights(service: str):
    """Every service: no capability, no way to gain one, nothing to write but volumes and memory."""
    said = SERVICES[service]
    assert said["read_only"] is True
    assert said["cap_drop"] == ["ALL"]
    assert said["security_opt"] == ["no-new-privileges:true"]
    assert "mem_limit" in said
    assert not {"privileged", "cap_add", "network_mode"} & set(said)
    assert said.get("user", "postgres") == "postgres", "an image that would begin as root"


def test_grafana_has_no_password():
    """Everybody may look, and nobody can log in: there is no user to guess the password of."""
    environment = SERVICES["grafana"]["environment"]
    assert not any("PASSWORD" in name for name in environment)
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert environment["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert environment["GF_AUTH_BASIC_ENABLED"] == "false"
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"


def test_clusters_have_ids_of_their_own():
    """A link between two clusters of one id is refused: they would be one."""
    ids = re.findall(r"^ +CLUSTER_ID: (\S+)$", COMPOSE, re.MULTILINE)
    assert len(ids) == len(set(ids)) == COMPOSE.count("<<: *kafka-settings")


@pytest.mark.parametrize("image", ["worker", "spark"])
def test_images_get_what_is_tested(image: str):
    """Their locks hold versions of the one lock that the tests run with, and no tool of ours."""
    pinned, all_pinned = (
        set(re.findall(r"^([\w.-]+==[^ ]+)", (ROOT / name).read_text(), re.MULTILINE))
        for name in (f"requirements.{image}.lock", "requirements.lock")
    )
    assert pinned < all_pinned
    assert any(pin.startswith("pyspark==") for pin in pinned) == (image == "spark")
    assert not any(pin.startswith(("pytest==", "ruff==")) for pin in pinned)
