"""The options of a Spark session, and the Spark settings that follow from them.

*Source*: Spark's own order: what the program sets comes before what spark-submit was given, and
that before defaults. So options and settings of the caller come first, then spark-submit's, then
ours.

*Invariants*: only a session of this machine (`local`, `local[...]`) gets loopback addresses and
local directories; executors of a cluster could not reach the first, and have their own of the
second.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

LOCAL_MASTER = "local[*]"
DRIVER_MEMORY = "1g"
EXECUTOR_WAIT_S = 60.0
_LOOPBACK = "127.0.0.1"
_LOCAL_SHUFFLE_PARTITIONS = "8"
_SECRET = re.compile("secret|password|token|credential|access.?key", re.IGNORECASE)
"""Names of settings whose values are kept out of the arguments of a process."""

_JARS_OF_CLASS = {
    "org.apache.spark.sql.kafka010.KafkaSourceProvider": (
        "spark-sql-kafka-",
        "spark-token-provider-kafka-",
        "kafka-clients-",
        "commons-pool2-",
    ),
    "io.delta.sql.DeltaSparkSessionExtension": ("delta-", "unitycatalog-"),
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions": ("iceberg-",),
}
"""Starts of the names of the jars that belong together, by a class that one of them has."""


class TaskCounts(NamedTuple):
    """Tasks of the stages that run at one moment.

    Attributes:
        stages: number of stages that run; 0 between jobs.
        done: number of their tasks that have ended.
        running: number of their tasks that run.
        total: number of their tasks.
    """

    stages: int
    done: int
    running: int
    total: int


class SparkView(Protocol):
    """Shows what a session does; called from another thread."""

    def serving(self, url: str) -> None:
        """Shows where Spark's UI is."""
        ...

    def tasks(self, counts: TaskCounts) -> None:
        """Shows the running stages; called at each change, and with zeros when they have ended."""
        ...


@dataclass(frozen=True)
class SparkOptions:
    """The options of a Spark session.

    Attributes:
        jars: local files of the Kafka source (`connectors.local.jars.spark_jars()`), and of table
            formats. A process that spark-submit started with a Kafka source or a table format of
            its own keeps that one.
        master: Spark master URL; by default spark-submit's, else all cores of this machine.
        app_name: application name in Spark's logs; spark-submit's goes first.
        shuffle_partitions: number of tasks after a shuffle, >= 1; adaptive execution merges small
            ones. By default 8 on this machine, Spark's own number on a cluster.
        driver_memory: heap of the driver's JVM, in Java's notation; no effect after spark-submit,
            which has an option for it.
        java_options: more options of the driver's JVM, space-separated.
        settings: settings of Spark by name; they go before all else.
        ui: whether Spark's UI is served: of a local session on loopback, of a cluster's where Spark
            serves it.
        view: receives the tasks of running stages, and the address of the UI.
        executor_wait_s: on a cluster, how long tasks may wait for an executor that takes one, > 0;
            after that their job fails.
    """

    jars: Sequence[Path] = ()
    master: str | None = None
    app_name: str = "stilltide"
    shuffle_partitions: int | None = None
    driver_memory: str = DRIVER_MEMORY
    java_options: str = ""
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    ui: bool = False
    view: SparkView | None = None
    executor_wait_s: float = EXECUTOR_WAIT_S


def is_local(master: str) -> bool:
    """Whether a session of this master runs its tasks in the driver's own JVM."""
    return master == "local" or master.startswith("local[")


def asked(options: SparkOptions) -> dict[str, str]:
    """The settings that the caller asked for, which go before spark-submit's."""
    settings = {"spark.master": options.master or ""}
    if options.shuffle_partitions is not None:
        settings["spark.sql.shuffle.partitions"] = str(options.shuffle_partitions)
    if options.ui:
        settings["spark.ui.enabled"] = "true"
    return {name: value for name, value in settings.items() if value} | dict(options.settings)


def arguments(options: SparkOptions) -> dict[str, str]:
    """The settings in the arguments of a JVM of ours, without secrets, which others could read."""
    return {name: it for name, it in launched(options).items() if not _SECRET.search(name)}


def launched(options: SparkOptions) -> dict[str, str]:
    """The settings of a session with a JVM of ours; some have no effect on a JVM that runs."""
    jars = [str(jar) for jar in options.jars]
    if more := options.settings.get("spark.jars"):
        jars.append(more)
    settings = {
        "spark.master": LOCAL_MASTER,
        "spark.driver.memory": options.driver_memory,
        "spark.driver.extraJavaOptions": options.java_options,
        **asked(options),
        "spark.jars": ",".join(jars),
    }
    return {name: value for name, value in settings.items() if value}


def jars_to_add(jars: Sequence[Path], has_class: Callable[[str], bool]) -> list[Path]:
    """The jars that a driver's class path lacks: a Kafka source or table format is not added twice.

    Args:
        jars: of `SparkOptions`.
        has_class: whether the class path has a class.
    """
    there = [
        start for name, starts in _JARS_OF_CLASS.items() if has_class(name) for start in starts
    ]
    return [jar for jar in jars if not jar.name.startswith(tuple(there))]


def defaults(options: SparkOptions, master: str, scratch: Path) -> dict[str, str]:
    """The settings that hold where neither the caller nor spark-submit has one.

    Args:
        options: the options.
        master: the master that the session has.
        scratch: a directory of the session's own.
    """
    settings = {
        "spark.app.name": options.app_name,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if is_local(master):
        settings |= {
            "spark.driver.host": _LOOPBACK,
            "spark.driver.bindAddress": _LOOPBACK,
            "spark.local.dir": str(scratch),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.sql.shuffle.partitions": _LOCAL_SHUFFLE_PARTITIONS,
        }
    return settings


def environment(options: SparkOptions) -> dict[str, str]:
    """Variables that a JVM of ours gets unless the process has them."""
    master = asked(options).get("spark.master", LOCAL_MASTER)
    # The UI asks nobody who they are, and this variable alone tells it where to listen.
    return {"SPARK_LOCAL_IP": _LOOPBACK} if options.ui and is_local(master) else {}
