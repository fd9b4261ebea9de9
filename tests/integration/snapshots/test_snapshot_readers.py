"""Spark and the command line on snapshots of a real worker: markers trimmed, topic compacted."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count

from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.spark.read_committed import digest_of_sums, digest_sums
from stilltide.pipeline.cli.main import run
from stilltide.pipeline.client import TransactionClient
from stilltide.pipeline.errors import SnapshotPartError
from stilltide.pipeline.jobs.audits.plan import COORDINATED, AuditPlan
from stilltide.pipeline.jobs.audits.report import AuditReport, Check, FindingKind, Verdict
from stilltide.pipeline.jobs.audits.run import run_audit
from stilltide.pipeline.jobs.read_committed import read_committed
from stilltide.schemas.snapshots.snapshots import part_key
from stilltide.schemas.topics import TXN_MARKERS, TXN_SNAPSHOTS, system_partition
from stilltide.schemas.values import TopicPartition
from tests.support.processes.worker_process import (
    PARTITIONS,
    await_all_ended,
    create_topics,
    running_worker,
)
from tests.support.snapshots.compaction import force_compaction, keys_of

TOPIC = "orders"
TRANSACTIONS = 2000
IDS_PART_BYTES = 1024
TIMEOUT_S = 240.0
HELD_S = 600
"""Time-out of a transaction that is open while Spark reads: a busy machine takes minutes."""
BUSY = TopicPartition(TOPIC, 0)
"""Where the load goes; its snapshot has sealed parts."""


@pytest.fixture(scope="module")
def bootstrap(empty_kafka: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker with a worker that takes snapshots on request only."""
    settings = {
        "snapshot_changes_max": 1_000_000,
        "snapshot_interval_ms": 600_000,
        "marker_retention_ms": 0,
        "snapshot_part_bytes_max": IDS_PART_BYTES,
    }
    log_path = tmp_path_factory.mktemp("snapshots") / "worker.log"
    with running_worker(empty_kafka.bootstrap, log_path, **settings):
        asyncio.run(create_topics(empty_kafka.bootstrap, TOPIC))
        yield empty_kafka.bootstrap


async def load(bootstrap: str, count: int) -> None:
    """Transactions of a record each, two of three aborted; returns when all have ended."""

    async def one(client: TransactionClient, number: int) -> None:
        async with client.transaction() as txn:
            partition = 0 if number % 4 else number % PARTITIONS
            await txn.send(TOPIC, b"%d" % number, key=b"key", partition=partition)
            if number % 3:
                await txn.flush()
                await txn.abort()

    async with TransactionClient(bootstrap) as client:
        await asyncio.gather(*(one(client, number) for number in range(count)))
        await await_all_ended(client)


