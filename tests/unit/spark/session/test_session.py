import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from py4j.protocol import Py4JError

from stilltide.connectors.errors import ConnectorError, FatalError, RetriableError
from stilltide.connectors.spark.errors import connector_error, spark_errors

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


SECRETS = """
import os
from pathlib import Path

from pyspark import SparkContext

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.local.jars import spark_jars
from stilltide.connectors.spark.session import SparkOptions, spark_session
from stilltide.connectors.spark.source import OffsetRange, read_ranges
from stilltide.pipeline.config.loading import load_settings
from stilltide.schemas.values import TopicPartition


def content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # a thread, process or file is gone
        return b""


def below(pid: int) -> list[int]:
    found = [pid]
    tasks = next(os.walk(f"/proc/{pid}/task"), ("", [], []))[1]  # none: the process is gone
    for task in tasks:
        for child in content(Path(f"/proc/{pid}/task/{task}/children")).split():
            found += below(int(child))
    return found


settings = load_settings()
fast = "-XX:TieredStopAtLevel=1"
options = SparkOptions(jars=spark_jars(), master="local[1]", java_options=fast)
with spark_session(options) as spark:
    read_ranges(spark, settings.kafka, [OffsetRange(TopicPartition("t", 0), 0, 1)])
    jvm = SparkContext._gateway.proc.pid
    texts = []
    for pid in below(jvm):
        proc = Path(f"/proc/{pid}")
        files = [proc / "cmdline", proc / "environ"]
        for directory, _, names in os.walk(f"{proc}/cwd/"):
            files += [Path(directory) / name for name in names]
        texts += map(content, files)
    assert any(b"spark-submit" in text.lower() or b"SparkSubmit" in text for text in texts)
    assert any(b"PATH=" in text for text in texts)
    print([name for name in ("hush-sasl", "hush-key", "hush-cluster", "hush-token")
           if any(name.encode() in text for text in texts)])
"""


def run_python(program: str, directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process of its own: jars and JVM options count only there."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | variables,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=170,
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
        ("o.a.k.common.KafkaException: Failed ... LoginException: no token", FatalError),
        ("[DIVIDE_BY_ZERO] Division by zero", FatalError),
    ],
)
def test_the_text_of_a_failure_decides_whether_to_try_again(text: str, kind: type[ConnectorError]):
    """Only an absent broker is worth another try; the address is named."""
    error = connector_error(text, "broker:9092")
    assert type(error) is kind
    if kind is RetriableError:
        assert "broker:9092" in error.primary


STACK = """An error occurred while calling o586.count.
: java.util.concurrent.ExecutionException: {cause}
\tat org.apache.spark.sql.kafka010.ConsumerStrategy.retrieveAllPartitions(ConsumerStrategy.scala:65)
Caused by: {cause}
"""


@pytest.mark.parametrize(
    "cause",
    [
        "org.apache.kafka.common.errors.TimeoutException: Timed out",
        "java.lang.OutOfMemoryError: Java heap space",
    ],
)
def test_an_error_has_the_cause_and_the_debug_log_the_stack(
    cause: str, caplog: pytest.LogCaptureFixture
):
    """Topics and the next step are named; the stack of Java is for those who look for it."""
    with (
        caplog.at_level("DEBUG", "stilltide.connectors.spark.errors"),  # others name a level
        pytest.raises(ConnectorError) as caught,
        spark_errors("broker:9092", ["payments", "orders"]),
    ):
        raise Py4JError(STACK.format(cause=cause))
    text = str(caught.value)
    assert cause.rpartition(".")[2] in text
    assert "\tat " not in text
    assert "o586" not in text
    assert len(text.splitlines()) == 3
    assert "ConsumerStrategy.scala" in caplog.text
    if isinstance(caught.value, RetriableError):
        assert "orders, payments" in text


def test_no_secret_is_in_the_arguments_the_environment_or_the_files_of_the_jvm(tmp_path: Path):
    """Any process of the same user, and tools that list processes, can read these."""
    clusters = {"b": {"bootstrap_servers": "h:1", "options": {"sasl.password": "hush-cluster"}}}
    done = run_python(
        SECRETS,
        tmp_path,
        STILLTIDE_SECURITY_PROTOCOL="SASL_SSL",
        STILLTIDE_SASL_MECHANISM="PLAIN",
        STILLTIDE_SASL_USERNAME="alice",
        STILLTIDE_SASL_PASSWORD="hush-sasl",  # noqa: S106 - what must not be seen
        STILLTIDE_SSL_KEY_PASSWORD="hush-key",  # noqa: S106 - as above
        STILLTIDE_METRICS_TOKEN="hush-token-of-metrics",  # noqa: S106 - as above
        STILLTIDE_CLUSTERS=json.dumps(clusters),
    )
    assert done.stdout == "[]\n"
