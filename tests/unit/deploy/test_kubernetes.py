"""The manifests of deploy/kubernetes: valid in strict schemas, and true of the product."""

import copy
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from stilltide.pipeline.config.loading import load_settings
from stilltide.pipeline.config.settings import Settings
from tests.support.deploy.commands import unknown_variables, usage_error
from tests.support.deploy.kustomize import Document, pod_specs, render
from tests.support.deploy.monitors import check_monitor, is_monitor

ROOT = Path(__file__).parents[3]
KUBERNETES = ROOT / "deploy/kubernetes"
OVERLAYS = sorted(path.parent for path in KUBERNETES.glob("overlays/*/kustomization.yaml"))
PARTS = [KUBERNETES / name for name in ("base", "link", "index", "audit")]
VERSIONS = ("1.29", "1.37")
"""The oldest and newest version of Kubernetes that is checked."""

PORT = Settings.model_fields["web_port"].default
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


@cache
def rendered(folder: Path) -> list[Document]:
    """What a folder stands for."""
    return render(folder)


def by_folder(path: Path) -> str:
    """As a reader would name it."""
    return str(path.relative_to(KUBERNETES))


def containers(folder: Path) -> Iterator[tuple[Document, Document]]:
    """Each document of a folder that makes pods, with the one container of its pods."""
    for document, spec in pod_specs(rendered(folder)):
        (container,) = spec["containers"]
        yield document, container


def variables(folder: Path, container: Document) -> dict[str, str]:
    """The environment of a container; a value that the cluster fills in is empty."""
    maps = {
        one["metadata"]["name"]: one["data"]
        for one in (*rendered(KUBERNETES / "base"), *rendered(folder))
        if one["kind"] == "ConfigMap"
    }
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        found |= maps[source["configMapRef"]["name"]]
    return found | {one["name"]: one.get("value", "") for one in container.get("env", [])}


def arguments(folder: Path, container: Document) -> list[str]:
    """The arguments of a container, with variables filled in."""
    known = variables(folder, container)
    return [
        re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], word) for word in container["args"]
    ]


def selects(selector: dict[str, str], folder: Path) -> list[str]:
    """The names of what makes pods that have all labels."""
    found: list[str] = []
    for document, _ in pod_specs(rendered(folder)):
        template = document["spec"].get("jobTemplate", document)["spec"]["template"]
        if selector.items() <= template["metadata"]["labels"].items():
            found.append(document["metadata"]["name"])
    return found


@pytest.fixture(scope="module")
def schemas() -> Any:
    """The validator; imported here, since each process collects this file, and only one runs it."""
    return import_module("kubernetes_validate")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", [KUBERNETES / "index", *OVERLAYS], ids=by_folder)
def test_documents_are_valid(schemas: Any, folder: Path, version: str):
    """Each document fits the schema of its kind, which allows no unknown field."""
    for document in rendered(folder):
        if is_monitor(document):
            check_monitor(document)
        else:
            schemas.validate(document, version, strict=True)


