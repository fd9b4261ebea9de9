"""`stilltide topics check` on the memory broker."""

from typing import Any

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.cli.topics import (
    altered_look,
    change_rows,
    json_row,
    look,
    table_rows,
)
from stilltide.pipeline.client import TransactionClient
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits
from stilltide.pipeline.drivers.shared.topic_findings import planned
from stilltide.schemas.topics import (
    MIN_INSYNC_REPLICAS,
    TXN_LOG,
    TXN_SNAPSHOTS,
    BrokerFigures,
    Replicas,
    TopicSpec,
    system_topics,
)
from tests.support.coordinator.worker_memory import MemoryWorker, until

SETTINGS = Settings(coordinators=2, partitions=3)
SPECS = system_topics(coordinators=2, partitions=3)
INTERNAL = ["__consumer_offsets", "__transaction_state"]


@pytest.fixture
def broker() -> MemoryBroker:
    """A cluster of three brokers without topics."""
    return MemoryBroker(figures=BrokerFigures(3, 1, 3))


def create(broker: MemoryBroker, *others: TopicSpec, but: str = "") -> None:
    """Creates the system topics as a worker does, but for one, and others."""
    for spec in SPECS:
        if spec.name != but:
            broker.create_topic(
                TopicSpec(
                    spec.name, spec.partition_count, spec.configs, Replicas(3, 2), spec.wanted
                )
            )
    for spec in others:
        broker.create_topic(spec)


async def rows(broker: MemoryBroker, *patterns: str) -> dict[str, Any]:
    """What the command prints as JSON, by topic."""
    seen = await look(MemoryConnector(broker), SETTINGS, patterns)
    return {row["topic"]: row for row in map(json_row, seen.findings)}


async def test_all_is_well(broker: MemoryBroker):
    """The exit code is 0 for topics that a worker of these settings created."""
    create(broker)
    seen = await look(MemoryConnector(broker), SETTINGS)
    assert seen.exit_code == 0
    assert [row["topic"] for row in table_rows(seen.findings)] == [
        *(spec.name for spec in SPECS),
        *INTERNAL,
    ]
    assert planned(seen.findings) == {}
    assert seen.reassignment["partitions"] == []


async def test_a_missing_topic_is_named_with_the_next_step(broker: MemoryBroker):
    """Workers create it; Kafka's own topics come at their first use, and do not count."""
    create(broker, but=TXN_LOG)
    seen = await look(MemoryConnector(broker), SETTINGS)
    assert seen.exit_code == 3
    missing = [row for row in map(json_row, seen.findings) if not row["exists"]]
    assert [row["topic"] for row in missing] == [TXN_LOG, *INTERNAL]
    assert [row["good"] for row in missing] == [False, True, True]
    assert "stilltide worker" in missing[0]["next_step"]
    assert "first use" in missing[1]["next_step"]
    shown = {row["topic"]: row["falls short"] for row in table_rows(seen.findings)}
    assert shown[TXN_LOG] == "missing"
    assert shown[INTERNAL[0]] == ""


async def test_expected_and_actual_are_shown(broker: MemoryBroker):
    """A topic of an earlier version with one replica: every figure, and each config."""
    configs = next(spec.configs for spec in SPECS if spec.name == TXN_SNAPSHOTS)
    create(broker, TopicSpec(TXN_SNAPSHOTS, 3, configs, Replicas(1, 1)), but=TXN_SNAPSHOTS)
    row = (await rows(broker))[TXN_SNAPSHOTS]
    assert (row["partitions"], row["expected_partitions"]) == (3, 3)
    assert (row["replication_factor"], row["expected_replication_factor"]) == (1, 3)
    assert (row["min_insync_replicas"], row["expected_min_insync_replicas"]) == (1, 2)
    assert {it["what"]: it["remedy"] for it in row["falls_short"]} == {
        "replication.factor": "reassign",
        MIN_INSYNC_REPLICAS: "by hand",
        "segment.bytes": "alter",
        "segment.ms": "alter",
        "max.compaction.lag.ms": "alter",
        "min.cleanable.dirty.ratio": "alter",
        "delete.retention.ms": "alter",
    }
    (table,) = [
        row
        for row in table_rows((await look(MemoryConnector(broker), SETTINGS)).findings)
        if row["topic"] == TXN_SNAPSHOTS
    ]
    assert table["partitions"] == "3"
    assert table["replication.factor"] == "1, not 3"
    assert "segment.ms=604800000, not 600000" in table["falls short"]
    assert "stilltide topics check --apply" in table["next step"]


