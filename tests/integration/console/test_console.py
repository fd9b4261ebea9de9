"""`stilltide console` on a real cluster with a worker: what a viewer sees of a transaction."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.ports.connector import closing
from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.client import TransactionClient
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.processes.child import Child
from tests.support.processes.local import run_stilltide
from tests.support.processes.worker_process import WorkerProcess, create_topics

WAIT_S = 240.0


async def events(viewer: aiohttp.ClientSession, url: str) -> AsyncIterator[str]:
    """The bodies of a page that is open."""
    limits = aiohttp.ClientTimeout(total=WAIT_S)
    async with viewer.get(url, timeout=limits) as answer:
        assert answer.status == 200
        while True:
            yield (await answer.content.readuntil(b"\n\n")).decode()


async def first(viewer: aiohttp.ClientSession, url: str, *texts: str) -> str:
    """The first body of an open page that has all of these texts."""
    async for body in events(viewer, url):
        if all(it in body for it in texts):
            return body
    raise AssertionError(f"the stream has ended without {texts}")


async def test_a_transaction_is_seen_until_it_ends(topic_name: str, tmp_path: Path):
    """Open, with its client and the command that ends it; then gone; then the cluster is away.

    The broker is the test's own: the test kills it.
    """
    with LocalCluster("a", tmp_path / "a", fast_start=True) as cluster:
        words = ("console", "--port", "0", "--hold-s", "1", "--clusters", f"a={cluster.bootstrap}")
        async with (
            WorkerProcess(cluster.bootstrap, tmp_path / "worker.log") as worker,
            Child([sys.executable, "-m", "stilltide", *words]) as console,
            aiohttp.ClientSession() as viewer,
        ):
            await worker.serving()
            await create_topics(cluster.bootstrap, topic_name)
            url = (await console.announced())["web"]
            await first(viewer, f"{url}events/transactions", "Every transaction has ended.")
            await is_open(viewer, url, cluster.bootstrap, topic_name)
            await first(viewer, f"{url}events/transactions", "Every transaction has ended.")
            ended = re.compile(
                "Transactions ended, a second, since .* aborts: now [^?]*, most 0.[1-9]"
            )
            async for body in events(viewer, f"{url}events/overview"):
                if ended.search(body):
                    break
            await worker.stop()
            cluster.kill()
            await first(viewer, f"{url}events/overview", "away: a", cluster.bootstrap)
            console.send(signal.SIGINT)
            assert await console.ended() == 0


async def is_open(viewer: aiohttp.ClientSession, url: str, bootstrap: str, topic: str) -> None:
    """An open transaction is on both pages, with the command that ends it."""
    connector = KafkaConnector(KafkaConfig(bootstrap))
    async with (
        TransactionClient(connector=connector, name="shop") as client,
        client.transaction() as txn,
    ):
        await txn.send(topic, b"held", partition=0)
        await txn.flush()
        found = await status_with_hold(viewer, url)
        (hold,) = found["clusters"][0]["holds"]["value"]
        command = f"stilltide txn abort {hold['holder']} --cluster a"
        assert [it["command"] for it in found["findings"]] == [command]
        await first(viewer, f"{url}events/overview", command, "1 finding needs a person")
        await first(viewer, f"{url}events/transactions", command, f"{topic}/0@0", "shop:")
        await txn.abort()


async def status_with_hold(viewer: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """The state as JSON, once the hold needs a person."""
    async with asyncio.timeout(WAIT_S):
        async for _ in events(viewer, f"{url}events/overview"):
            async with viewer.get(f"{url}status.json") as answer:
                told = await answer.json()
            if told["findings"] and told["clusters"][0]["holds"]["value"]:
                return told
    raise AssertionError("the stream has ended")


async def test_topics_groups_and_records_are_seen(topic_name: str, tmp_path: Path):
    """Sizes and configs of topics, a group that is not replicated, a record with its headers."""
    with LocalCluster("a", tmp_path / "a", fast_start=True) as cluster:
        words = ("console", "--port", "0", "--clusters", f"a={cluster.bootstrap}")
        await create_topics(cluster.bootstrap, topic_name)
        data, group = TopicPartition(topic_name, 0), f"{topic_name}-group"
        connector = KafkaConnector(KafkaConfig(cluster.bootstrap))
        writer = connector.writer("fill")
        value = b'{"order": [4711, "' + bytes(5000).replace(b"\0", b"x") + b'"]}'
        writer.append(data, value, lambda _error, _offset: None, key=b"k", headers=[("h", b"\xff")])
        writer.append(data, None, lambda _error, _offset: None, key=b"k")
        assert await writer.flush(WAIT_S)
        await writer.close()
        async with closing(connector.group_admin()) as groups:
            await groups.move(group, {data: Committed(Offset(1), "")})
        async with (
            Child([sys.executable, "-m", "stilltide", *words]) as console,
            aiohttp.ClientSession() as viewer,
        ):
            url = (await console.announced())["web"]
            body = await first(viewer, f"{url}events/topic", topic_name, "KiB")
            assert "Not known" not in body
            at = f"{url}events/topic?topic={topic_name}"
            await first(viewer, at, "cleanup.policy", "segment.bytes", "1.0 GiB", "KiB")
            listed = await first(viewer, f"{at}&partition=0", "tombstone", "5,021 bytes")
            assert "partition=0&amp;offset=1" in listed
            one = await first(viewer, f"{at}&partition=0&offset=0&as=JSON", "4711,")
            assert "header h" in one
            assert "1 bytes, no text" in one
            await first(viewer, f"{url}events/groups", group, "empty", "no member", topic_name)
            await first(viewer, f"{url}events/groups?group={group}", "Partitions of", ">1</span>")


async def test_an_open_console_is_refused(tmp_path: Path):
    """Beyond loopback without a token: a clear error, before anything listens."""
    words = ("console", "--host", "0.0.0.0", "--port", "0")  # noqa: S104 - what is refused
    done = await asyncio.to_thread(run_stilltide, *words, cwd=tmp_path)
    assert done.returncode == 1
    assert "error: the console would be open to everybody who reaches 0.0.0.0" in done.stderr
    assert "TLS proxy" in done.stderr
    assert done.stdout == ""
