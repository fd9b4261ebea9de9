"""`stilltide topics check` on a real broker, with topics that an earlier version created."""

import asyncio
import json
import os
import subprocess
from pathlib import Path

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.jars import broker_jars, jar_set
from stilltide.connectors.local.java import find_java
from stilltide.pipeline.core.replicas import reassignment
from stilltide.schemas.topics import (
    TXN_LOG,
    TXN_SNAPSHOTS,
    Broker,
    PartitionReplicas,
    TopicSpec,
    system_topics,
)
from tests.support.processes.operator import Operator
from tests.support.processes.worker_process import WorkerProcess, create_topics

SPECS = {one.name: one for one in system_topics(coordinators=4, partitions=4)}
TOOL = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
TOOL_S = 360.0


async def test_a_topic_of_an_earlier_version_is_served_shown_and_mended(
    bootstrap: str, tmp_path: Path
):
    """E10: the worker warns and serves; the command shows the configs, asks, and alters them."""
    spec = SPECS[TXN_SNAPSHOTS]
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    await admin.ensure_topics([TopicSpec(spec.name, spec.partition_count, spec.configs)])
    operator = Operator(bootstrap, tmp_path)
    async with WorkerProcess(bootstrap, tmp_path / "worker.log") as worker:
        await worker.serving()
        said = [line for line in worker.said.splitlines() if "topic_has_other_configs" in line]
        assert len(said) == 1
        assert "stilltide topics check --apply" in said[0]

        found = await operator.ask("topics check", code=3)
        short = {one["topic"]: one["falls_short"] for one in found["topics"] if not one["good"]}
        assert list(short) == [TXN_SNAPSHOTS]
        assert {one["what"]: one["expected"] for one in short[TXN_SNAPSHOTS]} == dict(spec.wanted)
        assert {one["topic"] for one in found["topics"]} >= {*SPECS, "__consumer_offsets"}

        shown = await operator.run("topics check --apply", code=3)
        assert "segment.ms" in shown.stdout
        assert "add --yes" in shown.stderr
        assert "segment.ms" not in (await admin.topic_overrides([spec.name]))[spec.name]

        done = await operator.ask("topics check --apply --yes")
        assert done["altered"]
        assert {one["config"] for one in done["alterations"]} == {*spec.wanted}
        assert all(one["good"] for one in done["topics"])
        overrides = (await admin.topic_overrides([spec.name]))[spec.name]
        assert overrides.items() >= spec.wanted.items()
        assert (await operator.run("topics check")).stdout.count("│ 4 ") >= len(SPECS) - 1
    await admin.close()


async def test_other_settings_of_the_workers_are_other_expectations(bootstrap: str, tmp_path: Path):
    """The command takes the settings of a worker, and says what nobody can alter."""
    async with WorkerProcess(bootstrap, tmp_path / "worker.log") as worker:
        await worker.serving()
    options = "topics check --coordinators 8 --replication-factor 3 --apply --yes"
    found = await Operator(bootstrap, tmp_path).ask(options, code=3)
    short = {one["topic"]: one["falls_short"] for one in found["topics"]}
    assert [it["what"] for it in short[TXN_LOG]] == [
        "partitions",
        "replication.factor",
        "min.insync.replicas",
    ]
    assert not found["altered"]
    assert found["reassignment"] == {"version": 1, "partitions": []}


async def test_kafkas_own_tool_takes_the_plan(bootstrap: str, tmp_path: Path):
    """Its parser and its checks: brokers that are up are accepted, an unknown one is named."""
    await create_topics(bootstrap, "planned")
    nowhere = [PartitionReplicas((), ())] * 3
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(reassignment({"planned": nowhere}, 1, [Broker(1)])))
    for mode, said in (("--execute", "Successfully started"), ("--verify", "is completed")):
        assert said in (await reassign(bootstrap, plan, mode)).stdout
    plan.write_text(json.dumps(reassignment({"planned": nowhere}, 2, [Broker(1), Broker(2)])))
    done = await reassign(bootstrap, plan, "--execute")
    assert "Unknown broker id 2" in done.stderr + done.stdout


async def reassign(bootstrap: str, plan: Path, mode: str) -> "subprocess.CompletedProcess[str]":
    """Runs kafka-reassign-partitions.sh, without the script."""
    jars = os.pathsep.join(map(str, [*broker_jars(), *jar_set("tools")]))
    options = ["--bootstrap-server", bootstrap, "--reassignment-json-file", str(plan), mode]
    return await asyncio.to_thread(
        subprocess.run,
        [str(find_java().path), "-Xmx128m", "-cp", jars, TOOL, *options],
        capture_output=True,
        text=True,
        timeout=TOOL_S,
        check=False,
    )
