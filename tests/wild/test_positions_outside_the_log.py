"""A group stood outside of its log, and no command said so or helped.

A tool had committed 1000 for a group in a log of 20 records (a commit that was copied from another
cluster, or a topic that was created again); another group had not read for longer than retention
keeps records. `Subscription` ended with "Offset out of range"; `stilltide group lag` said "visible
0" for the one and 4 for the other without a word, and `stilltide group reset` waited for a
controller of replicated groups, which nobody had.
"""

import asyncio
import json
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer

from stilltide.connectors.errors import OffsetOutOfRangeError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.cli.main import run
from stilltide.pipeline.client import Subscription
from stilltide.pipeline.config.settings import Settings
from stilltide.schemas.topics import TopicSpec, system_topics
from stilltide.schemas.values import Offset, TopicPartition

WAIT_S = 180
COUNT = 20
START = 4
BEYOND = 1000


@pytest.fixture
def group(bootstrap: str, topic_name: str) -> str:
    """A group beyond the end in partition 0, below the start in 1, and within the log in 2."""

    async def prepare() -> None:
        connector = KafkaConnector(KafkaConfig(bootstrap))
        admin, groups, writer = connector.admin(), connector.group_admin(), connector.writer("w")
        places = [TopicPartition(topic_name, number) for number in range(3)]
        try:
            settings = Settings()
            counts = {"coordinators": settings.coordinators, "partitions": settings.partitions}
            await admin.ensure_topics([TopicSpec(topic_name, 3), *system_topics(**counts)])
            for data in places:
                for number in range(COUNT):
                    writer.append(data, b"%d" % number, lambda _error, _offset: None)
            assert await writer.flush(WAIT_S)
            await admin.delete_records({places[1]: Offset(START)})
            offsets = (BEYOND, START - 1, START)
            await groups.move(
                topic_name,
                {data: Committed(Offset(at), "") for data, at in zip(places, offsets, strict=True)},
            )
        finally:
            await writer.close()
            await groups.close()
            await admin.close()

    asyncio.run(prepare())
    return topic_name


class Said(NamedTuple):
    """What a command has printed, and its exit code."""

    code: int
    rows: list[dict[str, Any]]
    text: str


class Groups:
    """The commands of `stilltide group` on the test's topic, run in this process."""

    def __init__(self, bootstrap: str, name: str, capture: pytest.CaptureFixture[str]) -> None:
        self._options = ("--bootstrap-servers", bootstrap, "-o", "json")
        self._name = name
        self._capture = capture

    def run(self, command: str, *arguments: str, group: str = "") -> Said:
        """Runs a command about a group, which has the name of the topic unless it is given."""
        self._capture.readouterr()
        words = ["group", command, self._name, group or self._name, *arguments, *self._options]
        code = run(["--log-level", "error", *words])
        printed = self._capture.readouterr()
        return Said(code, json.loads(printed.out or "[]"), printed.err)

    @property
    def committed(self) -> list[int]:
        """The group's committed offset in each partition."""
        return [it["committed"] for it in self.run("lag").rows]


@pytest.fixture
def groups(bootstrap: str, group: str, capsys: pytest.CaptureFixture[str]) -> Groups:
    """The commands, about a topic and a group of the same name."""
    return Groups(bootstrap, group, capsys)


def test_the_lag_says_where_a_group_stands(groups: Groups, group: str):
    """`group lag` names partition, position, the log's range, and the command that helps."""
    said = groups.run("lag")
    assert [it["outside"] for it in said.rows] == ["beyond the end", "below the start", None]
    assert [it["committed"] for it in said.rows] == [BEYOND, START - 1, START]
    held = [(it["log_start"], it["log_end"]) for it in said.rows]
    assert held == [(0, COUNT), (START, COUNT), (0, COUNT)]
    assert [it["visible"] for it in said.rows] == [0, COUNT - START, COUNT - START]
    command = f"stilltide group reset {group} {group} --partition"
    assert f"{command} 0 --to-latest" in said.text
    assert f"{command} 1 --to-earliest" in said.text
    assert f"{group}/0: the position {BEYOND} of group {group} lies beyond the end" in said.text


