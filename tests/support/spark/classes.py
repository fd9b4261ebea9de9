"""Spark's JVMs of a run of the tests start fast: options, and an archive of Spark's classes.

Every JVM that PySpark starts has the options of SPARK_SUBMIT_OPTS, in the processes that tests
start, too. A session and its first queries take less than half of the processor time with them.

*Invariants*: an archive bears the name of what it is made of, Java and PySpark's jars, so another
Java and another PySpark have archives of their own; one that was written in part is never at its
place. A JVM ignores an archive that does not fit it, without a word.

`python -m tests.support.spark.classes FILE` makes an archive.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stilltide.connectors.local.errors import JavaMissingError
from stilltide.connectors.local.java import find_java
from tests.support.processes.child import ROOT

OPTIONS = "SPARK_SUBMIT_OPTS"
"""The variable that Spark's launcher reads."""

FAST_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""A JVM with another class path would print that the archive does not fit."""

END_S = 600


def spark_archive() -> Path:
    """The place of the archive of Spark's classes; there may be none yet."""
    program = find_java().path.resolve()
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    jars = sorted(Path(spec.origin).with_name("jars").iterdir())
    return place_of(program, *jars)


def place_of(*files: Path) -> Path:
    """The place of the archive that is made of these files, as they are now."""
    made_of = [(str(path), path.stat().st_mtime_ns) for path in files]
    name = hashlib.sha256(repr(made_of).encode()).hexdigest()[:16]
    return ROOT / "build" / "classes" / f"{name}.jsa"


def start_making() -> subprocess.Popen[bytes] | None:
    """A process that makes the archive; None if there is one."""
    path = spark_archive()
    if path.exists():
        return None
    return subprocess.Popen([sys.executable, "-m", __name__, str(path)])


def use_fast_start() -> None:
    """Gives the options to this process's JVM, and to those of all processes that it starts."""
    try:
        archive = spark_archive()
    except JavaMissingError:  # a test that needs Java says so
        return
    os.environ[OPTIONS] = options_with(archive) if archive.exists() else FAST_START


def options_with(archive: Path) -> str:
    """The options of a JVM that has its classes from an archive, if the archive fits."""
    return f"{FAST_START} {SILENT} -XX:SharedArchiveFile={archive}"


def main() -> None:
    """Makes the archive: of the classes of a session that has written, read and joined."""
    path = Path(sys.argv[1]).resolve()  # the JVM works in another directory
    path.parent.mkdir(parents=True, exist_ok=True)
    # Next to its place, because a rename is atomic only within one file system.
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        os.environ[OPTIONS] = f"{FAST_START} -XX:ArchiveClassesAtExit={made}"
        _work(folder)
        made.replace(path)


def _work(folder: str) -> None:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - only this process needs PySpark

    from tests.support.spark.session import local_spark  # noqa: PLC0415 - as above

    with local_spark() as spark:
        jvm: Any = spark.sparkContext._gateway
        rows = spark.range(1000).withColumn("part", F.col("id") % 7)
        rows.write.parquet(f"{folder}/rows")
        known = spark.createDataFrame([(1, b"one"), (2, b"two")], "part long, value binary")
        read = spark.read.parquet(f"{folder}/rows")
        read.join(F.broadcast(known), "part").groupBy("part").agg(F.count("*")).collect()
        read.mapInArrow(lambda batches: batches, read.schema).toPandas()
    jvm.proc.stdin.close()
    assert jvm.proc.wait(END_S) == 0


if __name__ == "__main__":
    main()
