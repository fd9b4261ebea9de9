"""What renders the manifests for the tests does as `kubectl kustomize` does, and refuses faults."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.deploy.kustomize import Document, KustomizeError, render

KUBERNETES = Path(__file__).parents[3] / "deploy/kubernetes"
FOLDERS = sorted(
    path.parent
    for path in KUBERNETES.rglob("kustomization.yaml")
    if "kind: Kustomization\n" in path.read_text()
)
HASH = re.compile(r"^(stilltide[a-z-]*?)-[a-z0-9]{10}$")


def without_hashes(value: Any) -> Any:
    """A document in which generated names end where their hash begins."""
    if isinstance(value, dict):
        return {key: without_hashes(one) for key, one in value.items()}
    if isinstance(value, list):
        return [without_hashes(one) for one in value]
    return HASH.sub(r"\1", value) if isinstance(value, str) else value


def by_place(documents: list[Document]) -> dict[str, Document]:
    """Documents by kind and name."""
    return {f"{one['kind']} {one['metadata']['name']}": one for one in documents}


def by_folder(path: Path) -> str:
    """As a reader would name it."""
    return str(path.relative_to(KUBERNETES))


@pytest.mark.parametrize("folder", FOLDERS, ids=by_folder)
def test_rendered_as_by_kubectl(folder: Path):
    """Where `kubectl` is installed, both render the same, but for the hashes of names."""
    made = render(folder)
    assert made
    if (kubectl := shutil.which("kubectl")) is None:
        return  # what follows only says that the two agree
    done = subprocess.run(
        [kubectl, "kustomize", folder], capture_output=True, text=True, check=True
    )
    theirs = [without_hashes(one) for one in yaml.safe_load_all(done.stdout)]
    assert by_place(made) == by_place(theirs)


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ({"resources": ["absent.yaml"]}, "absent.yaml does not exist"),
        ({"configMapGenerator": [{"name": "a", "envs": ["absent.env"]}]}, "absent.env does not"),
        ({"configMapGenerator": [{"name": "a", "behavior": "merge"}]}, "a is to be merged"),
        ({"resource": []}, "not known here"),
        ({"replicas": [{"name": "a", "count": 2}]}, "a, which does not exist"),
        ({"patches": [{"path": "a.yaml"}]}, "not known here"),
        ({"kind": "Component"}, "is no Kustomization"),
    ],
)
def test_faults_are_refused(said: dict[str, Any], fault: str, tmp_path: Path):
    """A file that is missing, and a key that is not known, are errors."""
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    (tmp_path / "kustomization.yaml").write_text(json.dumps(head | said))
    with pytest.raises(KustomizeError, match=fault):
        render(tmp_path)
