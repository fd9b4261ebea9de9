"""What `stilltide group describe` prints of a topic with several partitions."""

import json
from typing import Any

import pytest

from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.cli.common.output import Row
from stilltide.pipeline.cli.group.command import described_rows, print_described
from stilltide.pipeline.drivers.groups.report import describe_group
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.groups.clusters import DATA, replicated

NOW_MS = 1_000


def row(cluster: str, partition: int) -> Row:
    """Where a group is that has read as far as its number says."""
    offset = 1000 * (ord(cluster) - ord("a") + 1) + partition
    return {
        "cluster": cluster,
        "topic": "orders",
        "partition": partition,
        "offset": offset,
        "log_start": 0,
        "decided_end": 9000 + partition,
        "active": False,
        "standing": "at-the-prefix",
        "read_again": 0,
        "read_again_others": 0,
        "last_update": None,
        "generation": 77,
        "snapshots": 3,
        "snapshot_age_ms": 40,
        "snapshot_round_trip_ms": 5,
        "links_stopped": None,
        "why": f"because of {cluster}{partition}",
    }


ROWS = [row(cluster, partition) for cluster in "ab" for partition in range(3)]


def cells(line: str) -> list[str]:
    """Of a line of a table."""
    return [cell.strip() for cell in line.strip("\u2502").split("\u2502")]


def test_a_table_shows_every_partition_of_every_cluster(capsys: pytest.CaptureFixture[str]):
    """Each is a row in each table: where the group is, its snapshots, and why; no cell is lost."""
    print_described(ROWS, "table")
    printed = capsys.readouterr().out
    lines = [cells(line) for line in printed.splitlines() if line.startswith("\u2502")]
    for one in ROWS:
        place = [str(one["cluster"]), str(one["partition"])]
        first, second, third = [it for it in lines if it[:2] == place]
        assert str(one["offset"]) in first
        assert str(one["decided_end"]) in first
        assert second[2:4] == ["77", "3"]
        assert third == [*place, one["why"]]
    for name in set(ROWS[0]) - {"topic", "standing"}:
        assert name in printed


def test_json_lists_every_partition_with_every_key(capsys: pytest.CaptureFixture[str]):
    """One object for each cluster and partition, as it always was."""
    print_described(ROWS, "json")
    assert json.loads(capsys.readouterr().out) == ROWS


async def test_a_topic_of_two_partitions_gives_two_rows_a_cluster():
    """Each with its own committed offset."""
    async with replicated("a", "g") as sites:
        site = sites["a"]
        site.broker.add_partitions(DATA.topic, 2)
        other = TopicPartition(DATA.topic, 1)
        site.broker.group("g").committed[other] = Committed(Offset(0), "")
        found = await describe_group(sites.connectors, DATA.topic, "g", timeout_s=10)
        rows: list[dict[str, Any]] = [dict(it) for it in described_rows(found, NOW_MS)]
        assert [(it["partition"], it["offset"]) for it in rows] == [(0, None), (1, 0)]
