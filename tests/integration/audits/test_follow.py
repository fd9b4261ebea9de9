"""Audits that go on: in steps of any size they find what one audit over everything finds."""

import json
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest

from stilltide.connectors.errors import FatalError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.spark.session import SparkOptions
from stilltide.pipeline.cli.main import run
from stilltide.pipeline.jobs.audits.files import PAGE
from stilltide.pipeline.jobs.audits.follow.history import HISTORY
from stilltide.pipeline.jobs.audits.follow.state import PROGRESS, State, load_state
from stilltide.pipeline.jobs.audits.follow.step import Follower, Stepped, run_once
from stilltide.pipeline.jobs.audits.last import SUMMARY
from stilltide.pipeline.jobs.audits.plan import COORDINATED, AuditPlan, Silent
from stilltide.pipeline.jobs.audits.report import AuditReport, Check, Finding, FindingKind, Verdict
from stilltide.pipeline.jobs.audits.run import run_audit
from stilltide.schemas.headers import TXN
from stilltide.schemas.values import TxnId
from tests.support.spark.topics import HandWriter, Written, create_topics

pytestmark = pytest.mark.usefixtures("spark")

CHECKS = COORDINATED | {Check.GAPS, Check.HANGING}
PARTITIONS = 2


def follower(bootstrap: str, topic: str, records_max: int) -> Follower:
    """One that reads so many offsets in a step."""
    plan = AuditPlan([topic], checks=CHECKS)
    config = KafkaConfig(bootstrap_servers=bootstrap)
    return Follower(config, plan, records_max, SparkOptions(), Silent())


def told(report: AuditReport) -> dict[Check, tuple[Verdict, dict[FindingKind, int], set[Finding]]]:
    """What must not depend on the steps."""
    return {
        one.check: (one.verdict, dict(one.finding_counts), set(one.findings))
        for one in report.checks
    }


class History:
    """Transactions that overlap, of which some have faults; some stay open until `end`."""

    def __init__(self, bootstrap: str, topic: str, seed: int) -> None:
        self.random = Random(seed)
        self.writer = HandWriter(bootstrap, topic)
        self._open: dict[tuple[TxnId, int], Written] = {}
        self._sequence = 0

    def act(self) -> None:
        """Something happens."""
        random, writer = self.random, self.writer
        kind = random.choice(["begin", "more", "more", "end", "end", "plain", "malformed", "lost"])
        partition = random.randrange(PARTITIONS)
        if kind == "begin" or not self._open:
            self._sequence += 1
            txn = TxnId(1, self._sequence)
            for place in {partition, random.randrange(PARTITIONS)}:
                self._open[txn, place] = writer.of_txn(txn, place, random.randint(1, 3))
        elif kind == "more":
            (txn, place), written = random.choice(list(self._open.items()))
            more = writer.of_txn(txn, place, random.randint(1, 3))
            self._open[txn, place] = Written(
                [*written.offsets, *more.offsets], [*written.content, *more.content]
            )
        elif kind == "end":
            self.end_one()
        elif kind == "plain":
            writer.records(partition, random.randint(1, 3))
        elif kind == "malformed" and random.random() < 0.3:
            writer.records(partition, 1, (TXN, b"short"))
        elif kind == "lost":
            self._sequence += 1  # its only record is not there, and the marker comes late
            place = writer.records(partition, 1).offsets[0]
            txn = TxnId(1, self._sequence)
            if random.random() < 0.5:
                writer.marker(
                    txn, partition, committed=True, start=max(0, place - 6), end=place + 1, count=2
                )

    def end_one(self) -> None:
        """A transaction ends on one partition; in one of four cases with a fault."""
        random, writer = self.random, self.writer
        (txn, place), written = random.choice(list(self._open.items()))
        del self._open[txn, place]
        kind = random.choice(["commit"] * 4 + ["abort"] * 2 + ["missing", "surplus", "late"])
        if kind == "abort":
            writer.abort(txn, place)
            return
        count = len(written.offsets)
        wrong = {"missing": count + 1, "surplus": max(1, count - 1)}
        writer.commit(txn, place, written, count=wrong.get(kind, count))
        if kind == "late":
            writer.of_txn(txn, place, 1)
        if random.random() < 0.2:
            writer.commit(txn, place, written, count=wrong.get(kind, count))  # a repeated marker

    def end(self) -> None:
        """Every open transaction ends."""
        while self._open:
            self.end_one()


