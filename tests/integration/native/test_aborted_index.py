"""`stilltide index` on a real broker (F3): incremental, restartable, follows retention."""

import asyncio
import json
from pathlib import Path

import pytest

from stilltide.connectors.errors import FencedError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.cli.common.output import Row
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import TopicPartition
from tests.support.native.topics import (
    index_topics,
    make_indexing,
    read_index,
    transactional,
    until_stable,
    write,
)
from tests.support.processes.child import Child
from tests.support.processes.local import STILLTIDE, run_stilltide
from tests.support.processes.operator import Operator, fetch


def index(bootstrap: str, cwd: Path, *arguments: str) -> list[Row]:
    """What `stilltide index once` prints."""
    done = run_stilltide(
        "index", "once", *arguments, "--bootstrap-servers", bootstrap, "-o", "json", cwd=cwd
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def test_ranges_and_coverage(bootstrap: str, topic_name: str, tmp_path: Path):
    """Once, then again after more transactions, after retention, and after a drop."""
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    await admin.ensure_topics([TopicSpec(topic_name, 2)])
    data = TopicPartition(topic_name, 0)
    producer = await asyncio.to_thread(transactional, bootstrap, topic_name)
    for count, commit in ((3, False), (2, True), (1, False), (1, False)):
        await asyncio.to_thread(write, producer, data, count, commit=commit)
    ends = 11
    await until_stable(admin, data, ends)
    rows = index(bootstrap, tmp_path, topic_name)
    assert rows == [
        {"topic": topic_name, "partition": 0, "covered_to": ends},
        {"topic": topic_name, "partition": 1, "covered_to": 0},
    ]
    stored = await read_index(bootstrap, data)
    assert stored is not None
    assert list(stored.ranges) == [(0, 3), (7, 10)]
    assert stored.covers(0, ends)

    await asyncio.to_thread(write, producer, data, 2, commit=False)
    await until_stable(admin, data, 14)
    await index_topics(bootstrap, topic_name)
    stored = await read_index(bootstrap, data)
    assert stored is not None
    assert [offset for offset in range(20) if offset in stored.ranges] == [0, 1, 2, 7, 8, 9, 11, 12]

    operator = Operator(bootstrap, tmp_path)
    ranges = await operator.ask(f"native aborted-ranges {topic_name} 0 --from 2")
    assert [(it["first"], it["end"]) for it in ranges] == [(2, 3), (7, 10), (11, 13)]
    await operator.ask(f"native aborted-ranges {topic_name} 0 --to 15", code=4)
    listed = [it for it in await operator.ask("index list") if it["topic"] == topic_name]
    assert [(it["covered_to"], it["lag"], it["problem"]) for it in listed] == [
        (14, 0, None),
        (0, 0, None),
    ]

    await admin.delete_records({data: 8})
    await index_topics(bootstrap, topic_name)
    stored = await read_index(bootstrap, data)
    assert stored is not None
    assert stored.coverage.covered_from == 8
    assert not stored.covers(7, 9)

    dropped = run_stilltide(
        "index", "drop", topic_name, "--bootstrap-servers", bootstrap, cwd=tmp_path
    )
    assert dropped.returncode == 0, dropped.stderr
    assert await read_index(bootstrap, data) is None
    await index_topics(bootstrap, topic_name)
    stored = await read_index(bootstrap, data)
    assert stored is not None
    assert list(stored.ranges) == [(9, 13)]
    await admin.close()


async def test_a_running_indexer_follows_and_is_replaced(bootstrap: str, topic_name: str):
    """It takes up what is written; once another one has taken over, it writes no more."""
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    await admin.ensure_topics([TopicSpec(topic_name, 1)])
    data = TopicPartition(topic_name, 0)
    indexing = make_indexing(bootstrap, [topic_name])
    running = asyncio.create_task(indexing.run())
    producer = await asyncio.to_thread(transactional, bootstrap, topic_name)
    for end in (3, 6):
        await asyncio.to_thread(write, producer, data, 2, commit=False)
        async with asyncio.timeout(240):
            while (stored := await read_index(bootstrap, data)) is None or not stored.covers(
                0, end
            ):
                assert not running.done()
    await index_topics(bootstrap, topic_name)
    await asyncio.to_thread(write, producer, data, 2, commit=False)
    async with asyncio.timeout(240):
        with pytest.raises(FencedError):
            await running
    await indexing.close()
    await admin.close()


async def test_an_indexer_is_probed_and_stopped(bootstrap: str, topic_name: str):
    """Its site says when it is ready, and how far it is; SIGTERM ends it well."""
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    await admin.ensure_topics([TopicSpec(topic_name, 2)])
    await admin.close()
    options = ("--bootstrap-servers", bootstrap, "--web-port", "0")
    async with Child([str(STILLTIDE), "index", "run", topic_name, *options]) as process:
        web = (await process.announced())["web"]
        async with asyncio.timeout(240):
            while (answer := await fetch(f"{web}/readyz"))[0] != 200:
                pass
            metrics = (await fetch(f"{web}/metrics"))[1]
        assert await process.stop() == 0
    assert answer[1] == "[+]broker answers\n[+]index indexes 2 partitions; 0 offsets behind\n"
    assert 'stilltide_aborted_index_lag{cluster="a"' in metrics


def test_a_missing_topic_is_said(bootstrap: str, topic_name: str, tmp_path: Path):
    """Exit code 1 and the name."""
    done = run_stilltide(
        "index", "once", topic_name, "--bootstrap-servers", bootstrap, cwd=tmp_path
    )
    assert done.returncode == 1
    assert topic_name in done.stderr
