"""Spark on a cluster: the results of this machine. `tests/chaos/spark` has more programs."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from stilltide.pipeline.jobs.audits.plan import AuditPlan
from stilltide.pipeline.jobs.audits.run import run_audit
from tests.support.pages import FENCE
from tests.support.spark.cluster import SUBMIT, SparkCluster
from tests.support.spark.cluster_programs import (
    TOPIC,
    Written,
    drive,
    driver_settings,
)

PAGE = Path(__file__).parents[3] / "docs/spark.md"


def submitted_program() -> tuple[str, str]:
    """The program `count.py` of the page, and the command that submits it."""
    text = PAGE.read_text().partition("`count.py`")[2]
    (_, _, program), (_, _, command) = FENCE.findall(text)[:2]
    return program, command


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_an_audit_on_a_cluster_finds_what_one_on_this_machine_finds(
    spark_machines: SparkCluster, sound_orders: Written, tmp_path: Path
):
    """The same verdict, counts and digests, with executors on other machines."""
    here = run_audit(sound_orders.near, AuditPlan([TOPIC], digest=True)).to_dict()
    command = ["audit", "run", "--topics", TOPIC, "--digest", "--report", str(tmp_path / "r")]
    command += [
        "--bootstrap-servers",
        sound_orders.far,
        "--master",
        spark_machines.master,
        "-o",
        "json",
    ]
    program = [sys.executable, "-m", "stilltide", *command, *driver_settings(spark_machines)]
    there = json.loads(drive(spark_machines, *program))
    assert here["verdict"] == there["verdict"] == "valid"
    assert here["partitions"] == there["partitions"]
    assert all(one["digest"] is not None for one in there["partitions"])


@pytest.mark.slow
def test_the_page_submits_its_program(
    spark_machines: SparkCluster, sound_orders: Written, tmp_path: Path
):
    """It counts what readers see, behind the lines that a slow machine logs."""
    program, command = submitted_program()
    (tmp_path / "count.py").write_text(program.replace("127.0.0.1:9092", sound_orders.far))
    for of_page, here in {
        "spark-submit": SUBMIT,
        "spark://10.0.0.4:7077": spark_machines.master,
        "10.0.0.5": spark_machines.network.addresses["driver"],
        "count.py": str(tmp_path / "count.py"),
    }.items():
        command = command.replace(of_page, here)
    counted = drive(spark_machines, *shlex.split(command))
    assert int(counted.splitlines()[-1]) == sound_orders.visible