@pytest.mark.slow
def test_steps_find_what_one_audit_finds(bootstrap: str, topic_name: str):
    """C6: transactions are counted once, wherever the windows end, open ones at the end or not."""
    create_topics(bootstrap, {topic_name: PARTITIONS})
    history = History(bootstrap, topic_name, seed=0)
    state = State()
    for _ in range(3):
        for _ in range(history.random.randint(4, 10)):
            history.act()
        state = follower(bootstrap, topic_name, history.random.randint(5, 20)).step(state).state
    while_open, _ = agree(bootstrap, topic_name, state)
    history.end()
    ended, whole = agree(bootstrap, topic_name, while_open.state)
    records = [one.records for one in whole.partitions]
    assert [one.records for one in ended.report.partitions] == records


def agree(bootstrap: str, topic: str, state: State) -> tuple[Stepped, AuditReport]:
    """The step that checks all the rest, and the audit over everything: they find the same."""
    found = follower(bootstrap, topic, 1000).step(state)
    assert found.is_all
    whole = run_audit(bootstrap, AuditPlan([topic], checks=CHECKS))
    assert told(found.report) == told(whole)
    assert found.report.verdict is whole.verdict
    return found, whole


def test_a_directory_is_of_one_topic(bootstrap: str, topic_name: str, tmp_path: Path):
    """Run after run a row of the history; other topics are refused, and no file changes."""
    create_topics(bootstrap, {topic_name: 1, f"{topic_name}-other": 1})
    writer = HandWriter(bootstrap, topic_name)
    for number in range(2):
        txn = TxnId(2, number)
        writer.commit(txn, 0, writer.of_txn(txn, 0, 3))
        run_once(follower(bootstrap, topic_name, 100), tmp_path)
    rows = pq.read_table(tmp_path / HISTORY).to_pylist()
    assert [(one["run"], one["verdict"], one["records"]) for one in rows] == [
        (1, "valid", 3),
        (2, "valid", 6),
    ]
    crashed = (tmp_path / PROGRESS).read_bytes()
    writer.records(0, 2)
    for _ in range(2):  # everything of the run is written, except for its progress
        (tmp_path / PROGRESS).write_bytes(crashed)
        run_once(follower(bootstrap, topic_name, 100), tmp_path)
    rows = pq.read_table(tmp_path / HISTORY).to_pylist()
    assert [(one["run"], one["records"]) for one in rows] == [(1, 3), (2, 6), (3, 8)]
    assert "The last 3 runs" in (tmp_path / PAGE).read_text()
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(FatalError, match="other topics"):
        run_once(follower(bootstrap, f"{topic_name}-other", 100), tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files
    body = json.loads((tmp_path / PROGRESS).read_text())
    body["topic_ids"][topic_name] = "00" * 16
    (tmp_path / PROGRESS).write_text(json.dumps(body))
    with pytest.raises(FatalError, match="another topic of this name"):
        run_once(follower(bootstrap, topic_name, 100), tmp_path)
    (tmp_path / PROGRESS).write_text("{}")
    with pytest.raises(FatalError, match="does not hold the progress"):
        load_state(tmp_path)


def test_once_ends_when_everything_is_checked(bootstrap: str, topic_name: str, tmp_path: Path):
    """The command makes the runs that are needed, and its exit code is the last verdict."""
    create_topics(bootstrap, {topic_name: 1})
    writer, txn = HandWriter(bootstrap, topic_name), TxnId(2, 1)
    writer.commit(txn, 0, writer.of_txn(txn, 0, 3))
    words = ["--topics", topic_name, "--bootstrap-servers", bootstrap, "--report", str(tmp_path)]
    assert run(["audit", "follow", *words, "--once"]) == 0
    summary = json.loads((tmp_path / SUMMARY).read_text())
    (counts,) = [one for one in summary["checks"] if one["check"] == "counts"]
    assert counts["figures"] == {"committed": 1, "unchecked": 0}
