"""`stilltide audit run` on a real broker: each fault is found by its check, and nothing else is."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from stilltide.connectors.errors import FatalError, OffsetOutOfRangeError
from stilltide.pipeline.cli.main import run
from stilltide.pipeline.errors import ConfigError
from stilltide.pipeline.jobs.audits.files import FINDINGS, FINDINGS_SCHEMA, PAGE
from stilltide.pipeline.jobs.audits.last import SUMMARY
from stilltide.pipeline.jobs.audits.plan import AuditPlan, Silent
from stilltide.pipeline.jobs.audits.report import AuditReport, Check, FindingKind, Verdict
from stilltide.pipeline.jobs.audits.run import run_audit
from stilltide.schemas.headers import TXN
from stilltide.schemas.values import TopicPartition, TxnId
from tests.support.native.hanging import write_hanging
from tests.support.native.topics import INDEX_PARTITIONS, index_topics
from tests.support.native.writer import NativeWriter, write_false_index
from tests.support.snapshots.compaction import alter_configs, force_compaction
from tests.support.spark.sound_topics import assert_sound
from tests.support.spark.topics import HandWriter, create_topics, topic_id

TIMEOUT_S = 240.0

pytestmark = pytest.mark.usefixtures("spark")


def write_both(bootstrap: str, topic: str) -> None:
    """A sound topic: plain records and transactions of both kinds, committed and aborted."""
    create_topics(bootstrap, {topic: 2})
    coordinated, native = HandWriter(bootstrap, topic), NativeWriter(bootstrap, topic)
    kept, lost = TxnId(0, 1), TxnId(1, 1)
    for partition in range(2):
        native.transaction(partition, 3, commit=False)
        coordinated.commit(kept, partition, coordinated.of_txn(kept, partition, 4))
        native.transaction(partition, 2, commit=True)
        coordinated.of_txn(lost, partition, 2)
        coordinated.abort(lost, partition)
        coordinated.records(partition, 2)


def findings(report: AuditReport) -> set[tuple[Check, FindingKind, str | None, int | None]]:
    """What was found, by check, kind, topic and offset."""
    return {
        (one.check, each.kind, each.topic, each.offset)
        for one in report.checks
        for each in one.findings
    }


@dataclass
class Planted:
    """Topics with a fault each, the table made of one of them, and what one audit said."""

    topics: dict[str, str]
    table: Path
    report: AuditReport


def plant_false_indexes(bootstrap: str, shows: str, hides: str) -> None:
    """One index lacks an aborted range, the other has one of committed records."""
    for topic in (shows, hides):
        create_topics(bootstrap, {topic: 1})
        native = NativeWriter(bootstrap, topic)
        for commit in (False, True, False):
            native.transaction(0, 3, commit=commit)
    asyncio.run(index_topics(bootstrap, shows, hides))
    for topic, ranges in ((shows, [(0, 3)]), (hides, [(0, 3), (4, 5), (8, 11)])):
        data, identity = TopicPartition(topic, 0), topic_id(bootstrap, topic)
        write_false_index(bootstrap, data, identity, ranges, end=12)


def plant_gap(bootstrap: str, topic: str) -> None:
    """Records that a cleaner took from a topic that now says it has none."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = NewTopic(topic, 1, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([wanted])[topic].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in range(5):
        producer.produce(topic, b"%d" % value, b"same")
    assert producer.flush(TIMEOUT_S) == 0
    force_compaction(bootstrap, TopicPartition(topic, 0), b"roller")
    alter_configs(bootstrap, topic, {"cleanup.policy": "delete", "segment.ms": "604800000"})


