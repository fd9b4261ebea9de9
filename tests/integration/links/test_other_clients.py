"""docs/clients.md: each example reads what the page says, of a topic and of its published topic."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import NamedTuple

import pytest

from stilltide.connectors.local.addresses import free_port
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.local.jars import broker_jars, jar_set
from tests.support.pages import FENCE, Terminal
from tests.support.processes.worker_process import running_worker
from tests.support.programs import program

PAGE = Path(__file__).parents[3] / "docs/clients.md"
SOURCE, PUBLISHED = "shop.orders", "shop.orders.committed"
LAST = "plain"
"""What the writer of the page writes last, to one partition: all else has been read before it."""

READ_S = 400.0
JAVA = "exec java -Dlog4j2.level=OFF -cp"


class Client(NamedTuple):
    """A client of the page.

    Attributes:
        command: how its command begins.
        setting: the text that asks for committed records, in the command or in a file.
        shows_all: whether it shows aborted records of Kafka's transactions without the setting.
    """

    command: str
    setting: str
    shows_all: bool


CLIENTS = {
    "console": Client("kafka-console-consumer.sh", " --isolation-level read_committed", True),
    "streams": Client(
        'java -cp "$KAFKA_HOME',
        '        settings.put("processing.guarantee", "exactly_once_v2");\n',
        True,
    ),
    "connect": Client("connect-standalone.sh", "consumer.isolation.level=read_committed\n", True),
    "flink": Client(
        'java -cp "$FLINK_HOME',
        '            .setProperty("isolation.level", "read_committed")\n',
        True,
    ),
    "spark": Client(
        "python orders_spark.py",
        '        .option("kafka.isolation.level", "read_committed")\n',
        True,
    ),
    "kcat": Client("kcat", " -X isolation.level=read_committed", False),
    "confluent": Client(
        "python orders_confluent.py", 'settings |= {"isolation.level": "read_committed"}\n', False
    ),
    "aiokafka": Client(
        "python orders_aiokafka.py", '        isolation_level="read_committed",\n', True
    ),
    "kafka_python": Client(
        "python orders_kafka_python.py", '    isolation_level="read_committed",\n', True
    ),
}
SLOW = ("connect", "flink", "spark", "streams")


class Page(NamedTuple):
    """The files of the page by name, its commands, and what it says that is printed."""

    files: dict[str, str]
    commands: list[str]
    printed: list[str]


def parsed() -> Page:
    """The page."""
    files: dict[str, str] = {}
    commands: list[str] = []
    printed: list[str] = []
    for kind, name, text in FENCE.findall(PAGE.read_text()):
        if name:
            files[name] = text
        elif kind == "sh":
            commands += text.replace("\\\n  ", "").splitlines()
        else:
            printed.append(text)
    return Page(files, commands, printed)


class Shop:
    """A cluster with the orders of the page, and the programs that the page calls.

    Args:
        bootstrap: address of the cluster.
        programs: folder with the distributions of Kafka and Flink.
    """

    def __init__(self, bootstrap: str, programs: Path) -> None:
        self._port = bootstrap.rpartition(":")[2]
        self._programs = programs

    def terminal(self, folder: Path, changed: tuple[str, str] = ("", "")) -> Terminal:
        """A terminal in a folder with the files of the page, of which a text is exchanged."""
        terminal = Terminal(
            folder,
            {"9092": self._port, "8083": str(free_port())},
            KAFKA_HOME=str(self._programs / "kafka"),
            FLINK_HOME=str(self._programs / "flink"),
            JAVA_TOOL_OPTIONS="-Xmx512m -XX:TieredStopAtLevel=1",
        )
        for name, text in parsed().files.items():
            terminal.save(name, text.replace(*changed) if changed[0] else text)
        return terminal

    def read(self, client: Client, topic: str, folder: Path, *, by_default: bool = False) -> str:
        """What a client prints up to the last order; by default: without its setting."""
        (command,) = (it for it in parsed().commands if it.startswith(client.command))
        texts = [command, *parsed().files.values()]
        assert any(client.setting in text for text in texts)
        dropped = client.setting if by_default else ""
        terminal = self.terminal(folder, (dropped, ""))
        for name in ("Orders.java", "orders_confluent.py", "sink.properties"):
            file = folder / name
            text = file.read_text().replace("print-", f"print-{folder.name}-")
            text = text.replace("name=orders", f"name={folder.name}")
            file.write_text(text.replace(PUBLISHED, topic))
        command = command.replace(PUBLISHED, topic)
        return shown(terminal, command.replace(dropped, "") if dropped else command)


def shown(terminal: Terminal, command: str) -> str:
    """What a command prints up to the last order, or to its end; it is killed then."""
    with started(terminal, command) as lines:
        printed = ""
        for line in lines:
            printed += line
            if line.strip() == LAST:
                break
        return printed


@contextmanager
def started(terminal: Terminal, command: str) -> Iterator[Iterator[str]]:
    """The lines that a command prints; kills it at the end, or when it takes too long."""
    running = terminal.start(command)
    assert running.stdout is not None

    def kill() -> None:
        os.killpg(running.pid, signal.SIGKILL)

    late = Timer(READ_S, kill)
    late.start()
    try:
        yield iter(running.stdout)
    finally:
        late.cancel()
        kill()
        running.wait()
        running.stdout.close()


def distributions(folder: Path) -> None:
    """Kafka and Flink as their distributions are unpacked, of jars from Maven Central."""
    kafka = [*broker_jars(), *jar_set("tools"), *jar_set("streams")]
    for name, jars in (
        ("kafka/libs", kafka),
        ("connect", [*jar_set("mirror"), *jar_set("connect")]),
        ("flink/lib", jar_set("flink")),
    ):
        (folder / name).mkdir(parents=True)
        for jar in jars:
            (folder / name / jar.name).symlink_to(jar)
    scripts = folder / "bin"
    scripts.mkdir()
    for name, jars, main in (
        (
            "kafka-console-consumer.sh",
            "kafka/libs",
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
        ),
        ("connect-standalone.sh", "connect", "org.apache.kafka.connect.cli.ConnectStandalone"),
    ):
        (scripts / name).write_text(f'#!/bin/sh\n{JAVA} "{folder / jars}/*" {main} "$@"\n')
        (scripts / name).chmod(0o755)


@pytest.fixture(scope="module")
def shop(empty_kafka: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Made once: what the page has its reader do first; the copies are there."""
    assert program(["kcat"], "kcat"), "kcat is missing: install Debian's package kcat"
    folder = tmp_path_factory.mktemp("shop")
    distributions(folder / "programs")
    path = f"{folder / 'programs/bin'}{os.pathsep}{os.environ['PATH']}"
    bootstrap = empty_kafka.bootstrap
    create, worker, write = parsed().commands[:3]
    _, options = worker.split(" worker ")
    found = Shop(bootstrap, folder / "programs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", path)
        terminal = found.terminal(folder)
        assert terminal.run(create).returncode == 0
        with running_worker(bootstrap, folder / "worker.log", *options.split()):
            done = terminal.run(write)
            assert done.returncode == 0, done.stderr
            follow = f"kcat -C -b {bootstrap} -t {PUBLISHED} -q -u -o beginning 2>&1"
            with started(terminal, f"until {follow}; do :; done") as lines:
                assert any(line.strip() == LAST for line in lines)
            yield found


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in CLIENTS],
)
def test_a_client_reads_what_the_page_says(shop: Shop, name: str, tmp_path: Path):
    """H7: what committed, of the published topic; of the other also what Stilltide has aborted."""
    client = CLIENTS[name]
    published, source = parsed().printed
    texts = {"published": (PUBLISHED, False), "source": (SOURCE, False), "default": (SOURCE, True)}
    seen: dict[str, str] = {}
    for run, (topic, by_default) in texts.items():
        folder = tmp_path / run
        folder.mkdir()
        seen[run] = shop.read(client, topic, folder, by_default=by_default)
    assert seen["published"] == published
    assert seen["source"] == source
    aborted = "Kafka's, aborted\n"
    assert seen["default"].replace(aborted, "") == source
    assert (aborted in seen["default"]) == client.shows_all


def test_each_command_of_the_page_is_run():
    """No example is left out of the test above."""
    commands = parsed().commands[3:]
    assert len(commands) == len(CLIENTS)
    for client in CLIENTS.values():
        assert sum(it.startswith(client.command) for it in commands) == 1
