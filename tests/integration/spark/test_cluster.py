"""Spark on a cluster: the results of this machine. `tests/chaos/spark` has more programs."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from stilltide.pipeline.jobs.audits.plan import AuditPlan
from stilltide.pipeline.jobs.audits.run import run_audit
from tests.support.pages import FENCE
from tests.support.spark.cluster import SUBMIT, spark_cluster
from tests.support.spark.cluster_programs import TOPIC, drive, driver_settings, sound_topic

PAGE = Path(__file__).parents[3] / "docs/spark.md"


def submitted_program() -> tuple[str, str]:
    """The program `count.py` of the page, and the command that submits it."""
    text = PAGE.read_text().partition("`count.py`")[2]
    (_, _, program), (_, _, command) = FENCE.findall(text)[:2]
    return program, command


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_cluster_finds_what_this_machine_finds(tmp_path: Path):
    """The audit's verdict, counts and digests, and what the page's program counts there."""
    with (
        spark_cluster(tmp_path / "cluster") as cluster,
        sound_topic(cluster, tmp_path / "kafka") as written,
    ):
        here = run_audit(written.near, AuditPlan([TOPIC], digest=True)).to_dict()
        command = ["audit", "run", "--topics", TOPIC, "--digest", "--report", str(tmp_path / "r")]
        command += ["--bootstrap-servers", written.far, "--master", cluster.master, "-o", "json"]
        program = [sys.executable, "-m", "stilltide", *command, *driver_settings(cluster)]
        there = json.loads(drive(cluster, *program))
        program, command = submitted_program()
        (tmp_path / "count.py").write_text(program.replace("127.0.0.1:9092", written.far))
        command = command.replace("spark://10.0.0.4:7077", cluster.master)
        command = command.replace("10.0.0.5", cluster.network.addresses["driver"])
        command = command.replace("count.py", str(tmp_path / "count.py"))
        counted = drive(cluster, *shlex.split(command.replace("spark-submit", SUBMIT)))
    assert int(counted.splitlines()[-1]) == written.visible  # behind what a slow machine logs
    assert here["verdict"] == there["verdict"] == "valid"
    assert here["partitions"] == there["partitions"]
    assert all(one["digest"] is not None for one in there["partitions"])
