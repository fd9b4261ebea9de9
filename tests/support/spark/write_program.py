"""`python -m tests.support.spark.write_program BOOTSTRAP TOPIC PROGRESS ROWS KILL FAIL`: one batch.

Writes rows with keys 0..ROWS-1 as the batch 7 by `stilltide.spark.write`. With KILL=`after:NAME` or
`before:NAME` the process, and with it Spark's JVM, is killed there; NAME is the class of an effect.
With FAIL the first attempt of a task fails after rows were sent; FAIL is a file that tells the
second attempt. Prints `True` or `False`, as `write` returns.
"""

import os
import signal
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.connectors.local.jars import spark_jars
from stilltide.connectors.spark.options import SparkOptions
from stilltide.connectors.spark.session import spark_session
from stilltide.pipeline.core.coordinator.batch_write import BatchEffect
from stilltide.pipeline.jobs import write as job

BATCH = 7
POINTS = ("WriteRecords", "KeepToken", "PrepareOpen", "KeepDecision", "EndDecided", "KeepEnd")
"""Effects of a call that nothing disturbs, in order, behind `ReadFiles`."""


class _DyingWriting(job._Writing):
    point = ""

    def _result(self, effect: BatchEffect) -> object:
        when, _, name = self.point.partition(":")
        here = type(effect).__name__ == name
        if here and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = super()._result(effect)
        if here and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result


def rows(spark: SparkSession, count: int, fail: Path | None) -> DataFrame:
    """The batch; the first task that comes to the last row fails.

    Rows pass through Python a hundred at a time, so those of the batches before are sent by then.
    """
    frame = spark.range(0, count, 1, 2).select(F.col("id").cast("string").alias("key"), "id")

    def value(number: int) -> str:
        if fail is not None and number == count - 1 and not fail.exists():
            fail.touch()
            raise ValueError("the task fails once")
        return f"value-{number}"

    return frame.select("key", F.udf(value)("id").alias("value"))


def main(*arguments: str) -> None:
    """Writes the batch."""
    bootstrap, topic, progress, count, kill, fail = arguments
    _DyingWriting.point = kill
    job._Writing = _DyingWriting
    options = SparkOptions(
        jars=spark_jars(), master="local[2,4]", java_options="-XX:TieredStopAtLevel=1"
    )
    with spark_session(options) as spark:
        frame = rows(spark, int(count), Path(fail) if fail else None)
        written = job.write(
            frame, bootstrap, topic=topic, progress=progress, batch_id=BATCH, timeout_s=20
        )
        sys.stdout.write(f"{written}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
