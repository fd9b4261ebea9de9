"""Writers of several tables in one process: `python -m ... WAREHOUSE BROKER TOPIC TABLE...`.

A JVM takes longer to start than a table takes to be written to, so a campaign of kills starts one
for all tables, and in advance. The program prints a line when its session is ready, waits for
SIGUSR1, and then prints `TABLE NUMBER` for each batch until it is killed. Each table has a thread,
which does what `stilltide table follow` does.

With `ONCE=1` it ends when everything is stored.
"""

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

from pyspark.sql import SparkSession

from stilltide.connectors.kafka.config import Cluster
from stilltide.connectors.spark.session import spark_session
from stilltide.pipeline.jobs.tables.append import Appender, Appending, StoredBatch
from stilltide.pipeline.jobs.tables.target import opened_table, parse_target
from stilltide.schemas.tables.progress import TableProgress
from tests.support.spark.lakehouses import lakehouse_options

RECORDS_MAX, EVERY_S = 9, 0.1
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


def main() -> None:
    """Waits for the signal, and writes."""
    warehouse, bootstrap, topic, *places = sys.argv[1:]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    options = lakehouse_options(Path(warehouse))
    options = replace(options, java_options=FAST_START, settings={**options.settings, **FEW_TASKS})
    with spark_session(options) as spark:
        warm_up(spark, places)
        os.write(1, b"ready\n")
        signal.sigwait({signal.SIGUSR1})
        writers = [Writer(spark, bootstrap, [topic], place) for place in places]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()


if __name__ == "__main__":
    main()
