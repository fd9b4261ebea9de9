"""Writes topics without faults: random histories of both kinds of transaction, with counts."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from random import Random

from stilltide.pipeline.jobs.audits.plan import AuditPlan
from stilltide.pipeline.jobs.audits.report import Verdict
from stilltide.pipeline.jobs.audits.run import run_audit
from stilltide.schemas.values import TopicPartition, TxnId
from tests.support.native.topics import index_topics
from tests.support.native.writer import NativeWriter, await_stable
from tests.support.spark.topics import HandWriter, create_topics

PARTITIONS = 2
STEPS = 10


def write_sound(bootstrap: str, topic: str, seed: int) -> list[Counter[str]]:
    """Writes a topic; returns counts of each partition, by the names in an audit."""
    random = Random(seed)
    create_topics(bootstrap, {topic: PARTITIONS})
    coordinated, native = HandWriter(bootstrap, topic), NativeWriter(bootstrap, topic)
    held = [Counter[str]() for _ in range(PARTITIONS)]
    for step in range(STEPS):
        partition, count = random.randrange(PARTITIONS), random.randint(1, 4)
        here, txn = held[partition], TxnId(seed, step)
        kind = random.choice(["plain", "commit", "abort", "native commit", "native abort"])
        if kind.startswith("native"):
            committed = kind == "native commit"
            native.transaction(partition, count, commit=committed)
            here["markers"] += 1
            here["commits" if committed else "aborts"] += 1
            if not committed:
                here["aborted"] += count
                continue
            here["plain"] += count
        elif kind == "plain":
            coordinated.records(partition, count)
            here["plain"] += count
        else:
            written = coordinated.of_txn(txn, partition, count)
            if kind == "commit":
                coordinated.commit(txn, partition, written)
            else:
                coordinated.abort(txn, partition)
                here["hidden"] += count
        here["written"] += count
    for partition, here in enumerate(held):
        here["visible"] = here["written"] - here["hidden"]
        end = here["written"] + here["aborted"] + here["markers"]
        await_stable(bootstrap, TopicPartition(topic, partition), end)
    return held


def assert_sound(bootstrap: str, name: str, seeds: Sequence[int]) -> None:
    """Passes when audits of new sound topics, one by one, find nothing and count what was written.

    Args:
        bootstrap: the cluster.
        name: prefix of the topics' names.
        seeds: seeds of the histories, one for each topic.
    """
    written = {f"{name}-{seed}": write_sound(bootstrap, f"{name}-{seed}", seed) for seed in seeds}
    asyncio.run(index_topics(bootstrap, *written))
    for topic, held in written.items():
        report = run_audit(bootstrap, AuditPlan([topic]))
        assert report.findings == [], topic
        assert report.verdict is Verdict.VALID
        for expected, found in zip(held, report.partitions, strict=True):
            assert found.batches is not None, topic
            counted = asdict(found.records) | asdict(found.batches)
            assert {name: counted[name] for name in expected} == dict(expected), topic
            assert found.batches.unexplained == 0
