"""Renders the kustomizations of deploy/kubernetes on a machine without `kustomize`.

Only what deploy/kubernetes uses is known; any other key, and any file that does not exist, is an
error. Generated names get no hash. `tests/unit/deploy/test_kustomize.py` compares the result with
that of `kubectl kustomize`.
"""

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.support.deploy.patches import apply_patch

Document = dict[str, Any]

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C, ten times as fast

_API = {
    "Kustomization": "kustomize.config.k8s.io/v1beta1",
    "Component": "kustomize.config.k8s.io/v1alpha1",
}
_POD_TEMPLATES = (
    ("spec", "template"),
    ("spec", "jobTemplate"),
    ("spec", "jobTemplate", "spec", "template"),
)
_SELECTORS = {
    "Service": ("spec", "selector"),
    "Deployment": ("spec", "selector", "matchLabels"),
    "StatefulSet": ("spec", "selector", "matchLabels"),
    "PodDisruptionBudget": ("spec", "selector", "matchLabels"),
    "NetworkPolicy": ("spec", "podSelector", "matchLabels"),
}
_CLUSTER_WIDE = {"Namespace"}


class KustomizeError(Exception):
    """A kustomization names what does not exist, or says what is not known here."""


def read_documents(path: Path) -> list[Any]:
    """The documents of a YAML file."""
    if not path.is_file():
        raise KustomizeError(f"{path} does not exist")
    loaded = yaml.load_all(path.read_text(), _Loader)
    return [document for document in loaded if document is not None]


def render(folder: Path) -> list[Document]:
    """The documents that the kustomization of a folder stands for."""
    documents: list[Document] = []
    _apply(folder, documents, "Kustomization")
    return documents


def pod_specs(documents: list[Document]) -> Iterator[tuple[Document, Document]]:
    """Each document that makes pods, with the specification of these pods."""
    for document in documents:
        if document["kind"] in ("Deployment", "StatefulSet"):
            yield document, document["spec"]["template"]["spec"]
        if document["kind"] == "CronJob":
            yield document, document["spec"]["jobTemplate"]["spec"]["template"]["spec"]


def _apply(folder: Path, documents: list[Document], kind: str) -> None:
    """Adds a kustomization to documents, or lets a component change them."""
    (said,) = read_documents(folder / "kustomization.yaml")
    if (said.pop("kind", None), said.pop("apiVersion", None)) != (kind, _API[kind]):
        raise KustomizeError(f"{folder} is no {kind} of {_API[kind]}")
    if unknown := set(said) - set(_STEPS):
        raise KustomizeError(f"{folder} says {unknown}, which is not known here")
    for key, step in _STEPS.items():  # kustomize, too, has an order of its own
        if key in said:
            step(folder, documents, said[key])


def _resources(folder: Path, documents: list[Document], named: list[str]) -> None:
    for name in named:
        path = folder / name
        documents += render(path) if path.is_dir() else read_documents(path)
    places = [(document["kind"], document["metadata"]["name"]) for document in documents]
    if len(places) != len(set(places)):
        raise KustomizeError(f"{folder} has one resource twice: {sorted(places)}")


def _components(folder: Path, documents: list[Document], named: list[str]) -> None:
    for name in named:
        _apply(folder / name, documents, "Component")


def _config_maps(folder: Path, documents: list[Document], generators: list[Document]) -> None:
    for generator in generators:
        if unknown := set(generator) - {"name", "behavior", "envs", "literals"}:
            raise KustomizeError(f"{folder} generates with {unknown}, which is not known here")
        lines = list(generator.get("literals", []))
        for name in generator.get("envs", []):
            if not (folder / name).is_file():
                raise KustomizeError(f"{folder / name} does not exist")
            lines += (folder / name).read_text().splitlines()
        pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
        data = {key: value for key, _, value in pairs}
        existing = [one for one in documents if _is(one, "ConfigMap", generator["name"])]
        if (generator.get("behavior") == "merge") != bool(existing):
            raise KustomizeError(f"{folder}: {generator['name']} is to be merged, or is new")
        if existing:
            existing[0]["data"].update(data)
        else:
            metadata = {"name": generator["name"]}
            documents.append(
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
            )


