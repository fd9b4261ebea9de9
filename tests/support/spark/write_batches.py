"""`python -m tests.support.spark.write_batches BOOTSTRAP TOPIC PROGRESS PLACE BATCHES`: a driver.

Writes the batches 0..BATCHES-1 by `stilltide.spark.write`, on executors that are processes of their
own. Before and after each effect of a call the driver prints `at WHEN EFFECT BATCH` and waits for a
line. While the file `hold` is in PLACE, the first task that comes to the end of its rows writes its
process's number to `held` and waits until `hold` is gone: its other rows are sent by then. Prints
`written BATCH True` or `False`, as `write` returns, after each batch.
"""

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.connectors.local.jars import spark_jars
from stilltide.connectors.spark.options import SparkOptions
from stilltide.connectors.spark.session import spark_session
from stilltide.pipeline.core.coordinator.batch_write import BatchEffect
from stilltide.pipeline.jobs import write as job
from tests.support.looks import block_between_looks
from tests.support.processes.child import ROOT
from tests.support.spark.cluster import FAST_START

ROWS = 300
"""Rows of a batch."""

TASKS = 2

TIMEOUT_S = 60
"""Time-out of the transactions."""


class _AskingWriting(job._Writing):
    batch = 0

    def _result(self, effect: BatchEffect) -> object:
        name = type(effect).__name__
        _ask(f"at before {name} {self.batch}")
        result = super()._result(effect)
        _ask(f"at after {name} {self.batch}")
        return result


def _ask(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    if not sys.stdin.readline():
        os._exit(1)  # whoever decides how this process ends is gone


def frame_of(spark: SparkSession, batch: int, place: str) -> DataFrame:
    """The rows of a batch: keys `BATCH-NUMBER`."""

    def value(number: int) -> str:
        hold = Path(place, "hold")
        if number % (ROWS // TASKS) == ROWS // TASKS - 1 and hold.exists():
            held = Path(place, "held")
            if not held.exists():
                part = held.with_suffix(f".{os.getpid()}")
                part.write_text(str(os.getpid()))
                part.rename(held)
            while hold.exists():
                block_between_looks()
        return f"value-{number}"

    key = F.concat(F.lit(f"{batch}-"), F.col("id").cast("string")).alias("key")
    numbers = spark.range(0, ROWS, 1, TASKS)
    return numbers.select(key, F.udf(value)("id").cast("binary").alias("value"))


def main(*arguments: str) -> None:
    """Writes the batches in order."""
    bootstrap, topic, progress, place, batches = arguments
    job._Writing = _AskingWriting
    here = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": FAST_START,
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.task.maxFailures": "8",
        # Batches that lose executors on and on are what this program is for.
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.python.worker.reuse": "true",
    }
    options = SparkOptions(
        jars=spark_jars(),
        master=f"local-cluster[{TASKS},1,512]",
        java_options=FAST_START,
        settings=here,
    )
    with spark_session(options) as spark:
        for batch in range(int(batches)):
            _AskingWriting.batch = batch
            written = job.write(
                frame_of(spark, batch, place),
                bootstrap,
                topic=topic,
                progress=progress,
                batch_id=batch,
                timeout_s=TIMEOUT_S,
                tries=8,
            )
            sys.stdout.write(f"written {batch} {written}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