async def test_configs_are_altered_and_replicas_are_planned(broker: MemoryBroker):
    """After an alteration only what an operator must do falls short."""
    configs = next(spec.configs for spec in SPECS if spec.name == TXN_SNAPSHOTS)
    create(broker, TopicSpec(TXN_SNAPSHOTS, 3, configs, Replicas(1, 1)), but=TXN_SNAPSHOTS)
    connector = MemoryConnector(broker)
    seen = await look(connector, SETTINGS)
    changes = planned(seen.findings)
    shown = change_rows(changes, seen.findings)
    assert {
        "topic": TXN_SNAPSHOTS,
        "config": "segment.ms",
        "from": "604800000",
        "to": "600000",
    } in (shown)
    assert {row["topic"] for row in shown} == {TXN_SNAPSHOTS}
    after = await altered_look(connector, SETTINGS, (), changes)
    assert broker.topics[TXN_SNAPSHOTS].set_configs["segment.ms"] == "600000"
    assert broker.topics[TXN_SNAPSHOTS].set_configs[MIN_INSYNC_REPLICAS] == "1"
    assert after.exit_code == 3
    assert planned(after.findings) == {}
    assert [
        (one["topic"], one["partition"], sorted(one["replicas"]))
        for one in after.reassignment["partitions"]
    ] == [(TXN_SNAPSHOTS, number, [1, 2, 3]) for number in range(3)]


async def test_replicas_of_other_topics_and_of_kafkas_own_count(broker: MemoryBroker):
    """Topics that a pattern names are checked for replicas alone, and so are Kafka's own."""
    own = TopicSpec(INTERNAL[1], 50, {"cleanup.policy": "compact"}, Replicas(1, 1))
    create(broker, TopicSpec("orders", 7, replicas=Replicas(2, 1)), own)
    broker.create_topic(TopicSpec("ordinary", 7, replicas=Replicas(3, 1)))
    broker.create_topic(TopicSpec("payments", 7, replicas=Replicas(1, 1)))
    found = await rows(broker, "ord*")
    assert "payments" not in found
    assert {it["what"] for it in found["orders"]["falls_short"]} == {
        "replication.factor",
        MIN_INSYNC_REPLICAS,
    }
    assert found["orders"]["expected_partitions"] == 7
    assert [it["remedy"] for it in found[INTERNAL[1]]["falls_short"]] == ["reassign", "by hand"]
    seen = await look(MemoryConnector(broker), SETTINGS, ("ord*",))
    assert planned(seen.findings) == {"ordinary": {MIN_INSYNC_REPLICAS: "2"}}


async def test_brokers_that_are_down_are_expected_back():
    """With `auto` a cluster of three needs three replicas, also while one broker is up."""
    broker = MemoryBroker(figures=BrokerFigures(1, 1, 3))
    for spec in SPECS:
        broker.create_topic(spec)
    seen = await look(MemoryConnector(broker), SETTINGS)
    assert (seen.factor, len(seen.brokers), seen.lacks_replicas) == (3, 1, True)
    assert seen.reassignment["partitions"] == []


async def test_a_topic_with_transactions_that_compacts_falls_short():
    """C18: exit code 3, since when a worker has seen it, and Kafka's command; never altered."""
    cluster = MemoryBroker(figures=BrokerFigures(3, 1, 3))
    connector = MemoryConnector(cluster)
    cluster.create_topic(TopicSpec("accounts", 1))
    cluster.create_topic(TopicSpec("plain", 1, {"cleanup.policy": "compact"}))
    limits = SnapshotLimits(changes_max=1, interval_ms=0)
    async with MemoryWorker(connector, coordinators=2, partitions=3, snapshots=limits):
        async with TransactionClient(connector=connector) as client, client.transaction() as txn:
            await txn.send("accounts", b"100", key=b"alice")
        parts = cluster.partitions([TXN_SNAPSHOTS])
        await until(lambda: any(cluster.records(it) for it in parts))
    before = await look(connector, SETTINGS)
    assert [one.spec.name for one in before.findings if one.spec.name == "accounts"] == []
    cluster.topics["accounts"].alter({"cleanup.policy": "compact,delete"})
    seen = await look(connector, SETTINGS)
    row = {row["topic"]: row for row in map(json_row, seen.findings)}["accounts"]
    assert seen.exit_code == 3
    (short,) = row["falls_short"]
    assert (short["what"], short["expected"], short["actual"]) == (
        "cleanup.policy",
        "delete",
        "compact,delete",
    )
    assert "no worker that runs has seen it yet" in short["next_step"]
    assert "--topic accounts --add-config cleanup.policy=delete" in short["next_step"]
    assert planned(seen.findings).get("accounts") is None
    allowed = await look(connector, Settings(coordinators=2, partitions=3, allow_compacted="acc*"))
    assert "accounts" not in [one.spec.name for one in allowed.findings]