def plant_coordinated(bootstrap: str, topic: str) -> None:
    """A fault of each check of coordinated transactions, on a partition of its own."""
    create_topics(bootstrap, {topic: 6})
    writer = HandWriter(bootstrap, topic)
    whole, late, short, mixed = (TxnId(7, number) for number in range(4))
    writer.records(0, 1, (TXN, b"fifteen bytes.."))
    writer.commit(whole, 1, writer.of_txn(whole, 1, 1))
    writer.commit(late, 2, writer.of_txn(late, 2, 2))
    writer.of_txn(late, 2, 1)
    writer.commit(short, 3, writer.of_txn(short, 3, 2), count=3)
    writer.commit(mixed, 4, writer.of_txn(mixed, 4, 1))
    writer.of_txn(mixed, 5, 1)
    writer.abort(mixed, 5)
    writer.of_txn(whole, 5, 1)


def write_table(path: Path, rows: Sequence[tuple[str, int, int]]) -> None:
    """A downstream table that names these records."""
    columns = list(zip(*rows, strict=True))
    table = {"topic": columns[0], "partition": columns[1], "offset": columns[2]}
    path.mkdir()
    pq.write_table(pa.table(table), path / "part-0.parquet")


@pytest.fixture(scope="module")
def planted(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """One audit of all of it, beside a sound topic."""
    names = ("sound", "shows", "hides", "gap", "hangs", "coordinated", "unindexed")
    topics = {name: f"audit-run-{name}" for name in names}
    write_both(bootstrap, topics["sound"])
    plant_gap(bootstrap, topics["gap"])
    create_topics(bootstrap, {topics["hangs"]: 1})
    asyncio.run(write_hanging(bootstrap, TopicPartition(topics["hangs"], 0), 2))
    plant_coordinated(bootstrap, topics["coordinated"])
    plant_false_indexes(bootstrap, topics["shows"], topics["hides"])
    indexed = [topics[name] for name in ("sound", "gap", "hangs", "coordinated")]
    asyncio.run(index_topics(bootstrap, *indexed))
    create_topics(bootstrap, {topics["unindexed"]: 1})
    HandWriter(bootstrap, topics["unindexed"]).records(0, 1)
    table = tmp_path_factory.mktemp("tables") / "leaky"
    sound = topics["sound"]
    # 0: native, aborted; 4: committed; 8: native, committed; 11: coordinated, aborted; 13: plain
    write_table(table, [(sound, 0, offset) for offset in (0, 4, 8, 11, 13, 99)])
    report = run_audit(bootstrap, AuditPlan(list(topics.values()), tables=[str(table)]))
    return Planted(topics, table, report)


FAULTS = [
    (Check.EQUIVALENCE, FindingKind.DIFFERENT, "shows", 8),
    (Check.EQUIVALENCE, FindingKind.DIFFERENT, "hides", 4),
    (Check.EQUIVALENCE, FindingKind.UNCOVERED, "unindexed", None),
    (Check.GAPS, FindingKind.UNEXPLAINED, "gap", 0),
    (Check.HANGING, FindingKind.HANGING, "hangs", 0),
    (Check.HEADERS, FindingKind.MALFORMED, "coordinated", 0),
    (Check.ORPHANS, FindingKind.ORPHAN, "coordinated", 1),
    (Check.LATE, FindingKind.LATE, "coordinated", 2),
    (Check.COUNTS, FindingKind.MISSING, "coordinated", 0),
    (Check.ATOMICITY, FindingKind.MIXED, None, None),
    (Check.LEAKS, FindingKind.LEAKED, "sound", 0),
    (Check.LEAKS, FindingKind.LEAKED, "sound", 11),
    (Check.LEAKS, FindingKind.UNJUDGED, "sound", 99),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault[1]}-{fault[2]}-{fault[3]}")
def test_a_planted_fault_is_found(
    fault: tuple[Check, FindingKind, str | None, int | None], planted: Planted
):
    """By its own check, as its own kind, at its place."""
    check, kind, name, offset = fault
    topic = None if name is None else planted.topics[name]
    assert (check, kind, topic, offset) in findings(planted.report)


def test_nothing_else_is_found(planted: Planted):
    """Sound records beside the faults raise no alarm; every check says what it found."""
    # How many more holes the cleaner has left behind the planted one is its own affair.
    holes = {(FindingKind.UNEXPLAINED, planted.topics["gap"])}
    found = {one for one in findings(planted.report) if (one[1], one[2]) not in holes}
    assert len(found) == len(FAULTS) - 1, found
    verdicts = {one.check: one.verdict for one in planted.report.checks}
    unproven = {Check.ORPHANS: Verdict.UNKNOWN}  # its marker may still be on its way (D6)
    assert verdicts == dict.fromkeys(Check, Verdict.INVALID) | unproven
    assert planted.report.verdict is Verdict.INVALID


def test_evidence_says_what_differs(planted: Planted):
    """How many records either side has, which offsets are empty, who hangs."""
    every = planted.report.findings
    found = {(each.kind, each.topic): each for each in reversed(every)}
    shows = found[FindingKind.DIFFERENT, planted.topics["shows"]]
    assert (shows.expected, shows.found) == (0, 3)
    assert "shows what Kafka hides" in shows.detail
    hides = found[FindingKind.DIFFERENT, planted.topics["hides"]]
    assert (hides.expected, hides.found) == (1, 0)
    holes = [
        (one.expected or 0) - (one.found or 0)
        for one in every
        if one.kind is FindingKind.UNEXPLAINED and (one.offset or 0) < 5
    ]
    assert sum(holes) == 4
    assert "no coordinator" in found[FindingKind.HANGING, planted.topics["hangs"]].detail
    (hanging,) = planted.report.open_transactions
    assert hanging.transactional_id is None
    (undecided,) = planted.report.undecided
    assert undecided.topic == planted.topics["coordinated"]
    assert (undecided.partition, undecided.offset, undecided.txn) == (5, 1, "7:0")


SOUND_SEEDS = (1, 2)
"""A topic of each is audited alone; both have every kind. `make chaos` audits fifty topics."""


def test_sound_topics_raise_nothing(bootstrap: str, topic_name: str):
    """Both kinds of transaction, committed and aborted: valid, and every figure is right."""
    assert_sound(bootstrap, topic_name, SOUND_SEEDS)


def audit_command(bootstrap: str, folder: Path, *words: str) -> list[str]:
    """`stilltide audit run` with JSON, and its report in a folder."""
    return [
        *("audit", "run", "--bootstrap-servers", bootstrap, "-o", "json"),
        *("--report", str(folder)),
        *words,
    ]


def test_the_command_says_valid_then_unknown_then_invalid(
    bootstrap: str, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """0, then 4 with an index that is behind and a table without columns, then 3 with a leak.

    stdout is one JSON document; the report folder has findings, summary and a page.
    """
    write_both(bootstrap, topic_name)
    command = audit_command(bootstrap, tmp_path / "a", "--topics", topic_name, "--digest")
    assert run([*command, "--update-index"]) == 0
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert told == json.loads((tmp_path / "a" / SUMMARY).read_text())
    assert (told["verdict"], told["schema_version"]) == ("valid", 2)
    verdicts = {one["check"]: one["verdict"] for one in told["checks"]}
    assert verdicts == dict.fromkeys(Check, "valid") | {"leaks": "empty"}  # there is no table
    assert int(told["partitions"][0]["digest"]) > 0
    assert "walking the batches" in printed.err
    page = (tmp_path / "a" / PAGE).read_text()
    assert "<svg" in page
    assert "src=" not in page
    assert "did not prove leaks (empty)." in page

    offsets = NativeWriter(bootstrap, topic_name).transaction(0, 1, commit=False)
    table = tmp_path / "table"
    write_table(table, [(topic_name, 0, offsets[0])])
    pq.write_table(pa.table({"topic": [topic_name]}), tmp_path / "bare.parquet")
    bare = ("--table", str(tmp_path / "bare.parquet"))
    assert run(audit_command(bootstrap, tmp_path / "b", "--topics", topic_name, *bare)) == 4
    counts = {
        each["check"]: each["finding_counts"]
        for each in json.loads(capsys.readouterr().out)["checks"]
    }
    assert counts.pop("equivalence") == {"uncovered": 1}
    assert counts.pop("leaks") == {"unreadable": 1}
    assert not any(counts.values())

    leaky = ("--table", str(table))
    assert run(audit_command(bootstrap, tmp_path / "b", "--topics", topic_name, *leaky)) == 3
    rows = pq.read_table(tmp_path / "b" / FINDINGS)
    assert rows.schema.equals(FINDINGS_SCHEMA, check_metadata=True)
    leaks = [row for row in rows.to_pylist() if row["check"] == "leaks"]
    assert [(one["kind"], one["topic"], one["offset"]) for one in leaks] == [
        ("leaked", topic_name, offsets[0])
    ]


class Meddler(Silent):
    """Progress that deletes a record of a partition when a step begins."""

    def __init__(self, bootstrap: str, data: TopicPartition, step: str) -> None:
        self._bootstrap = bootstrap
        self._data = data
        self._step = step

    def step(self, text: str) -> None:
        """The moment."""
        if text.startswith(self._step):
            admin = AdminClient({"bootstrap.servers": self._bootstrap})
            place = KafkaPartition(*self._data, 1)
            admin.delete_records([place])[place].result(TIMEOUT_S)


@pytest.mark.parametrize("step", ["walking", "starting", "judging"])
def test_a_topic_that_shrinks_is_a_typed_error(bootstrap: str, topic_name: str, step: str):
    """Wherever retention overtakes the run, it ends with an error and no verdict."""
    write_both(bootstrap, topic_name)
    meddler = Meddler(bootstrap, TopicPartition(topic_name, 0), step)
    with pytest.raises(FatalError, match="deleted while") as caught:
        run_audit(bootstrap, AuditPlan([topic_name]), progress=meddler)
    assert caught.value.hint


def test_bounds(bootstrap: str, topic_name: str):
    """A range is audited alone; offsets that the log lacks and wrong bounds are typed errors."""
    write_both(bootstrap, topic_name)
    places = [TopicPartition(topic_name, number) for number in range(2)]
    plan = AuditPlan(
        [topic_name],
        first={None: 4},
        until={None: 11, places[1]: 8},
        index_partitions=INDEX_PARTITIONS,
    )
    report = run_audit(bootstrap, plan)
    assert findings(report) == set()
    told = [one.records for one in report.partitions]
    assert [(one.start_offset, one.end_offset, one.visible) for one in told] == [
        (4, 11, 6),
        (4, 8, 4),
    ]
    with pytest.raises(OffsetOutOfRangeError) as caught:
        run_audit(bootstrap, AuditPlan([topic_name], until={places[1]: 99}))
    assert caught.value.place == f"{places[1]}@99"
    for plan in (
        AuditPlan([topic_name], first={TopicPartition("other", 0): 1}),
        AuditPlan([topic_name], first={None: 5}, until={None: 4}),
    ):
        with pytest.raises(ConfigError):
            run_audit(bootstrap, plan)


@pytest.mark.parametrize(
    "words", [["--from", "ten"], ["--to", "1", "--to", "2"], ["--topics", ","]]
)
def test_wrong_words_are_said(words: list[str], capsys: pytest.CaptureFixture[str]):
    """Exit code 1, and nothing is asked of any cluster."""
    assert run(["audit", "run", "--topics", "orders", *words]) == 1
    printed = capsys.readouterr()
    assert not printed.out
    assert words[0] in printed.err


def test_a_topic_without_records_is_empty(
    bootstrap: str, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Exit code 5: no check had anything to look at, so nothing is proved."""
    create_topics(bootstrap, {topic_name: 2})
    assert run(audit_command(bootstrap, tmp_path, "--topics", topic_name, "--update-index")) == 5
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "empty"
    assert {one["verdict"] for one in told["checks"]} == {"empty"}


def test_a_missing_topic_is_a_typed_error(bootstrap: str, topic_name: str):
    """Naming the topic; Spark is not even started."""
    with pytest.raises(FatalError, match=topic_name):
        run_audit(bootstrap, AuditPlan([topic_name]))
