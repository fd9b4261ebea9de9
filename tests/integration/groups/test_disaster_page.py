"""The commands of docs/disaster.md, in order, while a cluster is killed and comes back."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.client import Subscription
from stilltide.schemas.values import TopicPartition
from tests.chaos.groups.data import Writer
from tests.chaos.groups.mesh import PARTITIONS, Mesh
from tests.support.looks import between_looks
from tests.support.processes.local import run_stilltide

PAGE = Path(__file__).parents[3] / "docs" / "disaster.md"
TOPIC, GROUP = "orders", "billing"
COUNT = 100
WAIT_S = 270.0

_SECTION = re.compile(r"^## (.+?)$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^stilltide (.+?)\s*# (\d)(, repeat)?.*$")


class Command(NamedTuple):
    """A command of the page, its exit code, and whether it is repeated until it ends so."""

    line: str
    code: int
    repeated: bool


def commands() -> dict[str, list[Command]]:
    """The commands of each section that has some; every line of an example is one."""
    found: dict[str, list[Command]] = {}
    for section, text in _SECTION.findall(PAGE.read_text()):
        for block in _SHELL.findall(text):
            for line in block.splitlines():
                matched = _COMMAND.match(line)
                assert matched, f"the exit code of {line!r} is not said"
                one = Command(matched[1], int(matched[2]), repeated=bool(matched[3]))
                found.setdefault(section, []).append(one)
    return found


class Site:
    """Both clusters, as an operator and an application have them."""

    def __init__(self, mesh: Mesh, directory: Path) -> None:
        self.mesh = mesh
        self.read: list[bytes] = []
        partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        self.partitions = partitions
        self.addresses = {name: one.bootstrap for name, one in mesh.brokers.items()}
        self.writers = {
            name: Writer(name, address, partitions) for name, address in self.addresses.items()
        }
        self._directory = directory

    async def run(self, section: str) -> None:
        """The commands of a section."""
        for command in commands()[section]:
            words = command.line
            for name, address in self.addresses.items():
                words = words.replace(f"{name}:9092", address)
            if "--clusters" not in words and "--bootstrap-servers" not in words:
                named = ["--clusters", " ".join(f"{k}={v}" for k, v in self.addresses.items())]
            else:
                named = []
            async with asyncio.timeout(WAIT_S):
                while True:
                    done = await asyncio.to_thread(
                        run_stilltide, *words.split(), *named, cwd=self._directory
                    )
                    if done.returncode == command.code or not command.repeated:
                        break
                    await between_looks()
            assert done.returncode == command.code, f"{command.line}: {done.stderr}"

    async def write(self, name: str) -> None:
        """Records to each partition of a cluster."""
        for data in self.partitions:
            self.writers[name].write(data, COUNT)
        await asyncio.to_thread(self.writers[name].flush)

    async def consume(self, name: str, count: int) -> None:
        """The group reads so many messages on a cluster."""
        connector = KafkaConnector(KafkaConfig(self.addresses[name]))
        async with (
            asyncio.timeout(WAIT_S),
            Subscription([TOPIC], group=GROUP, connector=connector) as subscription,
        ):
            for _ in range(count):
                self.read.append((await anext(subscription)).value or b"")
            await subscription.commit()

    def written(self) -> set[bytes]:
        """All values, wherever they were written."""
        return {
            value
            for writer in self.writers.values()
            for values in writer.values.values()
            for value in values
        }


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[list[LocalCluster]]:
    """Two clusters, of which the test kills one."""
    made = [LocalCluster(name, tmp_path / name, fast_start=True) for name in "ab"]
    yield made
    for one in made:
        one.stop()


@pytest.mark.slow
async def test_the_runbook(clusters: list[LocalCluster], tmp_path: Path):
    """Each command ends as the page says; no record is skipped, and none is read twice."""
    logs = tmp_path / "logs"
    logs.mkdir()
    each = PARTITIONS * COUNT
    async with Mesh(clusters, logs, TOPIC, in_workers=True) as mesh:
        site = Site(mesh, tmp_path)
        await site.write("a")
        await site.consume("a", each // 2)
        await site.run("Before")
        await site.write("a")  # perhaps not copied when `a` is lost
        await asyncio.to_thread(clusters[0].kill)
        await site.run("Cluster a is lost")
        await site.write("b")
        await site.consume("b", each // 2 + each)
        await site.run("Groups go on at b")
        await asyncio.to_thread(clusters[0].start)
        await site.run("Cluster a comes back")
        await site.run("Groups go back to a")
        await site.consume("a", 3 * each - len(site.read))
        assert len(site.read) == len(set(site.read))
        assert set(site.read) == site.written()


def test_every_command_is_run():
    """The sections that the runbook's test runs are all that have commands."""
    assert list(commands()) == [
        "Before",
        "Cluster a is lost",
        "Groups go on at b",
        "Cluster a comes back",
        "Groups go back to a",
    ]