def test_an_unknown_field_is_found(schemas: Any):
    """The schemas are strict also deep inside, or the test above would say nothing."""
    (document,) = (one for one in rendered(KUBERNETES / "link") if one["kind"] == "Deployment")
    misspelt = copy.deepcopy(document)
    misspelt["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(schemas.ValidationError, match="livenesProbe"):
        schemas.validate(misspelt, VERSIONS[-1], strict=True)


def test_every_file_is_used():
    """A kustomization names each file next to it."""
    for path in KUBERNETES.rglob("*.*"):
        if path.name != "kustomization.yaml":
            assert path.name in (path.parent / "kustomization.yaml").read_text(), path


@pytest.mark.parametrize("folder", [*PARTS, *OVERLAYS], ids=by_folder)
def test_commands_exist(folder: Path):
    """The command line knows the command and every option of each container."""
    for _, container in containers(folder):
        assert usage_error(arguments(folder, container)) == ""


@pytest.mark.parametrize("folder", [*PARTS, *OVERLAYS], ids=by_folder)
def test_variables_are_settings(folder: Path):
    """The product refuses a variable STILLTIDE_* that is no setting, so Kubernetes gives none."""
    for document, spec in pod_specs(rendered(folder)):
        assert spec["enableServiceLinks"] is False, document["metadata"]["name"]
        assert unknown_variables(variables(folder, spec["containers"][0])) == []


@pytest.mark.parametrize("folder", OVERLAYS, ids=by_folder)
def test_settings_are_valid(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Settings are loaded as they are, with files in the place of mounted secrets."""
    for document, container in containers(folder):
        for name, value in variables(folder, container).items():
            if not name.startswith("STILLTIDE_") or not value:
                continue
            if value.startswith("/etc/stilltide/secrets/"):
                mounted = tmp_path / Path(value).name
                mounted.write_text("secret")
                monkeypatch.setenv(name, str(mounted))
            else:
                monkeypatch.setenv(name, value)
        settings = load_settings()
        settings.check_own_name()
        if document["kind"] == "Deployment":
            settings.address_of(arguments(folder, container)[2])


@pytest.mark.parametrize("folder", [*PARTS, *OVERLAYS], ids=by_folder)
def test_pods_have_no_rights(folder: Path):
    """Not root, no capability, nothing to write but volumes, no token: as namespaces may demand."""
    (user,) = re.findall(r"useradd --uid (\d+)", (ROOT / "Dockerfile").read_text())
    for _, spec in pod_specs(rendered(folder)):
        security = spec["securityContext"]
        assert security["runAsNonRoot"]
        assert security["runAsUser"] == int(user)
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        (container,) = spec["containers"]
        assert container["securityContext"] == RESTRICTED
        assert "memory" in container["resources"]["limits"]
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert set(mounts.values()) == {volume["name"] for volume in spec["volumes"]}
        assert "/tmp" in mounts  # noqa: S108 - the container's


@pytest.mark.parametrize("folder", [*PARTS, *OVERLAYS], ids=by_folder)
def test_ports_and_probes_are_those_of_the_web_site(folder: Path):
    """Every process that stays serves its pages where probes and Prometheus look."""
    for document, container in containers(folder):
        if document["kind"] == "CronJob":
            continue
        assert container["ports"] == [{"name": "web", "containerPort": PORT}]
        words, known = arguments(folder, container), variables(folder, container)
        given = words[words.index("--web-port") + 1] if "--web-port" in words else None
        assert int(given or known["STILLTIDE_WEB_PORT"]) == PORT
        assert known["STILLTIDE_WEB_HOST"] == "0.0.0.0"  # noqa: S104 - of the pod
        probes = {name: container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}
        assert {name: probe["httpGet"] for name, probe in probes.items()} == {
            "startup": {"path": "/livez", "port": "web"},
            "liveness": {"path": "/livez", "port": "web"},
            "readiness": {"path": "/readyz", "port": "web"},
        }


@pytest.mark.parametrize("folder", OVERLAYS, ids=by_folder)
def test_references_resolve(folder: Path):
    """Service accounts and settings that pods name exist; images are those that are built."""
    names = {(one["kind"], one["metadata"]["name"]) for one in rendered(folder)}
    for document, spec in pod_specs(rendered(folder)):
        assert ("ServiceAccount", spec["serviceAccountName"]) in names
        for source in spec["containers"][0]["envFrom"]:
            assert ("ConfigMap", source["configMapRef"]["name"]) in names
        is_audit = document["kind"] == "CronJob"
        assert spec["containers"][0]["image"].endswith("-spark") == is_audit
        assert spec["containers"][0]["image"].startswith("registry.example.com/stilltide:")


@pytest.mark.parametrize("folder", OVERLAYS, ids=by_folder)
def test_selectors_find_their_pods(folder: Path):
    """Each workload selects its own pods; services, budgets and policies find theirs."""
    for document in rendered(folder):
        spec: dict[str, Any] = document.get("spec", {})
        name = document["metadata"]["name"]
        match document["kind"]:
            case "StatefulSet" | "Deployment":
                assert selects(spec["selector"]["matchLabels"], folder) == [name]
            case "Service":
                assert selects(spec["selector"], folder) == ["stilltide-worker"]
            case "PodDisruptionBudget":
                assert selects(spec["selector"]["matchLabels"], folder) == ["stilltide-worker"]
            case "NetworkPolicy":
                everything = [one["metadata"]["name"] for one, _ in pod_specs(rendered(folder))]
                assert selects(spec["podSelector"]["matchLabels"], folder) == everything
            case _:
                pass


def test_workers_have_stable_names():
    """The name of a pod, which stays, is the worker's name in its group; updates go one by one."""
    (worker,) = (one for one in rendered(KUBERNETES / "base") if one["kind"] == "StatefulSet")
    (container,) = worker["spec"]["template"]["spec"]["containers"]
    (variable,) = container["env"]
    assert variable["name"] == "STILLTIDE_WORKER_INSTANCE_ID"
    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert worker["spec"]["replicas"] > 1


def test_links_never_run_twice():
    """The old pod of a link is gone before a new one starts: two would end each other."""
    for name in ("link", "index"):
        (link,) = (one for one in rendered(KUBERNETES / name) if one["kind"] == "Deployment")
        assert link["spec"]["strategy"] == {"type": "Recreate"}
        assert link["spec"]["replicas"] == 1


def test_monitors_give_the_job_names_of_the_alerts():
    """An alert on `up` asks for a job that a monitor names, and monitors find services and pods."""
    folder = KUBERNETES / "overlays/linked"
    alerts = (ROOT / "deploy/prometheus/alerts.yml").read_text()
    asked = set(re.findall(r'job="([\w-]+)"', alerts))
    monitors = [check_monitor(one) for one in rendered(folder) if is_monitor(one)]
    found = {
        relabeling.replacement
        for monitor in monitors
        for endpoint in getattr(monitor.spec, "endpoints", None)
        or getattr(monitor.spec, "podMetricsEndpoints", [])
        for relabeling in endpoint.relabelings
        if relabeling.targetLabel == "job"
    }
    assert found == asked
    for monitor in monitors:
        assert selects(monitor.spec.selector.matchLabels, folder)


def test_secrets_are_documented():
    """The page says how to create the Secret, with every file that settings name."""
    page = (ROOT / "docs/deploying.md").read_text()
    settings = (KUBERNETES / "components/sasl/sasl.env").read_text()
    named = re.findall(r"=/etc/stilltide/secrets/([\w.-]+)$", settings, re.MULTILINE)
    assert len(named) > 1
    assert "create secret generic stilltide-kafka" in page
    for name in named:
        assert f"--from-file={name}=" in page, name
