"""Every command about a topic that does not exist, on clusters without system topics or a worker.

What a user saw: `stilltide txn-log batching enable` on a cluster on which no worker had ever run
said "create the topic" after three seconds; `index once` with a mistyped topic left a system topic
behind; `group enable` replicated groups of a topic that nobody has; `snapshot show` asked to write
a transaction to a topic that did not exist; Ctrl-C to `stilltide replicate` printed a traceback.

The commands are those of the click tree, so a new command is run, too.
"""

import asyncio
import json
import signal
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import click
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.cli.main import cli, run
from stilltide.pipeline.config.settings import Settings
from stilltide.schemas.topics import OPERATOR_REQUESTS, PREFIX, system_topics
from stilltide.schemas.values import TopicPartition as Place
from tests.support.processes.local import STILLTIDE

WAIT_S = 120
TIMEOUT_S = "1"
TOPIC, GROUP = "no-such-topic", "no-such-group"

ARGUMENTS = {
    "topic": TOPIC,
    "topics": TOPIC,
    "names": TOPIC,
    "group": GROUP,
    "partition": "0",
    "place": "parquet:/no-such-folder/orders",
    "open_from": "0",
    "offset": "0",
    "transactional_id": "no-such-id",
    "txn_id": "0:17",
    "source": "b",
}
OPTIONS = {"--to": "a", "--over": "60", "--reason": "the order is stored"}
MORE = {
    "group reset": ["--to-earliest"],
    "offset translate": ["--to-topic", "other"],
    "dead-letter drop": ["--all"],
    "dead-letter replay": ["--all"],
    "native watch": ["--looks", "1"],
    "txn resolve": ["--decider", "orders-db=sqlite:////no-such-folder/orders.sqlite"],
}
ELSEWHERE = {
    "acl print": "asks no cluster",
    "completion": "asks no cluster",
    "config show": "asks no cluster",
    "demo": "has a cluster of its own",
    "txn decisions-ddl": "asks no cluster",
    "size": "asks no cluster",
    "local down": "asks no cluster",
    "local status": "asks no cluster",
    "local up": "asks no cluster",
    "audit follow": "starts Spark",
    "audit run": "starts Spark",
    "table follow": "starts Spark",
    "repair": "takes the names of system topics alone",
    "topics create": "creates what does not exist",
    "produce": "reads standard input",
    "console": "runs until stopped",
    "index run": "runs until stopped, see `index once`",
    "publish": "runs until stopped",
    "replicate": "runs until stopped",
    "worker": "runs until stopped",
}
"""Commands that are tested elsewhere, or that cannot name an unknown topic, with the reason."""


class Named(NamedTuple):
    """A command of the click tree."""

    words: tuple[str, ...]
    command: click.Command

    def line(self, bootstrap: str) -> list[str]:
        """The command about what does not exist, on a cluster at an address."""
        line = list(self.words)
        names = {name for it in self.command.params for name in it.opts}
        for it in self.command.params:
            if isinstance(it, click.Argument):
                line.append(ARGUMENTS[it.name or ""])
            elif it.required:
                is_flag = isinstance(it, click.Option) and it.is_flag
                line += [it.opts[-1]] if is_flag else [it.opts[-1], OPTIONS[it.opts[-1]]]
        for name, value in (
            ("--bootstrap-servers", bootstrap),
            ("--clusters", f"a={bootstrap}"),
            ("--timeout-s", TIMEOUT_S),
        ):
            line += [name, value] if name in names else []
        return [
            *line,
            *(["--yes"] if "--yes" in names else []),
            *MORE.get(" ".join(self.words), []),
        ]


def leaves(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[Named]:
    """Every command that is no group."""
    if not isinstance(command, click.Group):
        yield Named(words, command)
        return
    ctx = click.Context(command)
    for name in command.list_commands(ctx):
        below = command.get_command(ctx, name)
        assert below is not None
        yield from leaves(below, (*words, name))


COMMANDS = {" ".join(it.words): it for it in leaves(cli)}
ASKED = [it for it in COMMANDS if it not in ELSEWHERE]

CODES_OF_BARE = {
    "doctor": 3,
    "native list": 0,
    "status": 3,
    "topics check": 3,
}
"""Exit codes on a cluster without system topics, other than 1; 3: something needs a person."""

SILENT = {
    "coordinator internal-stats",
    "coordinator stats",
    "pending-ack batching show",
    "pending-ack internal-stats",
    "pending-ack stats",
    "txn list",
    "txn resolve",
    "txn slow",
    "txn-log batching show",
}
"""Commands that show those who answered, by exit code 4."""

DONE = {
    "group disable",
    "group list",
    "index list",
    "native list",
    "pending-ack batching disable",
    "pending-ack batching enable",
    "pending-ack batching reset",
    "pending-ack downgrade-check",
    "topics check",
    "txn history",
    "txn-log batching disable",
    "txn-log batching enable",
    "txn-log batching reset",
    "txn-log downgrade-check",
}
"""Commands that need no worker, on a cluster that has system topics."""


def with_topic(name: str) -> bool:
    """Whether a command names a topic."""
    return TOPIC in COMMANDS[name].line("")


class Said(NamedTuple):
    """The end of a command."""

    code: int
    out: str
    errors: str


def said(capsys: pytest.CaptureFixture[str], name: str, bootstrap: str) -> Said:
    """Runs a command in this process: what `run` lets out would be a traceback."""
    capsys.readouterr()
    code = run(["--log-level", "error", *COMMANDS[name].line(bootstrap)])
    printed = capsys.readouterr()
    return Said(code, printed.out, printed.err)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster on which no worker has ever run: system topics are the whole cluster's."""
    with LocalCluster("a", tmp_path_factory.mktemp("bare"), fast_start=True) as cluster:
        yield cluster.bootstrap


@pytest.fixture(scope="module")
def unserved(bare: str) -> str:
    """The cluster with system topics, of which no worker runs."""

    async def prepare() -> None:
        admin = KafkaConnector(KafkaConfig(bare)).admin()
        settings = Settings()
        counts = {"coordinators": settings.coordinators, "partitions": settings.partitions}
        await admin.ensure_topics([*system_topics(**counts)])
        await admin.close()

    asyncio.run(prepare())
    return bare


def system_topics_of(bootstrap: str) -> set[str]:
    """The system topics of a cluster."""
    listed = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=WAIT_S)
    return {it for it in listed.topics if it.startswith(PREFIX)}


