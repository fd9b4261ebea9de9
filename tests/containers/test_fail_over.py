"""Two official brokers and our images by themselves, through testcontainers: no compose file."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import pytest

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.client import TransactionClient
from tests.support.processes.containers import (
    SPARK_IMAGE,
    WORKER_IMAGE,
    kafka_container,
    run_image,
    stilltide_container,
)
from tests.support.processes.worker_process import create_topics, read_and_commit

TOPIC, GROUP = "orders", "billing"
CLUSTER_IDS = {"a": "5L6g3nShT-eMCtK--X86sw", "b": "q1Wd0m3JQxSpn7cKk2Tb4A"}
COUNT = 100
READ_ON_A = 40


@pytest.fixture
def clusters() -> Iterator[dict[str, str]]:
    """Addresses by name: a worker on each of two clusters, links between them."""
    with ExitStack() as stack:
        found = {
            name: stack.enter_context(kafka_container(CLUSTER_ID=cluster_id))
            for name, cluster_id in CLUSTER_IDS.items()
        }
        settings = {"STILLTIDE_CLUSTERS": " ".join(f"{name}={at}" for name, at in found.items())}
        for name, address in found.items():
            own = {"STILLTIDE_CLUSTER": name, "STILLTIDE_BOOTSTRAP_SERVERS": address}
            stack.enter_context(stilltide_container("worker", **settings, **own))
        for source, target in ("ab", "ba"):
            command = ("replicate", "--from", source, "--to", target)
            stack.enter_context(stilltide_container(*command, **settings))
        yield found


def stilltide(clusters: Mapping[str, str], image: str, *command: str) -> str:
    """What a command of an image prints that ends well."""
    named = " ".join(f"{name}={at}" for name, at in clusters.items())
    done = run_image(
        image,
        *command,
        options=("--network=host", "--workdir=/tmp", f"--env=STILLTIDE_CLUSTERS={named}"),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def written(bootstrap: str) -> set[int]:
    """The numbers of transactions that have committed; a tenth aborts."""
    async with TransactionClient(connector=KafkaConnector(KafkaConfig(bootstrap))) as client:
        for number in range(COUNT):
            async with client.transaction() as txn:
                await txn.send(TOPIC, b"%d" % number, key=b"%d" % number)
                if number % 10 == 9:
                    await txn.abort()
    return {number for number in range(COUNT) if number % 10 != 9}


def test_a_group_goes_on_at_the_other_cluster(clusters: dict[str, str]):
    """Nothing is lost or read twice, and an audit there finds what was committed."""
    asyncio.run(create_topics(clusters["a"], TOPIC))
    stilltide(clusters, WORKER_IMAGE, "subscription", "enable", TOPIC, GROUP)
    committed = asyncio.run(written(clusters["a"]))
    a, b = (KafkaConnector(KafkaConfig(clusters[name])) for name in "ab")
    first = asyncio.run(read_and_commit(a, TOPIC, GROUP, READ_ON_A))
    over = ("subscription", "failover", TOPIC, GROUP, "--to", "b")
    stilltide(clusters, WORKER_IMAGE, *over)
    rest = asyncio.run(read_and_commit(b, TOPIC, GROUP, len(committed) - READ_ON_A))
    assert sorted(first + rest) == sorted(committed)
    where = ("--bootstrap-servers", clusters["b"], "--topics", TOPIC, "--update-index")
    audit = stilltide(clusters, SPARK_IMAGE, "audit", "run", *where, "-o", "json")
    assert json.loads(audit)["verdict"] == "valid"
