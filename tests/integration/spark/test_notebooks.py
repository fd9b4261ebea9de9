"""The notebooks of the documentation do what they say: each cell prints what is stored with it."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from stilltide.connectors.local.cluster import LocalCluster
from tests.site.notebooks import NOTEBOOKS
from tests.site.repository import ROOT
from tests.support.processes.worker_process import running_worker
from tests.support.spark.notebooks import run_notebook

BY_PROCESS = ("delta-table",)
"""Delta's jars have to be there when a session starts, so this one has a session of its own."""

RUN_S = 600


@pytest.fixture(scope="module")
def shop(empty_kafka: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker with a worker; its address."""
    with running_worker(empty_kafka.bootstrap, tmp_path_factory.mktemp("shop") / "worker.log"):
        yield empty_kafka.bootstrap


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in BY_PROCESS else [])
        for name in sorted(path.stem for path in NOTEBOOKS)
    ],
)
def test_a_notebook_prints_what_it_says(name: str, shop: str, spark: SparkSession):
    """With the address exchanged, in the session of the tests or in one of its own."""
    (notebook,) = (path for path in NOTEBOOKS if path.stem == name)
    if name not in BY_PROCESS:
        run_notebook(notebook, shop)
        return
    command = [sys.executable, "-m", "tests.support.spark.notebooks", str(notebook), shop]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert done.returncode == 0, done.stderr
