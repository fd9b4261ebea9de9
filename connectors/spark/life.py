"""Whether the JVM of a Spark session lives.

Python learns of a JVM's end only when it asks the JVM for something, and py4j's own error is a
stack.

*Invariants*: a JVM that has ended is a `FatalError` of one sentence.
"""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.sql import SparkSession

from stilltide.connectors.errors import FatalError


@contextmanager
def while_spark_lives() -> Generator[None]:
    """Gives the end of Spark's JVM one sentence; to be put around the block of a session.

    Raises:
        FatalError: the JVM has ended, by a signal or for lack of memory.
    """
    root = logging.getLogger()
    root.addFilter(_is_not_of_dead_jvm)
    try:
        yield
    except (ConnectionError, Py4JNetworkError) as error:
        raise _ended() from error
    finally:
        root.removeFilter(_is_not_of_dead_jvm)


def check_spark_lives(spark: SparkSession) -> None:
    """Asks the session's JVM for a sign of life; a JVM that is stopped never answers.

    Raises:
        FatalError: the JVM has ended.
    """
    jvm: Any = spark._jvm  # noqa: SLF001 - no public call of PySpark asks the JVM and nothing else
    try:
        jvm.java.lang.System.nanoTime()
    except (OSError, Py4JError) as error:
        raise _ended() from error


def _is_not_of_dead_jvm(record: logging.LogRecord) -> bool:
    """Whether a line is not py4j's own, with a stack, about a JVM that does not answer."""
    return record.msg != "Exception while sending command."


def _ended() -> FatalError:
    return FatalError(
        "spark's JVM has ended",
        detail="it was killed, or the machine had no memory left",
        hint="start the command again: it goes on from what is stored",
    )