def told(bootstrap: str, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    """Exit code and JSON of a command."""
    capsys.readouterr()
    verb, *rest = words
    options = ["--bootstrap-servers", bootstrap, "-o", "json"]
    code = run(["snapshot", verb, *rest, *options])
    out = capsys.readouterr().out
    return code, json.loads(out) if out else None


def audit(bootstrap: str) -> AuditReport:
    """The report on coordinated transactions, where other counts than those of markers are known.

    Content digests and the numbers of the test say how many records there must be.
    """
    plan = AuditPlan([TOPIC], checks=COORDINATED, digest=True, accept_unchecked=True)
    return run_audit(bootstrap, plan)


def unchecked(report: AuditReport) -> int:
    """Committed transactions whose number of records nothing promises."""
    return report.result(Check.COUNTS).figures["unchecked"]


def ended(report: AuditReport) -> tuple[int, int]:
    """How many transactions have committed, and aborted."""
    figures = report.result(Check.ATOMICITY).figures
    return figures["committed"], figures["aborted"]


def lasting(report: AuditReport) -> tuple[Any, ...]:
    """What two audits of the same topics must agree on, whether or not counts are still known."""
    kinds = dict(report.finding_counts)
    kinds.pop(FindingKind.ACCEPTED, None)
    found = [one for one in report.findings if one.kind is not FindingKind.ACCEPTED]
    records = [one.records for one in report.partitions]
    return report.verdict, records, ended(report), kinds, found


def digest(frame: DataFrame) -> tuple[int, int]:
    """How many records there are, and their digest."""
    high, low = digest_sums(frame["offset"] >= 0)
    row = frame.agg(count("*"), high, low).first()
    assert row is not None
    return row[0], digest_of_sums(row[1], row[2])


def test_an_audit_says_the_same_from_snapshots_as_from_markers(
    bootstrap: str, spark: SparkSession, capsys: pytest.CaptureFixture[str]
):
    """D4, E4, C6: also after compaction, and `read_committed` gives what the audit calls visible.

    In turn, because each step needs what the one before has left in the topics.
    """
    asyncio.run(load(bootstrap, TRANSACTIONS))
    before = audit(bootstrap)
    assert before.verdict is Verdict.VALID
    _, aborted = ended(before)
    records = [it.records for it in before.partitions]
    assert (unchecked(before), sum(it.hidden for it in records)) == (0, aborted)
    visible = sum(it.visible for it in records)
    whole = visible, sum(it.digest for it in records)
    assert digest(read_committed(spark, bootstrap, [TOPIC])) == whole

    assert digest(read_committed(spark, bootstrap, [TOPIC], take_snapshot=True)) == whole
    log = TopicPartition(TXN_MARKERS, system_partition(BUSY, 4))
    assert len(keys_of(bootstrap, log)) < TRANSACTIONS / 4
    trimmed = audit(bootstrap)
    assert lasting(trimmed) == lasting(before)
    assert unchecked(trimmed) == ended(trimmed)[0] == visible
    counts = {one.check: one for one in run_audit(bootstrap, AuditPlan([TOPIC])).checks}
    assert counts[Check.COUNTS].finding_counts == {
        FindingKind.UNCOUNTED: 1
    }  # all commits are on one partition
    assert counts[Check.COUNTS].verdict is Verdict.UNKNOWN
    assert counts[Check.ATOMICITY].verdict is Verdict.VALID

    for _ in range(2):
        asyncio.run(load(bootstrap, TRANSACTIONS // 4))
        code, taken = told(bootstrap, capsys, "take", TOPIC)
        assert code == 0
        assert [one["behind"] for one in taken] == [0] * PARTITIONS
    snapshots = TopicPartition(TXN_SNAPSHOTS, log.partition)
    assert len(keys_of(bootstrap, snapshots)) > len(set(keys_of(bootstrap, snapshots)))
    force_compaction(bootstrap, snapshots, part_key(TopicPartition("roller", 0), 1))
    compacted = audit(bootstrap)
    assert compacted.verdict is Verdict.VALID
    written = [TRANSACTIONS, *[TRANSACTIONS // 4] * 2]
    committed = sum(len(range(0, each, 3)) for each in written)
    assert ended(compacted) == (committed, sum(written) - committed)
    whole = committed, sum(it.records.digest for it in compacted.partitions)
    assert digest(read_committed(spark, bootstrap, [TOPIC])) == whole


def test_an_open_transaction_bounds_what_is_read_and_keeps_its_markers(
    bootstrap: str, spark: SparkSession, capsys: pytest.CaptureFixture[str]
):
    """D2: `read_committed` ends before its record; E2: markers behind M are there to compare."""
    found: dict[str, Any] = {}

    def readable() -> int:
        return read_committed(spark, bootstrap, [TOPIC]).filter("partition = 1").count()

    def look() -> None:
        found["take"] = told(bootstrap, capsys, "take", TOPIC)
        found["verify"] = told(bootstrap, capsys, "verify", TOPIC)
        found["count"] = readable()
        found["audit"] = audit(bootstrap)

    async def write() -> None:
        async with (
            TransactionClient(bootstrap) as client,
            client.transaction(timeout_s=HELD_S) as held,
        ):
            await held.send(TOPIC, b"held", partition=1)
            await held.flush()
            async with TransactionClient(bootstrap) as other:
                for number in range(3):
                    async with other.transaction() as txn:
                        await txn.send(TOPIC, b"%d" % number, partition=1)
                        await txn.commit(wait_visible=True)
            await asyncio.to_thread(look)
            await held.abort()
            await await_all_ended(client)

    before = readable()
    asyncio.run(write())
    code, verified = found["verify"]
    assert (code, verified["differences"]) == (0, [])
    assert verified["snapshots"][1]["markers"] == 3
    assert sum(one["ids_unchecked"] for one in verified["snapshots"]) > 0
    assert found["take"][1][1]["behind"] >= 4
    assert found["count"] == before
    assert found["audit"].finding_counts == {FindingKind.UNDECIDED: 1, FindingKind.ACCEPTED: 1}
    assert readable() == before + 3


def test_snapshots_are_listed_shown_and_verified(
    bootstrap: str, capsys: pytest.CaptureFixture[str]
):
    """Sizes, parts, age, position and what is behind it; a part that is missing is told."""
    told(bootstrap, capsys, "take", TOPIC)
    code, listed = told(bootstrap, capsys, "list", TOPIC)
    assert code == 0
    assert [(one["topic"], one["partition"], one["problem"]) for one in listed] == [
        (TOPIC, number, None) for number in range(PARTITIONS)
    ]
    busy = listed[0]
    assert busy["parts"] > 0
    assert busy["bytes"] > IDS_PART_BYTES
    assert 0 <= busy["age_s"] < 100
    assert busy["behind"] == 0
    code, (shown,) = told(bootstrap, capsys, "show", TOPIC, "0")
    assert (code, shown["aborted"], len(shown["parts"])) == (0, busy["aborted"], busy["parts"])
    assert shown["bytes"] == busy["bytes"]
    assert shown["written"].startswith("20")
    assert told(bootstrap, capsys, "show", TOPIC, "99") == (1, None)

    producer = Producer({"bootstrap.servers": bootstrap})
    key = part_key(BUSY, shown["parts"][0]["number"])
    producer.produce(TXN_SNAPSHOTS, None, key, shown["snapshot_partition"])
    assert producer.flush(TIMEOUT_S) == 0
    with pytest.raises(SnapshotPartError, match="is missing"):
        audit(bootstrap)
    code, verified = told(bootstrap, capsys, "verify")
    assert code == 3
    assert [one["kind"] for one in verified["differences"]] == ["unusable"]
    code, listed = told(bootstrap, capsys, "list")
    assert "is missing" in listed[0]["problem"]
    assert told(bootstrap, capsys, "show", TOPIC, "0")[1][0]["parts"][0]["bytes"] is None
