"""Spark on a cluster: the same results as on this machine, and an error where nothing can come."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from stilltide.connectors.local.addresses import Listener, free_port
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.local.jars import spark_jars
from stilltide.pipeline.jobs.audits.plan import AuditPlan
from stilltide.pipeline.jobs.audits.run import run_audit
from tests.support.native.topics import index_topics
from tests.support.spark.cluster import SUBMIT, SparkCluster, environment, spark_cluster
from tests.support.spark.session import local_spark
from tests.support.spark.sound_topics import write_sound

TOPIC = "orders"
PROGRAM_S = 600

OWN_SESSION = """
import sys
from pyspark.sql import SparkSession
from stilltide.pipeline.jobs.read_committed import read_committed

spark = SparkSession.builder.getOrCreate()
print(spark.sparkContext.master, read_committed(spark, sys.argv[1], ["orders"]).count())
"""

OUR_SESSION = """
import sys
from stilltide.connectors.local.jars import spark_jars
from stilltide.connectors.spark.session import SparkOptions, spark_session
from stilltide.pipeline.jobs.read_committed import read_committed

with spark_session(SparkOptions(jars=spark_jars())) as spark:
    assert spark.conf.get("spark.app.name") == "submitted", "spark-submit's settings are kept"
    print(spark.sparkContext.master, read_committed(spark, sys.argv[1], ["orders"]).count())
"""


UNREACHABLE = """
from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.local.jars import spark_jars
from stilltide.connectors.spark.session import SparkOptions, spark_session
from stilltide.pipeline.jobs.read_committed import read_committed

here = {{"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}}
options = SparkOptions(spark_jars(), "{master}", settings=here, executor_wait_s=20)
try:
    with spark_session(options) as spark:
        read_committed(spark, "{bootstrap}", ["orders"])
except ConnectorError as error:
    print(type(error).__name__, error, error.hint, sep=": ")
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """Master, worker and a place for drivers, in namespaces."""
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """The run's Spark session, of this machine."""
    with local_spark() as session:
        yield session


class Written(NamedTuple):
    """A topic, the broker's address for this machine and for the namespaces, and the records."""

    near: str
    far: str
    visible: int


@pytest.fixture(scope="module")
def written(cluster: SparkCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    """A broker that also listens where the namespaces reach it, with transactions of both kinds."""
    listener = Listener("BRIDGE", "PLAINTEXT", free_port(), host=cluster.network.host)
    path = tmp_path_factory.mktemp("kafka")
    with LocalCluster("a", path, fast_start=True, listeners=[listener]) as found:
        held = write_sound(found.bootstrap, TOPIC, 7)
        asyncio.run(index_topics(found.bootstrap, TOPIC))
        visible = sum(one["visible"] for one in held)
        yield Written(found.bootstrap, listener.bootstrap, visible)


def drive(cluster: SparkCluster, *command: str) -> str:
    """What a program in the driver's namespace prints; its log is in the failure."""
    done = subprocess.run(
        cluster.network.command("driver", *command),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def settings(cluster: SparkCluster) -> list[str]:
    """The options of a driver in its namespace: small executors that find the driver."""
    address = cluster.network.addresses["driver"]
    named = {"spark.driver.host": address, "spark.executor.memory": "600m"}
    return [part for name, value in named.items() for part in ("--conf", f"{name}={value}")]


def test_an_audit_on_a_cluster_finds_what_one_on_this_machine_finds(
    cluster: SparkCluster, written: Written, spark: SparkSession, tmp_path: Path
):
    """The same verdict, counts and digests, with executors on other machines."""
    here = run_audit(written.near, AuditPlan([TOPIC], digest=True)).to_dict()
    command = ["audit", "run", "--topics", TOPIC, "--digest", "--report", str(tmp_path)]
    command += ["--bootstrap-servers", written.far, "--master", cluster.master, "-o", "json"]
    program = [sys.executable, "-m", "stilltide", *command, *settings(cluster)]
    there = json.loads(drive(cluster, *program))
    assert here["verdict"] == there["verdict"] == "valid"
    assert here["partitions"] == there["partitions"]
    assert all(one["digest"] is not None for one in there["partitions"])


@pytest.mark.parametrize("program", [OWN_SESSION, OUR_SESSION])
def test_a_program_of_spark_submit_runs_on_its_cluster(
    cluster: SparkCluster, written: Written, tmp_path: Path, program: str
):
    """A session that the program makes, and one of `spark_session`: both have the cluster."""
    script = tmp_path / "job.py"
    script.write_text(program)
    jars = ["--jars", ",".join(map(str, spark_jars()))] if program is OWN_SESSION else []
    command = [SUBMIT, "--master", cluster.master, "--name", "submitted", *jars]
    said = drive(cluster, *command, *settings(cluster), str(script), written.far)
    assert said.split() == [cluster.master, str(written.visible)]


def test_a_driver_that_no_executor_reaches_says_so(cluster: SparkCluster, written: Written):
    """Spark would wait without end; the error has Spark's words and the next step."""
    program = UNREACHABLE.format(master=cluster.master, bootstrap=written.far)
    said = drive(cluster, sys.executable, "-c", program)
    assert "RetriableError: no executor takes work" in said
    assert "has not accepted any resources" in said
    assert "spark.driver.host" in said
