"""Spark on a cluster: the results of this machine. `tests/chaos/spark` has more programs."""

import json
import sys
from pathlib import Path

import pytest

from stilltide.pipeline.jobs.audits.plan import AuditPlan
from stilltide.pipeline.jobs.audits.run import run_audit
from tests.support.spark.cluster import spark_cluster
from tests.support.spark.cluster_programs import TOPIC, drive, driver_settings, sound_topic


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_an_audit_on_a_cluster_finds_what_one_on_this_machine_finds(tmp_path: Path):
    """The same verdict, counts and digests, with executors on other machines."""
    with (
        spark_cluster(tmp_path / "cluster") as cluster,
        sound_topic(cluster, tmp_path / "kafka") as written,
    ):
        here = run_audit(written.near, AuditPlan([TOPIC], digest=True)).to_dict()
        command = ["audit", "run", "--topics", TOPIC, "--digest", "--report", str(tmp_path / "r")]
        command += ["--bootstrap-servers", written.far, "--master", cluster.master, "-o", "json"]
        program = [sys.executable, "-m", "stilltide", *command, *driver_settings(cluster)]
        there = json.loads(drive(cluster, *program))
    assert here["verdict"] == there["verdict"] == "valid"
    assert here["partitions"] == there["partitions"]
    assert all(one["digest"] is not None for one in there["partitions"])
