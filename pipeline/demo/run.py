"""Transactions end to end: broker, worker, transactions, crash, consumer, Spark, one verdict."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from typing import Protocol

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.ports.connector import closing
from stilltide.connectors.scratch import scratch
from stilltide.connectors.spark.session import SparkOptions, spark_session
from stilltide.pipeline.client.transaction_client import TransactionClient
from stilltide.pipeline.demo.events import ORDERS, PAYMENTS, Plan, consume, produce, read_lines
from stilltide.pipeline.demo.views import View, differences
from stilltide.pipeline.demo.worker_process import STATIC_MEMBER, WorkerProcess
from stilltide.pipeline.drivers.shared.tasks import cancelled
from stilltide.pipeline.jobs.audits.plan import COORDINATED, AuditPlan, Silent
from stilltide.pipeline.jobs.audits.report import AuditReport, Check, Verdict
from stilltide.pipeline.jobs.audits.run import run_audit
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import TopicPartition

TOPICS = (ORDERS, PAYMENTS)
PARTITION_COUNT = 3

_AUDIT = AuditPlan(TOPICS, checks=COORDINATED, digest=True, accept_unchecked=True)
"""What the producer wrote, with its content, says how many records there must be."""


class DemoProgress(Protocol):
    """Callbacks about the demo's progress."""

    def step(self, text: str) -> None:
        """Called when a step begins."""
        ...

    def transactions(self, ended: int, total: int) -> None:
        """Called after each transaction with the number that have ended."""
        ...


class _SparkSteps(Silent):
    """Shows the steps of the audit as steps of the demo, and nothing else of it."""

    def __init__(self, progress: DemoProgress) -> None:
        self._progress = progress

    def step(self, text: str) -> None:
        """A step of the audit begins."""
        self._progress.step(f"Spark: {text}")


@dataclass(frozen=True)
class DemoResult:
    """The three views and the differences between them."""

    views: Sequence[View]
    differences: Sequence[str]
    audit: AuditReport
    elapsed_s: float

    @property
    def agrees(self) -> bool:
        """Whether the three saw the same, and the audit is valid."""
        return not self.differences and self.audit.verdict is Verdict.VALID


async def run_demo(plan: Plan, progress: DemoProgress, spark_options: SparkOptions) -> DemoResult:
    """Runs the demo on a broker of its own, which is removed afterwards.

    Args:
        plan: what to write.
        progress: receives each step.
        spark_options: options of the Spark session of the audit.

    Raises:
        EventsFileError: the file cannot be read, or holds a line that is no JSON object.
        StilltideError: a part of the demo failed; the hint names the next step, and files that the
            error names are kept.
    """
    began_s = time.monotonic()
    total = sum(1 for _ in read_lines(plan.path, plan.events_per_transaction))
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(scratch("stilltide-demo-"))
        progress.step("starting a Kafka broker")
        cluster = LocalCluster("a", directory / "a")
        await asyncio.to_thread(stack.enter_context, cluster)
        connector = KafkaConnector(KafkaConfig(bootstrap_servers=cluster.bootstrap))
        await _create_topics(connector)
        spark = stack.enter_context(ExitStack())
        opening = asyncio.create_task(asyncio.to_thread(_open_spark, spark, spark_options))
        stack.push_async_callback(asyncio.wait, [opening])
        progress.step("starting a worker and Spark")
        worker = WorkerProcess(cluster.bootstrap, directory / "worker.log", *STATIC_MEMBER)
        stack.push_async_callback(worker.stop)
        await worker.start()
        progress.step(f"writing {total} transactions, with a crash of the worker half way")
        written = await _produce_with_crash(connector, worker, plan, total, progress)
        progress.step("reading the topics back, read-committed")
        consumed = await consume(connector, TOPICS, "demo")
        progress.step("auditing with Spark")
        await opening
        audited = await asyncio.to_thread(
            run_audit, cluster.bootstrap, _AUDIT, progress=_SparkSteps(progress)
        )
    views = [written, consumed, _spark_view(audited)]
    return DemoResult(views, differences(views), audited, time.monotonic() - began_s)


def _open_spark(stack: ExitStack, options: SparkOptions) -> None:
    """Opens the session that the audit uses, with the JVM's fast compiler, best for a small job."""
    stack.enter_context(spark_session(replace(options, java_options="-XX:TieredStopAtLevel=1")))


async def _create_topics(connector: KafkaConnector) -> None:
    async with closing(connector.admin()) as admin:
        await admin.ensure_topics([TopicSpec(topic, PARTITION_COUNT) for topic in TOPICS])


async def _produce_with_crash(
    connector: KafkaConnector, worker: WorkerProcess, plan: Plan, total: int, progress: DemoProgress
) -> View:
    """Writes every event; kills the worker after half of the transactions and starts it again."""
    half = asyncio.Event()

    def ended(count: int) -> None:
        progress.transactions(count, total)
        if count >= total // 2:
            half.set()

    async with TransactionClient(connector=connector, name="demo") as client:
        producing = asyncio.create_task(produce(client, plan, ended))
        crashing = asyncio.create_task(_crash(worker, half, progress.step))
        try:
            await asyncio.wait((producing, crashing), return_when=asyncio.FIRST_EXCEPTION)
            if producing.done() and producing.exception() is not None:
                return producing.result()
            await crashing
            return await producing
        finally:
            await cancelled(producing, crashing)


async def _crash(worker: WorkerProcess, half: asyncio.Event, step: Callable[[str], None]) -> None:
    await half.wait()
    step("SIGKILL to the worker, with transactions open; starting it again")
    await worker.kill()
    await worker.start()


def _spark_view(report: AuditReport) -> View:
    transactions = report.result(Check.ATOMICITY).figures
    view = View("spark", transactions["committed"], transactions["aborted"])
    for audit in (partition.records for partition in report.partitions):
        assert audit.digest is not None, "it was asked for"
        partition = view.partition(TopicPartition(audit.topic, audit.partition))
        partition.visible, partition.hidden, partition.digest = (
            audit.visible,
            audit.hidden,
            audit.digest,
        )
    return view
