"""`python -m tests.bench [case ...]`: runs the named cases, or all."""

import asyncio
import importlib
import sys

from stilltide.pipeline.cli.common.output import say

CASES = (
    "writer",
    "transactions",
    "acknowledgements",
    "recovery",
    "consume_transform_produce",
    "snapshots",
    "reader",
    "spark_filter",
    "audit",
    "batch_filter",
    "replication",
    "failover",
    "sync_latency",
    "translate",
)


def main(names: list[str]) -> int:
    """Runs the cases; returns the exit code."""
    unknown = [name for name in names if name not in CASES]
    if unknown:
        say(f"unknown case {unknown[0]!r}; there are: {', '.join(CASES)}")
        return 2
    for name in names or CASES:
        asyncio.run(importlib.import_module(f"tests.bench.{name}").run())
    return 0


sys.exit(main(sys.argv[1:]))
