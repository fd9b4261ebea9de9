"""`python -m tests.bench [case ...]`: runs the named cases, or all."""

import asyncio
import importlib
import sys

from stilltide.pipeline.cli.common.output import say

CASES = {
    "writer": "writer",
    "transactions": "commits.transactions",
    "way": "commits.way",
    "tracing": "commits.tracing",
    "two_phase": "databases.two_phase",
    "brokers": "commits.brokers",
    "acknowledgements": "acknowledgements",
    "recovery": "startup.recovery",
    "consume_transform_produce": "consume_transform_produce",
    "snapshots": "snapshots",
    "markers": "markers",
    "reader": "reader",
    "spark_filter": "spark.spark_filter",
    "spark_outcomes": "spark.spark_outcomes",
    "spark_stream": "spark.spark_stream",
    "spark_write": "spark.spark_write",
    "audit": "spark.audit",
    "batch_filter": "batch_filter",
    "replication": "replication.link",
    "in_flight": "replication.in_flight",
    "publish": "replication.publish",
    "exact": "replication.exact",
    "failover": "replication.failover",
    "disaster": "replication.disaster",
    "sync_latency": "replication.sync_latency",
    "translate": "replication.translate",
    "rest": "scale.rest",
    "scale": "scale.scale",
    "startup": "startup.startup",
    "startup_markers": "startup.startup_markers",
    "retention": "commits.retention",
    "compacted": "startup.compacted",
    "console": "console",
    "compose": "scale.compose",  # last: it fails without a Docker engine
}
"""The module of each case, below `tests.bench`."""


def main(names: list[str]) -> int:
    """Runs the cases; returns the exit code."""
    unknown = [name for name in names if name not in CASES]
    if unknown:
        say(f"unknown case {unknown[0]!r}; there are: {', '.join(CASES)}")
        return 2
    for name in names or CASES:
        asyncio.run(importlib.import_module(f"tests.bench.{CASES[name]}").run())
    return 0


sys.exit(main(sys.argv[1:]))
