"""Number and digest of the records of a table: `python -m ... delta:PATH`, prints JSON."""

import json
import sys

from stilltide.connectors.spark.session import SparkOptions, spark_session
from stilltide.pipeline.jobs.tables.target import parse_target, table_session_options
from tests.support.spark.lakehouses import read_table
from tests.support.spark.tables import held


def main() -> None:
    """Prints the content; fails if a record is there twice."""
    target = parse_target(sys.argv[1])
    with spark_session(table_session_options(target, SparkOptions(master="local[2]"))) as spark:
        found = held(read_table(spark, target)).values()
    content = {
        "records": sum(it.records for it in found),
        "digest": str(sum(it.digest for it in found)),
    }
    sys.stdout.write(json.dumps({"content": content}) + "\n")


if __name__ == "__main__":
    main()
