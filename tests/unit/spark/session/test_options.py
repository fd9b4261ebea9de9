from pathlib import Path

import pytest

from stilltide.connectors.errors import FatalError, RetriableError
from stilltide.connectors.spark.errors import NO_EXECUTOR, connector_error
from stilltide.connectors.spark.options import (
    SparkOptions,
    arguments,
    defaults,
    environment,
    is_local,
    jars_to_add,
    launched,
)
from stilltide.connectors.spark.session import spark_session
from stilltide.pipeline.cli.common.spark import SparkAsked, SparkLines
from stilltide.pipeline.errors import ConfigError

SCRATCH = Path("/scratch")
OF_ONE_MACHINE = {
    "spark.driver.host",
    "spark.driver.bindAddress",
    "spark.local.dir",
    "spark.sql.warehouse.dir",
}


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,3]"])
def test_a_session_of_this_machine_stays_on_loopback(master: str):
    """No port of the driver is open to others, and nothing is left in the working directory."""
    found = defaults(SparkOptions(), master, SCRATCH)
    assert is_local(master)
    assert found.keys() >= OF_ONE_MACHINE
    assert found["spark.driver.host"] == found["spark.driver.bindAddress"] == "127.0.0.1"


@pytest.mark.parametrize("master", ["spark://h:7077", "yarn", "k8s://h", "local-cluster[2,1,1024]"])
def test_a_session_on_a_cluster_keeps_the_addresses_and_directories_of_spark(master: str):
    """Executors of other machines reach no loopback address."""
    assert not is_local(master)
    assert not OF_ONE_MACHINE & defaults(SparkOptions(), master, SCRATCH).keys()


def test_settings_go_before_options_and_options_before_defaults():
    """What is asked for last and in Spark's own words counts."""
    asked = SparkOptions(
        [Path("a.jar")], master="yarn", settings={"spark.master": "k8s://h", "spark.jars": "b.jar"}
    )
    found = launched(asked)
    assert found["spark.master"] == "k8s://h"
    assert found["spark.jars"] == "a.jar,b.jar"
    assert launched(SparkOptions())["spark.master"] == "local[*]"


def test_what_spark_submit_brought_is_not_added_again():
    """Two versions of a Kafka source or of Delta on one class path would be mixed."""
    kafka = [Path("/c/spark-sql-kafka-0-10_2.13-4.0.0.jar"), Path("/c/kafka-clients-3.9.1.jar")]
    delta = [Path("/c/delta-spark_2.13-4.0.1.jar"), Path("/c/unitycatalog-client-0.6.0.jar")]
    own = [Path("/c/own.jar")]
    jars = [*kafka, *delta, *own]
    assert jars_to_add(jars, lambda _: False) == jars
    assert jars_to_add(jars, lambda name: "kafka" in name) == [*delta, *own]
    assert jars_to_add(jars, lambda name: "delta" in name) == [*kafka, *own]
    assert jars_to_add(jars, lambda _: True) == own


def test_no_secret_is_in_the_arguments_of_the_jvm():
    """Other users see arguments; the session gets these settings over its socket."""
    secret = {"spark.hadoop.fs.s3a.secret.key": "hush", "spark.hadoop.fs.s3a.access.key": "hush"}
    options = SparkOptions(settings={"spark.executor.cores": "2", **secret})
    assert launched(options).keys() - arguments(options).keys() == secret.keys()


def test_the_ui_of_a_session_of_this_machine_listens_on_loopback():
    """The UI asks nobody for a password."""
    assert environment(SparkOptions(ui=True)) == {"SPARK_LOCAL_IP": "127.0.0.1"}
    assert environment(SparkOptions(ui=True, master="yarn")) == {}
    assert environment(SparkOptions()) == {}


def test_conf_takes_settings_and_refuses_what_is_none():
    """A value may hold the sign that ends the name."""
    found = SparkAsked(["spark.a=1", "spark.b=x=y"], ui=False).options(SparkLines())
    assert found.settings == {"spark.a": "1", "spark.b": "x=y"}
    for text in ("spark.a", "=1"):
        with pytest.raises(ConfigError, match="not K=V"):
            SparkAsked([text], ui=False).options(SparkLines())


def test_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch):
    """A remote session has no driver in this process; the error says so before anything starts."""
    monkeypatch.setenv("SPARK_REMOTE", "sc://h")
    for options in (SparkOptions(), SparkOptions(master="sc://h")):
        with pytest.raises(FatalError, match="Spark Connect is not supported"):
            spark_session(options).__enter__()
        monkeypatch.delenv("SPARK_REMOTE", raising=False)


def test_a_job_that_no_executor_took_is_worth_another_try():
    """The reason comes from the watch, between other words of Spark and its stack."""
    text = f"SparkException: Job 0 cancelled {NO_EXECUTOR} within 60 s; Spark says: Lost\n\tat x.y"
    error = connector_error(text, "h:1")
    assert type(error) is RetriableError
    assert error.detail == "within 60 s; Spark says: Lost"
    assert "spark.driver.host" in error.hint