def _patches(folder: Path, documents: list[Document], patches: list[Document]) -> None:
    for patch in patches:
        if set(patch) != {"path", "target"} or set(patch["target"]) != {"kind", "name"}:
            raise KustomizeError(f"{folder} patches with {patch}, which is not known here")
        (operations,) = read_documents(folder / patch["path"])
        for document in documents:
            if document["kind"] == patch["target"]["kind"] and re.fullmatch(
                patch["target"]["name"], document["metadata"]["name"]
            ):
                apply_patch(document, copy.deepcopy(operations))


def _namespace(folder: Path, documents: list[Document], namespace: str) -> None:
    for document in documents:
        if document["kind"] not in _CLUSTER_WIDE:
            document["metadata"]["namespace"] = namespace
        elif document["metadata"]["name"] != namespace:
            raise KustomizeError(f"{folder} makes another namespace than its own")


def _suffix(folder: Path, documents: list[Document], suffix: str) -> None:
    names = {one["metadata"]["name"] for one in documents if one["kind"] == "ConfigMap"}
    for document in documents:
        document["metadata"]["name"] += suffix
    for _, spec in pod_specs(documents):
        for container in spec["containers"]:
            for source in container.get("envFrom", []):
                if source["configMapRef"]["name"] in names:
                    source["configMapRef"]["name"] += suffix


def _labels(folder: Path, documents: list[Document], labels: list[Document]) -> None:
    for label in labels:
        if unknown := set(label) - {"pairs", "includeSelectors", "includeTemplates"}:
            raise KustomizeError(f"{folder} labels with {unknown}, which is not known here")
        for document in documents:
            document["metadata"].setdefault("labels", {}).update(label["pairs"])
            if label.get("includeTemplates"):
                for path in _POD_TEMPLATES:
                    if (template := _at(document, path)) is not None:
                        template.setdefault("metadata", {}).setdefault("labels", {}).update(
                            label["pairs"]
                        )
            if label.get("includeSelectors"):
                _select(document, label["pairs"])


def _select(document: Document, pairs: dict[str, str]) -> None:
    path = _SELECTORS.get(document["kind"])
    if path and (selector := _at(document, path)) is not None:
        selector.update(pairs)
    for _, spec in pod_specs([document]):
        for spread in spec.get("topologySpreadConstraints", []):
            spread["labelSelector"]["matchLabels"].update(pairs)


def _replicas(folder: Path, documents: list[Document], counts: list[Document]) -> None:
    for count in counts:
        found = [one for one in documents if one["metadata"]["name"] == count["name"]]
        found = [one for one in found if "replicas" in one.get("spec", {})]
        if not found:
            raise KustomizeError(f"{folder} counts {count['name']}, which does not exist")
        for document in found:
            document["spec"]["replicas"] = count["count"]


def _images(folder: Path, documents: list[Document], images: list[Document]) -> None:
    for image in images:
        if set(image) != {"name", "newName", "newTag"}:
            raise KustomizeError(f"{folder} renames with {image}, which is not known here")
        containers = [one for _, spec in pod_specs(documents) for one in spec["containers"]]
        for container in containers:
            if container["image"].partition(":")[0] == image["name"]:
                container["image"] = f"{image['newName']}:{image['newTag']}"


def _at(document: Document, path: tuple[str, ...]) -> Document | None:
    found: Any = document
    for key in path:
        if not isinstance(found, dict) or key not in found:
            return None
        found = found[key]
    return found


def _is(document: Document, kind: str, name: str) -> bool:
    return document["kind"] == kind and document["metadata"]["name"] == name


_STEPS: dict[str, Callable[[Path, list[Document], Any], None]] = {
    "resources": _resources,
    "components": _components,
    "configMapGenerator": _config_maps,
    "patches": _patches,
    "namespace": _namespace,
    "nameSuffix": _suffix,
    "labels": _labels,
    "replicas": _replicas,
    "images": _images,
}
