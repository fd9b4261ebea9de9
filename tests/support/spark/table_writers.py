"""Writers of several tables in one process: `python -m ... WAREHOUSE BROKER TOPIC TABLE...`.

A JVM takes longer to start than a table takes to be written to, so a campaign of kills starts one
for all tables, and in advance. The program prints a line when its session is ready, waits for
SIGUSR1, and then prints `TABLE NUMBER` for each batch until it is killed. Each table has a thread,
which does what `stilltide table follow` does.

With `ONCE=1` it ends when everything is stored; `RECORDS_MAX=10000` sets the size of a batch.

With `CLASSES=FILE` the JVM has its classes from a file, which takes half the processor time to
be ready. The first process makes the file: with `CLASSES_MADE=1` it does that when it is ready, and
ends.
"""

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

from pyspark.sql import SparkSession

from stilltide.connectors.kafka.config import Cluster
from stilltide.connectors.spark.session import SparkOptions, spark_session
from stilltide.pipeline.jobs.tables.append import Appender, Appending, StoredBatch
from stilltide.pipeline.jobs.tables.target import opened_table, parse_target
from stilltide.schemas.tables.progress import TableProgress
from tests.support.spark.classes import OPTIONS
from tests.support.spark.lakehouses import lakehouse_options

RECORDS_MAX, EVERY_S = int(os.environ.get("RECORDS_MAX", "9")), 0.1
END_S = 600
FAST_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
FEW_TASKS = {"spark.databricks.delta.snapshotPartitions": "1"}
"""Delta reads its log by 50 tasks each time, which take longer than everything else here."""


class Writer(Thread):
    """Follows into one table; an error ends the process, as it ends the command."""

    def __init__(
        self, spark: SparkSession, cluster: Cluster, topics: Sequence[str], place: str
    ) -> None:
        super().__init__()
        self._spark = spark
        self._place = place
        self._what = Appending(cluster, topics, RECORDS_MAX)

    def run(self) -> None:
        """Appends again and again."""
        try:
            self._follow(is_once="ONCE" in os.environ)
        except BaseException:  # noqa: BLE001 - the whole process ends, whatever it is
            traceback.print_exc()
            os._exit(1)

    def _follow(self, *, is_once: bool) -> None:
        never = Event()
        with (
            opened_table(self._spark, parse_target(self._place)) as table,
            Appender(self._spark, table, self._what) as appender,
        ):
            appender.append(self._say)
            while not is_once:
                never.wait(EVERY_S)
                appender.append(self._say)

    def _say(self, batch: StoredBatch) -> None:
        os.write(1, f"{self._place} {batch.progress.number}\n".encode())


def warm_up(spark: SparkSession, places: Sequence[str]) -> None:
    """Writes to tables beside the others: the first batch of a JVM takes as long as ten more."""
    for place in places:
        target = parse_target(f"{place}_{os.getpid()}")
        with opened_table(spark, target) as table:
            table.load()
            table.append(spark.range(1), TableProgress(1, {}, {}))


def writer_options(warehouse: Path) -> SparkOptions:
    """Of a session whose JVM starts fast."""
    options = lakehouse_options(warehouse)
    java, settings, jars = FAST_START, {**options.settings, **FEW_TASKS}, options.jars
    if classes := os.environ.get("CLASSES"):
        made = "CLASSES_MADE" in os.environ
        java += f" -XX:{'ArchiveClassesAtExit' if made else 'SharedArchiveFile'}={classes}"
        # Java keeps the classes of its class path, not those that Spark would load by itself.
        settings["spark.driver.extraClassPath"] = os.pathsep.join(map(str, jars))
        jars = ()
    return replace(options, java_options=java, settings=settings, jars=jars)


def end_jvm(jvm: Any) -> None:
    """Ends a JVM whose session has ended, and waits for the end."""
    jvm.proc.stdin.close()
    assert jvm.proc.wait(END_S) == 0


def write(spark: SparkSession, cluster: Cluster, topic: str, places: Sequence[str]) -> None:
    """Writes from the signal on."""
    signal.sigwait({signal.SIGUSR1})
    writers = [Writer(spark, cluster, [topic], place) for place in places]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()


def main() -> None:
    """Waits for the signal, and writes; or makes the file of classes."""
    warehouse, bootstrap, topic, *places = sys.argv[1:]
    os.environ.pop(OPTIONS, None)  # this JVM has other options, and a class path of its own
    is_made = "CLASSES_MADE" in os.environ
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    with spark_session(writer_options(Path(warehouse))) as spark:
        jvm = spark.sparkContext._gateway
        warm_up(spark, places)
        os.write(1, b"ready\n")
        if not is_made:
            write(spark, bootstrap, topic, places)
    if is_made:
        end_jvm(jvm)


if __name__ == "__main__":
    main()
