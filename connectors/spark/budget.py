"""How outcomes reach the tasks of Spark: as a broadcast, by a shuffle, or not at all.

A broadcast is the fastest join, but every executor holds all outcomes at once, and so does the
driver while it makes the hash table. A shuffle gives each task a part, and may use disk.

*Invariants*: rows and heap alone decide, before any job begins.
"""

import re
from typing import Any

from pyspark.sql import SparkSession

from stilltide.connectors.errors import FatalError

BROADCAST_ROW_BYTES = 320
"""Heap for an outcome of a broadcast: its Arrow form, its row, and its place in the hash table, the
last two for a moment also in transit."""

SHUFFLE_ROW_BYTES = 90
"""Heap for an outcome of a shuffle: its Arrow form in the driver, and what is in transit."""

BROADCAST_SHARE, SHUFFLE_SHARE = 0.4, 0.6
"""Shares of the heap for outcomes; Spark keeps 300 MB and 40 % of the rest from its own data."""

_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"(\d+)\s*([bkmgt]?)b?", re.IGNORECASE)
_EXECUTOR_MEMORY = "spark.executor.memory"


def must_shuffle(spark: SparkSession, rows: int) -> bool:
    """Whether this many outcomes are shuffled, since some heap could not hold a broadcast of them.

    Raises:
        FatalError: the heap holds neither; names rows and heap.
    """
    driver, smallest = heaps(spark)
    if rows * BROADCAST_ROW_BYTES <= smallest * BROADCAST_SHARE:
        return False
    if rows * SHUFFLE_ROW_BYTES > driver * SHUFFLE_SHARE:
        needed = _mib(rows * SHUFFLE_ROW_BYTES / SHUFFLE_SHARE)
        quick = _mib(rows * BROADCAST_ROW_BYTES / BROADCAST_SHARE)
        raise FatalError(
            f"{rows} outcomes of transactions do not fit into a driver with {_mib(driver)} of heap",
            detail=f"they need {needed}, and {quick} to be broadcast",
            hint="give the driver more (--driver-memory, spark-submit --driver-memory), read fewer"
            " partitions at once, or take a snapshot first: it absorbs outcomes",
        )
    return True


def heaps(spark: SparkSession) -> tuple[int, int]:
    """Bytes of the driver's heap, and of the smallest heap of driver and executors."""
    jvm: Any = spark._jvm  # noqa: SLF001 - the heap has no public form in Python
    driver = int(jvm.java.lang.Runtime.getRuntime().maxMemory())
    context = spark.sparkContext
    if str(context.master).startswith("local"):
        return driver, driver
    asked = _SIZE.fullmatch(context.getConf().get(_EXECUTOR_MEMORY, "1g") or "1g")
    executor = int(asked[1]) * _UNITS[asked[2].lower()] if asked else driver
    return driver, min(driver, executor)


def _mib(size: float) -> str:
    return f"{size / 2**20:.0f} MiB"
