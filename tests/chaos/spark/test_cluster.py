"""Programs on a Spark cluster: spark-submit's settings stay, and an error where nothing can come.

*Source*: docs/spark.md. `make chaos ARGS="-k spark"` runs it, as root.
"""

import sys
from pathlib import Path

import pytest

from stilltide.connectors.local.jars import spark_jars
from tests.support.spark.cluster import SUBMIT, SparkCluster
from tests.support.spark.cluster_programs import Written, drive, driver_settings

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


@pytest.mark.parametrize("program", [OWN_SESSION, OUR_SESSION])
def test_a_program_of_spark_submit_runs_on_its_cluster(
    spark_machines: SparkCluster, sound_orders: Written, tmp_path: Path, program: str
):
    """A session that the program makes, and one of `spark_session`: both have the cluster."""
    script = tmp_path / "job.py"
    script.write_text(program)
    jars = ["--jars", ",".join(map(str, spark_jars()))] if program is OWN_SESSION else []
    command = [SUBMIT, "--master", spark_machines.master, "--name", "submitted", *jars]
    said = drive(
        spark_machines, *command, *driver_settings(spark_machines), str(script), sound_orders.far
    )
    # spark-submit prints the program's log lines there, too: those of steps that are slow.
    assert f"{spark_machines.master} {sound_orders.visible}" in said.splitlines()


def test_a_driver_that_no_executor_reaches_says_so(
    spark_machines: SparkCluster, sound_orders: Written
):
    """Spark would wait without end; the error has Spark's words and the next step."""
    program = UNREACHABLE.format(master=spark_machines.master, bootstrap=sound_orders.far)
    said = drive(spark_machines, sys.executable, "-c", program)
    assert "RetriableError: no executor takes work" in said
    assert "has not accepted any resources" in said
    assert "spark.driver.host" in said
