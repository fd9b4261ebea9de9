"""What is published: archives that are the same each time, and a wheel that works by itself."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from zipfile import ZipFile

import pytest

from stilltide.connectors.local.cluster import LocalCluster
from tests.support.packaging.building import EPOCH, ROOT, build, make_environment, run
from tests.support.processes.local import create_topic

APPLICATION = """
import asyncio, sys
import connectors, pipeline, schemas
from stilltide import Subscription, TransactionClient

async def main(servers: str, topic: str) -> None:
    async with TransactionClient(servers) as client:
        async with client.transaction() as txn:
            await txn.send(topic, pipeline.VALUE)
    async with Subscription([topic], group="packaging", bootstrap_servers=servers) as records:
        assert (await anext(records)).value == b"of the application"

asyncio.run(main(*sys.argv[1:]))
print(sorted({"pyspark", "pandas", "pyarrow"} & set(sys.modules)), schemas.OWN, connectors.OWN)
"""


VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Source archive and wheel, both made from the checkout."""
    return build(ROOT, tmp_path_factory.mktemp("built"), "--sdist", "--wheel")


def another_checkout(folder: Path) -> Path:
    """The same files in another place, with other times and rights."""
    names = run("git", "ls-files", "-z", cwd=ROOT).split("\0")
    for name in filter(None, names):
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy, follow_symlinks=False)
        if not copy.is_symlink():
            copy.chmod(0o600)
            os.utime(copy, (0, 0))
    return folder


def test_two_builds_are_byte_equal(built: dict[str, Path], tmp_path: Path):
    """Nothing of the time, the place or the machine goes into an archive."""
    again = build(another_checkout(tmp_path / "checkout"), tmp_path, "--sdist", "--wheel")
    assert set(built) == set(again) == {".gz", ".whl"}
    for ending, path in built.items():
        first, second = (hashlib.sha256(it.read_bytes()) for it in (path, again[ending]))
        assert first.hexdigest() == second.hexdigest(), ending


def test_the_time_of_an_archive_is_that_of_the_release(built: dict[str, Path]):
    """`SOURCE_DATE_EPOCH` names the time of every file."""
    wanted = datetime.fromtimestamp(EPOCH, UTC)
    with ZipFile(built[".whl"]) as wheel:
        assert {it.date_time for it in wheel.infolist()} == {wanted.timetuple()[:6]}
    with tarfile.open(built[".gz"]) as archive:
        assert {it.mtime for it in archive.getmembers()} == {EPOCH}


def test_the_version_is_written_once():
    """The samples for Kubernetes name the images of this version, and the command says it."""
    for sample in (ROOT / "deploy/kubernetes/overlays").glob("*/kustomization.yaml"):
        tags = re.findall(r"newTag: ([\w.-]+)", sample.read_text())
        assert tags
        assert {tag.removesuffix("-spark") for tag in tags} == {VERSION}, sample
    assert VERSION in run(sys.executable, "-m", "stilltide", "--version")


def test_the_source_archive_gives_the_same_wheel(built: dict[str, Path], tmp_path: Path):
    """The linked folders are in the source archive, so that its wheel lacks no module."""
    with tarfile.open(built[".gz"]) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    wheel = build(source, tmp_path / "wheel", "--wheel")[".whl"]
    with ZipFile(wheel) as from_archive, ZipFile(built[".whl"]) as from_checkout:
        names = from_archive.namelist()
        assert sorted(names) == sorted(from_checkout.namelist())
        assert len(names) == len(set(names))
    assert {name.split("/")[0] for name in names} == {
        "stilltide",
        f"stilltide-{VERSION}.dist-info",
    }
    for wanted in ("py.typed", "connectors/local/jars.lock", "pipeline/cli/main.py"):
        assert f"stilltide/{wanted}" in names
    assert f"stilltide-{VERSION}.dist-info/licenses/LICENSE" in names


@pytest.fixture
def installed(built: dict[str, Path], tmp_path: Path) -> Path:
    """The programs of a fresh environment with the wheel and what the images install."""
    environment = tmp_path / "environment"
    install = make_environment(environment)
    run(*install, "--require-hashes", "--requirement", ROOT / "requirements.worker.lock")
    run(*install, "--no-deps", built[".whl"])
    return environment / "bin"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[str]:
    """A broker of the test's own, on which no other test has a worker."""
    with LocalCluster("a", tmp_path / "kafka", fast_start=True) as cluster:
        yield cluster.bootstrap


@pytest.fixture
def worker(installed: Path, servers: str, tmp_path: Path) -> Iterator[None]:
    """A worker of the installed wheel that serves."""
    command = [str(installed / "stilltide"), "worker", "--bootstrap-servers", servers]
    command += ["--web-port", "0"]
    with (tmp_path / "worker.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=log)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (tmp_path / "worker.log").read_text()
        assert json.loads(line)["web"]
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("worker")
def test_an_application_with_folders_of_the_same_names(
    installed: Path, servers: str, tmp_path: Path
):
    """Packages `pipeline`, `schemas` and `connectors` of an application stay its own."""
    create_topic(servers, "orders")
    application = tmp_path / "application"
    for folder, text in {
        "pipeline": "VALUE = b'of the application'",
        "schemas": "OWN = 'schemas of the application'",
        "connectors": "OWN = 'connectors of the application'",
    }.items():
        (application / folder).mkdir(parents=True)
        (application / folder / "__init__.py").write_text(text)
    (application / "main.py").write_text(APPLICATION)
    said = run(installed / "python", application / "main.py", servers, "orders")
    assert said == "[] schemas of the application connectors of the application\n"
