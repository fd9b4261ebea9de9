"""A table and what an audit sees: `python -m ... delta:PATH [BROKER TOPIC]`, prints JSON."""

import json
import sys
from collections.abc import Iterable

from stilltide.connectors.spark.session import SparkOptions, spark_session
from stilltide.pipeline.jobs.tables.target import parse_target, table_session_options
from tests.support.spark.lakehouses import read_table
from tests.support.spark.tables import Content, audited, held


def total(found: Iterable[Content]) -> dict[str, object]:
    """Of all partitions."""
    contents = list(found)
    digest = str(sum(it.digest for it in contents))
    return {"records": sum(it.records for it in contents), "digest": digest}


def main() -> None:
    """Prints both; fails if a record is in the table twice."""
    target, where = parse_target(sys.argv[1]), sys.argv[2:]
    with spark_session(table_session_options(target, SparkOptions(master="local[2]"))) as spark:
        found = {"content": total(held(read_table(spark, target)).values())}
        if where:
            bootstrap, topic = where
            found["audited"] = total(audited(bootstrap, [topic]).values())
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
