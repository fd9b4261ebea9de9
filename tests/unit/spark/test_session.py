import subprocess
import sys
from pathlib import Path

import pytest

from stilltide.connectors.errors import ConnectorError, FatalError, RetriableError
from stilltide.connectors.spark.errors import connector_error

WITHOUT_JARS = """
from stilltide.connectors.errors import FatalError
from stilltide.connectors.spark.errors import spark_errors
from stilltide.connectors.spark.session import SparkOptions, spark_session
from stilltide.connectors.spark.source import OffsetRange, read_ranges
from stilltide.schemas.values import TopicPartition

options = SparkOptions(master="local[1]", java_options="-XX:TieredStopAtLevel=1")
with spark_session(options) as spark:
    assert spark.range(3).count() == 3
    try:
        with spark_errors("127.0.0.1:1"):
            read_ranges(spark, "127.0.0.1:1", [OffsetRange(TopicPartition("t", 0), 0, 1)])
    except FatalError as error:
        print(error.primary)
"""

BAD_JVM = """
from stilltide.connectors.errors import FatalError
from stilltide.connectors.spark.session import SparkOptions, spark_session

try:
    with spark_session(SparkOptions(driver_memory="1k")):
        pass
except FatalError as error:
    print(error)
"""


def run_python(program: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process of its own: jars and JVM options count only there."""
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )


def test_without_the_jars_the_error_says_so_and_nothing_else_is_printed(tmp_path: Path):
    """A missing Kafka source is a typed error; the session is silent and leaves no files."""
    done = run_python(WITHOUT_JARS, tmp_path)
    assert done.stdout == "spark has no Kafka source\n"
    assert not done.stderr
    assert not list(tmp_path.iterdir())


def test_a_jvm_that_does_not_start_tells_why(tmp_path: Path):
    """The last lines of the JVM's own log are in the error."""
    done = run_python(BAD_JVM, tmp_path)
    assert "spark does not start" in done.stdout
    assert "Too small maximum heap" in done.stdout


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[KAFKA_DATA_SOURCE_NOT_ENABLED] deploy the application", FatalError),
        ("o.a.s: [KAFKA_DATA_LOSS.START_OFFSET_RESET] Some data may have been lost", FatalError),
        ("org.apache.kafka.common.errors.TimeoutException: Timed out waiting", RetriableError),
        ("[DIVIDE_BY_ZERO] Division by zero", FatalError),
    ],
)
def test_the_text_of_a_failure_decides_whether_to_try_again(text: str, kind: type[ConnectorError]):
    """Only an absent broker is worth another try; the address is named."""
    error = connector_error(text, "broker:9092")
    assert type(error) is kind
    if kind is RetriableError:
        assert "broker:9092" in error.primary
