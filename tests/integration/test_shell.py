"""Topics and records from the shell, on a real broker with a worker, and what `doctor` says."""

import json
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from stilltide.connectors.local.cluster import LocalCluster
from tests.support.processes.local import STILLTIDE
from tests.support.processes.worker_process import running_worker

WAIT_S = 240


@pytest.fixture(scope="module")
def served(empty_kafka: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker with a worker."""
    bootstrap = empty_kafka.bootstrap
    with running_worker(bootstrap, tmp_path_factory.mktemp("served") / "worker.log"):
        yield bootstrap


def ended(served: str, *words: str, lines: str | None = None) -> subprocess.CompletedProcess[str]:
    """A command that has ended."""
    return subprocess.run(
        [str(STILLTIDE), *words, "--bootstrap-servers", served],
        input=lines,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def told(served: str, *words: str, lines: str | None = None) -> Any:
    """What a command that must succeed prints as JSON."""
    done = ended(served, *words, "-o", "json", lines=lines)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def consumed(served: str, topic: str, count: int) -> list[dict[str, Any]]:
    """The first records of a topic."""
    done = ended(served, "consume", topic, "--from-beginning", "--max", str(count), "-o", "json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@contextmanager
def running(served: str, words: Sequence[str], **options: Any) -> "Iterator[subprocess.Popen[str]]":
    """A command that runs, killed at the latest at the end of the block."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [str(STILLTIDE), *words, "--bootstrap-servers", served],
        stdout=pipe,
        stderr=pipe,
        text=True,
        **options,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_a_topic_is_created_shown_and_deleted(served: str) -> None:
    """Once; a second creation is refused, or accepted on demand; deletion needs a yes."""
    create = ("topics", "create", "made", "--partitions", "3", "--config", "retention.ms=3600000")
    assert told(served, *create) == [{"topic": "made", "partitions": 3, "created": True}]
    refused = ended(served, *create)
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: made: the topic exists\n")
    assert told(served, *create, "--if-missing")[0]["created"] is False
    (shown,) = told(served, "topics", "describe", "made")
    assert shown["configs"]["retention.ms"] == "3600000"
    assert [it["end_offset"] for it in shown["partitions"]] == [0, 0, 0]
    kept = ended(served, "topics", "delete", "made")
    assert kept.returncode == 3
    assert "nothing was deleted" in kept.stderr
    assert told(served, "topics", "delete", "made", "--yes")["deleted"] is True
    gone = ended(served, "topics", "describe", "made")
    assert gone.returncode == 1
    assert "the topic does not exist" in gone.stderr


@pytest.mark.parametrize("name", ["stilltide.txn-log", "__consumer_offsets"])
@pytest.mark.parametrize("verb", ["create", "delete"])
def test_topics_of_stilltide_and_kafka_are_left_alone(served: str, verb: str, name: str) -> None:
    """By a usage error, before anything is asked."""
    done = ended(served, "topics", verb, name)
    assert done.returncode == 2
    assert "is no topic of applications" in done.stderr


def test_lines_are_one_transaction(served: str) -> None:
    """With keys and headers, and read back as what was committed, each with its transaction."""
    told(served, "topics", "create", "lines", "--partitions", "3")
    (row,) = told(
        served, "produce", "lines", "--key-separator", ":", "--header", "from=shell",
        lines="a:1\nb:2:3\r\nc:",
    )  # fmt: skip
    assert (row["records"], row["state"]) == (3, "committed")
    records = consumed(served, "lines", 3)
    assert {(it["key"], it["value"]) for it in records} == {("a", "1"), ("b", "2:3"), ("c", "")}
    assert {it["transaction"] for it in records} == {row["transaction"]}
    assert all(it["headers"] == [["from", "shell"]] for it in records)


def test_a_wrong_line_leaves_nothing(served: str) -> None:
    """The transaction of all lines is aborted; the next one is read."""
    told(served, "topics", "create", "wrong")
    refused = ended(served, "produce", "wrong", "--key-separator", ":", lines="a:1\nb\n")
    assert refused.returncode == 1
    assert "line 2 has no key" in refused.stderr
    told(served, "produce", "wrong", lines="good\n")
    assert [it["value"] for it in consumed(served, "wrong", 1)] == ["good"]
    empty = ended(served, "produce", "wrong", lines="")
    assert (empty.returncode, empty.stdout) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda it: it.name)
def test_a_signal_aborts_what_is_written(served: str, number: signal.Signals) -> None:
    """While the input is open; the command ends at once, without a traceback."""
    told(served, "topics", "create", f"open-{number.value}")
    words = ["produce", f"open-{number.value}"]
    with running(served, words, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write("line\n" * 300_000)  # more than is read before the first record is sent
        process.stdin.flush()
        process.send_signal(number)
        assert process.wait(WAIT_S) == 130
        assert process.stderr is not None
        errors = process.stderr.read()
    assert "Traceback" not in errors
    assert "aborted: no record is visible" in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda it: it.name)
def test_a_signal_ends_a_consumer_well(served: str, number: signal.Signals) -> None:
    """What was printed is committed: the next member of the group goes on there."""
    topic, group = f"ends-{number.value}", f"group-{number.value}"
    told(served, "topics", "create", topic)
    told(served, "produce", topic, lines="one\n")
    words = ["consume", topic, "--from-beginning", "--group", group]
    with running(served, words) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "one\n"
        process.send_signal(number)
        assert process.wait(WAIT_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == "1 record\n"
    told(served, "produce", topic, lines="two\n")
    done = ended(served, *words, "--max", "1", "--key-separator", "=")
    assert done.stdout == "null=two\n"


def test_a_reader_that_is_gone_ends_a_consumer(served: str) -> None:
    """As `stilltide consume | head -1`."""
    told(served, "topics", "create", "piped")
    told(served, "produce", "piped", lines="line\n" * 50_000)
    words = " ".join([str(STILLTIDE), "consume", "piped", "--from-beginning"])
    done = subprocess.run(
        ["bash", "-c", f"{words} --bootstrap-servers {served} | head -1"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.stdout == "line\n"
    assert "Traceback" not in done.stderr


def test_the_doctor_finds_a_served_cluster_in_order(served: str) -> None:
    """Each check says what it has seen."""
    findings = told(served, "doctor")
    assert {it["state"] for it in findings} <= {"ok", "note"}, findings
    checks = {it["check"]: it["text"] for it in findings}
    assert checks["address"] == f"{served} is reached"
    assert "Kafka " in checks["brokers"]
    assert "have answered" in checks["workers"]
    assert checks["clock"] == "within 5 s of the brokers"


def test_the_doctor_names_the_next_step_where_nobody_listens() -> None:
    """What needs the cluster is skipped; the exit code says that something is wrong."""
    done = ended("127.0.0.1:1", "doctor", "-o", "json")
    assert done.returncode == 3
    findings = {it["check"]: it for it in json.loads(done.stdout)}
    assert findings["address"]["text"] == "no broker answers at 127.0.0.1:1"
    assert findings["address"]["next_step"]
    skipped = {name for name, it in findings.items() if it["state"] == "skipped"}
    assert skipped == {"brokers", "topics", "workers", "clock"}
