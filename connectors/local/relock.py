"""Writes the locks: `python -m stilltide.connectors.local.relock [VERSION ...]`, with Maven.

By default writes all: `jars.lock`, a `jars-VERSION.lock` for each other version of Kafka, and a
`jars-spark-VERSION.lock` for each version of Spark, which is named `spark-VERSION` here. Resolves
the dependencies of the roots below once, so that no user's machine resolves any.
"""

import hashlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from stilltide.connectors.local.jars import (
    KAFKA_VERSIONS,
    MAVEN_PLUGIN,
    PINNED_VERSION,
    SPARK_VERSIONS,
    Coordinate,
    lock_path,
    run_tool,
    spark_lock_path,
    write_pom,
)

LOG4J = "2.25.3"
LOGGING = [
    # log4j-slf4j-impl, not -slf4j2-: Kafka's POMs bring slf4j 1.
    f"org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J}",
    f"org.apache.logging.log4j:log4j-core:{LOG4J}",
]
ROOTS = {
    "broker": ["org.apache.kafka:kafka_2.13:4.4.0", *LOGGING],
    # MirrorMaker 2, for measurements; Maven Central has none of 4.4.
    "mirror": ["org.apache.kafka:connect-mirror:4.3.1", *LOGGING],
    # Kafka's command line, for tests; its dependencies are those of the broker.
    "tools": ["org.apache.kafka:kafka-tools:4.4.0"],
    # Other people's readers, for tests. The dependencies of the first are those of the broker, but
    # for stores on disk, those of the second are in `mirror`.
    "streams": ["org.apache.kafka:kafka-streams:4.4.0"],
    "connect": ["org.apache.kafka:connect-file:4.3.1"],
    "flink": [
        "org.apache.flink:flink-streaming-java:2.2.1",
        "org.apache.flink:flink-clients:2.2.1",
        "org.apache.flink:flink-connector-base:2.2.1",
        "org.apache.flink:flink-connector-kafka:5.0.0-2.2",
        *LOGGING,
    ],
}
OTHER_VERSIONS = {
    "3.9": ["org.apache.kafka:kafka_2.13:3.9.2", *LOGGING],
    "4.0": ["org.apache.kafka:kafka_2.13:4.0.2", *LOGGING],
    "4.3": ["org.apache.kafka:kafka_2.13:4.3.1", *LOGGING],
}
"""Roots of the set `broker` in the lock of each version that is tested beside the pinned one."""

SPARK_ROOTS = {
    # kafka-clients 3.9.0, which the connector asks for, has CVE-2025-27817 and -27818.
    "4.0": {
        "spark": [
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
            "org.apache.kafka:kafka-clients:3.9.1",
            "org.apache.spark:spark-avro_2.13:4.0.0",
        ],
        "delta": ["io.delta:delta-spark_2.13:4.0.1"],
        "iceberg": ["org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0"],
    },
    "4.1": {
        "spark": [
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1",
            "org.apache.spark:spark-avro_2.13:4.1.1",
        ],
        "delta": ["io.delta:delta-spark_4.1_2.13:4.4.0"],
        "iceberg": ["org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"],
    },
    "4.2": {
        "spark": [
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
            "org.apache.spark:spark-avro_2.13:4.2.0",
        ],
        "delta": ["io.delta:delta-spark_4.2_2.13:4.4.0"],
    },
}
"""Roots of the sets of each release line of Spark: the Kafka source and Spark's Avro, and the table
formats that `stilltide table follow` writes and that support the line, each in addition."""

SPARK_NEEDS = {
    "spark-avro_2.13",
    "spark-sql-kafka-0-10_2.13",
    "spark-token-provider-kafka-0-10_2.13",
    "kafka-clients",
    "commons-pool2",
}
"""What pyspark does not contain of the connector's dependencies, and of Spark's Avro."""

KEPT = {
    "spark": SPARK_NEEDS,
    "tools": {"kafka-tools"},
    "streams": {"kafka-streams"},
    "connect": {"connect-file"},
    "delta": {  # pyspark contains the rest
        "delta-spark_2.13",
        "delta-spark_4.1_2.13",
        "delta-spark_4.2_2.13",
        "delta-storage",
        "delta-kernel-api",
        "delta-kernel-defaults",
        "delta-kernel-unitycatalog",
        "unitycatalog-client",
        "unitycatalog-hadoop",
    },
    "iceberg": {"iceberg-spark-runtime-4.0_2.13", "iceberg-spark-runtime-4.1_2.13"},
}
"""The artifacts that are kept of a set; of the other sets all are."""

_ONLY_CENTRAL = """<settings><mirrors><mirror>
<id>central-for-all</id><mirrorOf>external:*,!central</mirrorOf>
<url>https://repo.maven.apache.org/maven2</url>
</mirror></mirrors></settings>
"""
"""Spark's POMs name a repository of their own, which not every network reaches."""

_SPARK = "spark-"
_HEADER = (
    "# sha256  group:artifact:version; written by `python -m stilltide.connectors.local.relock`\n"
)


def main() -> None:
    """Writes the locks of the versions that the command line names, by default all."""
    for version in sys.argv[1:] or (*KAFKA_VERSIONS, *(f"{_SPARK}{one}" for one in SPARK_VERSIONS)):
        if version.startswith(_SPARK):
            line = version.removeprefix(_SPARK)
            path, sets = spark_lock_path(line), SPARK_ROOTS[line]
        else:
            path = lock_path(version)
            sets = ROOTS if version == PINNED_VERSION else {"broker": OTHER_VERSIONS[version]}
        path.write_text(_HEADER + "".join(_section(name, roots) for name, roots in sets.items()))


def _section(name: str, roots: Sequence[str]) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        pom, listing = directory / "pom.xml", directory / "list"
        settings = directory / "settings.xml"
        settings.write_text(_ONLY_CENTRAL)
        write_pom(pom, [Coordinate.parse(root) for root in roots], transitive=True)
        common = ["mvn", "-B", "-q", "-gs", str(settings), "-f", str(pom)]
        common.append("-DincludeScope=runtime")
        run_tool(
            [*common, f"{MAVEN_PLUGIN}:copy-dependencies", f"-DoutputDirectory={directory}"],
            directory,
        )
        run_tool([*common, f"{MAVEN_PLUGIN}:list", f"-DoutputFile={listing}"], directory)
        lines: list[str] = []
        for coordinate in _listed(listing.read_text()):
            if name in KEPT and coordinate.artifact not in KEPT[name]:
                continue
            jar = (directory / coordinate.file_name).read_bytes()
            lines.append(f"{hashlib.sha256(jar).hexdigest()}  {coordinate}\n")
    return f"\n[{name}]\n" + "".join(sorted(lines, key=lambda line: line.split()[1]))


def _listed(text: str) -> list[Coordinate]:
    # A line is `group:artifact:jar:version:scope`, perhaps followed by ` -- module ...`.
    parts = [line.split(" -- ")[0].strip().split(":") for line in text.splitlines()]
    return [Coordinate(part[0], part[1], part[3]) for part in parts if part[2:3] == ["jar"]]


if __name__ == "__main__":
    main()
