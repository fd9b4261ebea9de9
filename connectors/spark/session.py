"""A Spark session for reading Kafka: driver on loopback, no UI, nothing on stderr.

Jars and JVM options have an effect only before the process's first session starts, so all of them
are set in one place and passed on the JVM's command line.

*Invariants*: nothing is written to the current directory; the JVM's log goes to a file, whose last
lines are in the error when the JVM does not start; the JVM dies with this process. No secret is in
the JVM's arguments, nor in its environment: that has none of Stilltide's variables, which other
processes of the user could read. The options of Kafka reach the JVM over its socket.

Refuses to make a second session: an active session is used instead.
"""

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stilltide.connectors.errors import FatalError
from stilltide.connectors.local.java import find_java

_LOG_TAIL_LINES = 15
_OURS = "STILLTIDE_"
_launching = threading.Lock()


@dataclass(frozen=True)
class SparkOptions:
    """The options of a Spark session.

    Attributes:
        jars: local files of the Kafka source (`connectors.local.jars.spark_jars()`).
        master: Spark master URL.
        app_name: application name in Spark's logs.
        shuffle_partitions: number of tasks after a shuffle, >= 1; adaptive execution merges small
            ones.
        driver_memory: heap of the JVM, in Java's notation.
        java_options: more options of the JVM, space-separated.
        settings: more settings of Spark by name; they outrank those of this module.
    """

    jars: Sequence[Path] = ()
    master: str = "local[*]"
    app_name: str = "stilltide"
    shuffle_partitions: int = 8
    driver_memory: str = "1g"
    java_options: str = ""
    settings: Mapping[str, str] = field(default_factory=dict[str, str])


@contextmanager
def spark_session(options: SparkOptions) -> Generator[SparkSession]:
    """The process's active session, or a new one that ends with the block.

    An active session is used as it is, without regard to `options`, and is left running.

    Raises:
        JavaMissingError: no Java that runs Spark was found.
        FatalError: the JVM does not start; the error contains the last lines of its log.
    """
    # getActiveSession() knows the calling thread's session only, and any thread may call this.
    if SparkContext._active_spark_context is not None:  # noqa: SLF001 - the process-wide question has no public form
        yield SparkSession.builder.getOrCreate()
        return
    scratch = Path(tempfile.mkdtemp(prefix="stilltide-spark-"))
    try:
        session = _start(options, scratch)
        try:
            yield session
        finally:
            session.stop()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _start(options: SparkOptions, scratch: Path) -> SparkSession:
    # Spark's launcher reads only JAVA_HOME, and accepts a Java that is too old.
    os.environ["JAVA_HOME"] = str(find_java().home)
    conf = _conf(options, scratch)
    log_path = scratch / "jvm.log"
    gateway = None
    try:
        if SparkContext._gateway is None:  # noqa: SLF001 - a stopped session leaves its JVM, not public
            # The JVM warns on stderr before any log configuration could stop it, and Spark
            # makes a directory `artifacts` where it is started.
            with log_path.open("wb") as log:
                gateway = _launch(conf, {"stderr": log, "stdout": log, "cwd": scratch})
        SparkContext(conf=conf, gateway=gateway)
        return SparkSession.builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        raise FatalError(
            "spark does not start",
            detail="\n".join([str(error), *_tail(log_path)]),
            hint="spark runs on Java 17 or 21 and needs free memory for its heap, "
            f"{options.driver_memory}",
        ) from error


class _WithoutSettings(subprocess.Popen[bytes]):
    """A process that inherits no variable of Stilltide, which may be a secret."""

    def __init__(self, args: Any, **options: Any) -> None:
        env = options.pop("env", None) or os.environ
        ours = {name: value for name, value in env.items() if not name.startswith(_OURS)}
        super().__init__(args, env=ours, **options)


def _launch(conf: SparkConf, options: dict[str, Any]) -> Any:
    # PySpark's launcher passes this process's whole environment on, whatever it is given.
    with _launching:
        launcher: Any = java_gateway
        before = launcher.Popen
        launcher.Popen = _WithoutSettings
        try:
            return launcher.launch_gateway(conf, options)
        finally:
            launcher.Popen = before


def _tail(log_path: Path) -> list[str]:
    if not log_path.exists():
        return []
    return log_path.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]


def _conf(options: SparkOptions, scratch: Path) -> SparkConf:
    settings = {
        "spark.master": options.master,
        "spark.app.name": options.app_name,
        "spark.jars": ",".join(str(jar) for jar in options.jars),
        "spark.driver.memory": options.driver_memory,
        "spark.driver.extraJavaOptions": options.java_options,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": str(options.shuffle_partitions),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    conf = SparkConf()
    for name, value in {**settings, **options.settings}.items():
        if value:
            conf.set(name, value)
    return conf
