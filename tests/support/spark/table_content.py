"""Tables and what an audit sees: `python -m ... WAREHOUSE BROKER TOPIC TABLE...`, prints JSON."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from stilltide.connectors.spark.session import spark_session
from stilltide.pipeline.jobs.tables.target import parse_target
from tests.support.spark.lakehouses import lakehouse_options, read_table
from tests.support.spark.tables import Content, audited, held


def total(found: Iterable[Content]) -> dict[str, object]:
    """Of all partitions."""
    contents = list(found)
    digest = str(sum(it.digest for it in contents))
    return {"records": sum(it.records for it in contents), "digest": digest}


def main() -> None:
    """Prints the content of each table; fails if a record is in a table twice."""
    warehouse, bootstrap, topic, *places = sys.argv[1:]
    with spark_session(lakehouse_options(Path(warehouse))) as spark:
        found = {
            place: total(held(read_table(spark, parse_target(place))).values()) for place in places
        }
        found["audited"] = total(audited(bootstrap, [topic]).values())
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