def test_status_and_the_list_of_groups_name_a_group_outside(
    bootstrap: str, group: str, capsys: pytest.CaptureFixture[str]
):
    """`group list` counts the partitions; `status` has the command, and says that it is urgent."""
    named = ("--clusters", f"a={bootstrap}")
    assert run(["--log-level", "error", "group", "enable", group, group, *named]) == 0
    capsys.readouterr()
    assert run(["--log-level", "error", "group", "list", *named, "-o", "json"]) == 0
    printed = capsys.readouterr()
    assert [it["outside"] for it in json.loads(printed.out) if it["group"] == group] == [2]
    assert f"stilltide group reset {group} {group} --partition 0 --to-latest" in printed.err
    assert run(["--log-level", "error", "status", *named, "-o", "json"]) == 3
    findings = json.loads(capsys.readouterr().out)["findings"]
    told = [it for it in findings if f"group {group} lies beyond the end" in json.dumps(it)]
    assert [it["weight"] for it in told] == ["act"]
    assert f"stilltide group reset {group} {group}" in json.dumps(told)
    assert "and 1 more partitions" in json.dumps(told)


def test_any_group_can_be_reset(groups: Groups):
    """Without `--apply` nothing changes; no worker, and no setting of the group, is needed."""
    shown = groups.run("reset", "--to-earliest")
    assert [(it["to_offset"], it["applied"]) for it in shown.rows] == [
        (0, False),
        (START, False),
        (0, False),
    ]
    assert groups.committed == [BEYOND, START - 1, START]
    assert groups.run("reset", "--partition", "0", "--to-latest", "--apply").code == 0
    assert groups.run("reset", "--partition", "1", "--to-earliest", "--apply").code == 0
    assert groups.committed == [COUNT, START, START]
    assert [it["outside"] for it in groups.run("lag").rows] == [None] * 3


def test_a_reset_outside_of_the_log_is_refused(groups: Groups):
    """The error names the partition and what the log holds; no partition is moved."""
    said = groups.run("reset", "--to-offset", "1", "--apply")
    assert said.code == 1
    assert f"{START} to {COUNT}" in said.text
    assert groups.committed == [BEYOND, START - 1, START]


def test_a_group_with_members_is_not_reset(bootstrap: str, groups: Groups, group: str):
    """The error names the members; with `--stop` they are removed first."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": "till-7",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([group])
    try:
        while not consumer.assignment():
            consumer.poll(0.1)
        said = groups.run("reset", "--to-latest", "--apply")
        assert said.code == 1
        assert "till-7" in said.text
        assert groups.committed == [BEYOND, START - 1, START]
        assert groups.run("reset", "--to-latest", "--apply", "--stop").code == 0
    finally:
        consumer.close()
    assert groups.committed == [COUNT] * 3


def subscribe(bootstrap: str, group: str, **options: Any) -> Subscription:
    """A member of the group; the topic has its name."""
    return Subscription(
        [group],
        group=group,
        connector=KafkaConnector(KafkaConfig(bootstrap)),
        **options,
    )


def test_a_mistyped_group_is_not_created(groups: Groups, group: str):
    """The cluster does not know it, and the error says so."""
    said = groups.run("reset", "--to-latest", "--apply", group=f"{group}-mistyped")
    assert said.code == 1
    assert f"no such group: {group}-mistyped" in said.text


async def read_on(subscription: Subscription) -> None:
    """Reads until the subscription fails; only partition 2 has a position within its log."""
    async with asyncio.timeout(WAIT_S):
        async for message in subscription:
            assert message.partition == 2


async def test_a_member_outside_of_its_log_names_the_command(bootstrap: str, group: str):
    """The error has the partition, the position, the log's range, and the next step."""
    async with subscribe(bootstrap, group) as subscription:
        with pytest.raises(OffsetOutOfRangeError) as raised:
            await read_on(subscription)
    error = raised.value
    assert (error.topic, error.partition, error.offset) in {
        (group, 0, BEYOND),
        (group, 1, START - 1),
    }
    assert f"stilltide group reset {group} {group} --partition {error.partition}" in error.hint


async def test_a_member_goes_on_at_the_earliest_record(bootstrap: str, group: str):
    """Each record that is left is read; the group's commit then lies within the log."""
    async with subscribe(bootstrap, group, out_of_range="earliest") as subscription:
        found: dict[int, list[int]] = {0: [], 1: [], 2: []}
        async with asyncio.timeout(WAIT_S):
            while [len(it) for it in found.values()] != [COUNT, COUNT - START, COUNT - START]:
                message = await anext(subscription)
                found[message.partition].append(message.offset)
        assert found == {0: [*range(COUNT)], 1: [*range(START, COUNT)], 2: [*range(START, COUNT)]}
        await subscription.commit()
