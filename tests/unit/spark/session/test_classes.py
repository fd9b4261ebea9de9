"""The JVMs of the tests have Spark's classes from an archive, if it fits."""

import os
import subprocess
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from stilltide.connectors.local.java import find_java
from tests.support.spark.classes import OPTIONS, options_with, place_of, spark_archive


def test_the_jvm_has_its_classes_from_the_archive(spark: SparkSession):
    """The JVM maps the archive, which each run of several processes has."""
    jvm: Any = spark.sparkContext._gateway
    maps = Path(f"/proc/{jvm.proc.pid}/maps").read_text()
    is_given = options_with(spark_archive()) == os.environ[OPTIONS]
    assert is_given or "PYTEST_XDIST_WORKER" not in os.environ
    assert is_given == (str(spark_archive()) in maps)


def test_a_jvm_starts_without_an_archive_that_fits(tmp_path: Path):
    """A part of an archive is no hindrance, and the JVM says nothing about it."""
    (tmp_path / "part").write_bytes(b"part")
    for name in ("part", "missing"):
        command = [find_java().path, *options_with(tmp_path / name).split(), "-version"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout == ""
        assert "archive" not in done.stderr


def test_another_java_and_another_spark_have_another_archive(tmp_path: Path):
    """Also under the same names, after an upgrade."""
    java, jar = tmp_path / "java", tmp_path / "spark.jar"
    java.touch()
    jar.touch()
    places = {place_of(java, jar)}
    for file in (java, jar):
        os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
        places.add(place_of(java, jar))
    assert len(places) == 3