@pytest.mark.parametrize("name", ASKED)
def test_on_a_cluster_without_system_topics(
    bare: str, name: str, capsys: pytest.CaptureFixture[str]
):
    """One error with the next step: the topic's name, or a worker; the cluster stays as it was."""
    done = said(capsys, name, bare)
    assert done.code == CODES_OF_BARE.get(name, 1), done
    if done.code == 1:
        assert done.out == ""
        assert done.errors.startswith("error: ")
        assert "\n  hint: " in done.errors
        steps = TOPIC, "stilltide worker", "no-such-id", "no-such-folder"
        assert any(step in done.errors for step in steps), done.errors
    assert system_topics_of(bare) == set()


@pytest.mark.usefixtures("replicated")
@pytest.mark.parametrize("name", ASKED)
def test_on_a_cluster_without_a_worker(
    unserved: str, name: str, capsys: pytest.CaptureFixture[str]
):
    """An unknown topic is named; who did not answer is named, with the command that starts it."""
    done = said(capsys, name, unserved)
    if with_topic(name) and name not in DONE:
        assert (done.code, done.out) == (1, "")
        assert done.errors.startswith(f"error: {TOPIC}")
        assert "\n  hint: " in done.errors
    elif name in SILENT:
        assert done.code == 4
        assert "start one with `stilltide worker`" in done.errors
    elif name in DONE:
        assert done.code == 0, done
    else:
        assert done.code == (3 if name in {"doctor", "status"} else 1), done
    if done.code == 1:
        assert "\n  hint: " in done.errors


def test_a_topic_that_comes_later_is_allowed_by_name(
    unserved: str, capsys: pytest.CaptureFixture[str]
):
    """`group enable --allow-none`."""
    line = [*COMMANDS["group enable"].line(unserved), "--allow-none"]
    assert run(line) == 0
    assert "replicated" in capsys.readouterr().err


async def ends_of(bootstrap: str, topic: str) -> list[TopicPartition]:
    """The end offsets of a topic."""
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    count = (await admin.describe_topics([topic]))[topic].partition_count
    ends = await admin.end_offsets([Place(topic, number) for number in range(count)])
    await admin.close()
    return [TopicPartition(it.topic, it.partition, end) for it, end in ends.items()]


@pytest.fixture(scope="module")
def replicated(bare: str) -> Iterator[Future[Said]]:
    """The end of a command that was stopped; it waits for its calls while other tests run."""

    def run_until_stopped() -> Said:
        named = f"a={bare} b=127.0.0.1:1"
        with started("replicate", "--from", "a", "--to", "b", "--clusters", named) as child:
            await_line(child, ["127.0.0.1:1"])
            return interrupted(child)

    with ThreadPoolExecutor() as pool:
        yield pool.submit(run_until_stopped)


@pytest.fixture
def requests(unserved: str) -> Iterator[Consumer]:
    """Reads what coordinators are asked from now on."""
    consumer = Consumer({"bootstrap.servers": unserved, "group.id": "look"})
    consumer.assign(asyncio.run(ends_of(unserved, OPERATOR_REQUESTS)))
    yield consumer
    consumer.close()


def started(*words: str) -> "subprocess.Popen[str]":
    """A command that runs."""
    pipe = subprocess.PIPE
    return subprocess.Popen([str(STILLTIDE), *words], stdout=pipe, stderr=pipe, text=True)


def interrupted(child: "subprocess.Popen[str]") -> Said:
    """The end of a command after Ctrl-C."""
    child.send_signal(signal.SIGINT)
    out, errors = child.communicate(timeout=WAIT_S)
    return Said(child.returncode, out, errors)


def await_line(child: "subprocess.Popen[str]", words: Sequence[str]) -> str:
    """The first line of the command's log that has one of these words."""
    assert child.stderr is not None
    for line in child.stderr:
        if any(word in line for word in words):
            return line
    raise AssertionError(f"the command has ended: {child.wait(WAIT_S)}")


def test_ctrl_c_ends_what_waits_for_an_answer(unserved: str, requests: Consumer):
    """With the exit code of SIGINT and one word; a live broker, and no worker that answers."""
    at = ("--bootstrap-servers", unserved)
    with started("txn", "describe", "0:17", "--timeout-s", "300", *at) as child:
        assert requests.poll(WAIT_S) is not None
        done = interrupted(child)
    assert (done.code, done.out, done.errors.strip()) == (130, "", "interrupted")


def test_ctrl_c_ends_what_runs_until_stopped(replicated: Future[Said]):
    """By exit code 0, as SIGTERM does, also while one of its clusters is away."""
    done = replicated.result(WAIT_S)
    assert done.code == 0, done
    assert "Traceback" not in done.errors


def test_ctrl_c_ends_the_console(unserved: str):
    """It has said where it serves; its exit code is 0."""
    with started("console", "--clusters", f"a={unserved}", "--port", "0") as child:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline())["event"] == "serving"
        done = interrupted(child)
    assert done.code == 0, done
    assert "Traceback" not in done.errors
