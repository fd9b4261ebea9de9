"""The locks of what is shipped."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CLIENT_LOCK = ROOT / "requirements.client.lock"
WORKER_LOCK = ROOT / "requirements.worker.lock"
SPARK_LOCK = ROOT / "requirements.spark.lock"

_PIN = re.compile(r"^([\w.-]+)==([^\s;]+)", re.MULTILINE)
_JAR = re.compile(r"^([0-9a-f]{64})  ([\w.-]+):([\w.-]+):([\w.-]+)$", re.MULTILINE)


class Jar(NamedTuple):
    """A jar of the image for Spark."""

    sha256: str
    group: str
    artifact: str
    version: str


def pins(lock: Path) -> dict[str, str]:
    """The versions of the packages in a lock; of several for several Pythons, with commas."""
    found: dict[str, list[str]] = {}
    for name, version in _PIN.findall(lock.read_text()):
        found.setdefault(name, []).append(version)
    return {name: ", ".join(versions) for name, versions in sorted(found.items())}


def spark_jars() -> list[Jar]:
    """The jars that the image for Spark holds besides those of PySpark."""
    line = pins(SPARK_LOCK)["pyspark"].rpartition(".")[0]
    lock = ROOT / "connectors/local" / f"jars-spark-{line}.lock"
    return [Jar(*found) for found in _JAR.findall(lock.read_text())]
