"""Transactions with traces against the same without, through a worker process.

A transaction writes 10 records over 3 partitions and commits, by a direct line. Traces go through
the SDK's batch processor to an exporter that drops them: all of them, or one in a hundred, decided
at the root. Processor time is that of the client's process.
"""

import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.client.transaction_client import TransactionClient
from stilltide.pipeline.interpreter import tune
from stilltide.schemas.topics import TopicSpec
from tests.bench.commits.native_loops import PARTITIONS, TOPIC
from tests.bench.commits.served import served
from tests.bench.commits.transactions import transaction_of
from tests.bench.harness import Run, closed_loop, middle, report, rotated, size
from tests.bench.spent import Spent, cpu_us

CONCURRENCY = (1, 32)
SECONDS = 3.0
WARM_UP_SECONDS = 10.0
SHARES = {"off": None, "one in a hundred": 0.01, "all": 1.0}


class _Dropping(SpanExporter):
    """Takes spans and does nothing with them."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002 - dropped
        """Drops the spans."""
        return SpanExportResult.SUCCESS


def _provider(share: float) -> TracerProvider:
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(share)))
    provider.add_span_processor(BatchSpanProcessor(_Dropping()))
    return provider


async def run() -> None:
    """Measures, prints and writes the case."""
    rounds = size("ROUNDS", 5)
    async with AsyncExitStack() as stack:
        connector = (await served(stack, TopicSpec(TOPIC, PARTITIONS))).connector
        operations = {}
        for name, share in SHARES.items():
            client = TransactionClient(connector=connector, direct_line=True)
            with pytest.MonkeyPatch.context() as patch:  # a process has one provider for good
                provider = None if share is None else _provider(share)
                patch.setattr(trace, "_TRACER_PROVIDER", provider)
                operations[name] = transaction_of(await stack.enter_async_context(client))
            if provider is not None:
                stack.callback(provider.shutdown)
        done = {(name, callers): list[Run]() for name in SHARES for callers in CONCURRENCY}
        for operation in operations.values():
            await closed_loop(operation, max(CONCURRENCY), WARM_UP_SECONDS)
        tune()
        for number in range(rounds):
            for callers in CONCURRENCY:
                for name in rotated(list(SHARES), number):
                    spent = Spent({"client": os.getpid()})
                    ran = await closed_loop(operations[name], callers, SECONDS)
                    done[name, callers].append(spent.by(ran))
            say(f"tracing: round {number + 1} of {rounds}")
    settings = [(name, callers) for callers in CONCURRENCY for name in SHARES if name != "off"]
    report("tracing", [_row(done, *setting) for setting in settings])


def _row(done: dict[tuple[str, int], list[Run]], name: str, callers: int) -> dict[str, Any]:
    ours, baseline = done[name, callers], done["off", callers]
    return {
        "setting": f"{name}, {callers} at once",
        "ours": middle(ours, "per_s"),
        "baseline": middle(baseline, "per_s"),
        "ratio": middle(ours, "per_s") / middle(baseline, "per_s"),
        "unit": "transactions/s",
        "client_cpu_us": cpu_us(ours),
        "client_cpu_us_off": cpu_us(baseline),
    }
