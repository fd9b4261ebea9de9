"""The locks of what is shipped."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CLIENT_LOCK = ROOT / "requirements.client.lock"
WORKER_LOCK = ROOT / "requirements.worker.lock"
SPARK_LOCK = ROOT / "requirements.spark.lock"
JARS_LOCK = ROOT / "connectors/local/jars.lock"

_JAR_SETS = ("spark", "delta", "iceberg")

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
    text = JARS_LOCK.read_text()
    sections = (text.partition(f"\n[{name}]\n")[2].partition("\n[")[0] for name in _JAR_SETS)
    return [Jar(*found) for section in sections for found in _JAR.findall(section)]
