"""The console on a real broker and worker: first paint, bytes of pages, processor time, delay.

An event is the end of a transaction: from the client's call until an open page shows it, as a
viewer's stream of events brings it. Then OPEN transactions stay open and ABORTED have aborted:
bytes of each page as they are sent, first paint of each page in Chromium, and the processor time
of console and worker without a viewer, with one, and with VIEWERS on the overview.

Sizes: OPEN, ABORTED, VIEWERS, EVENTS, SECONDS.
"""

import asyncio
import gzip
import random
import re
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import aiohttp

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.client import TransactionClient
from tests.bench.harness import report, size
from tests.bench.spent import Spent, past
from tests.support.console.browser import driven, visiting
from tests.support.processes.child import Child
from tests.support.processes.worker_process import WorkerProcess, create_topics

TOPIC = "orders"
WAIT_S = 300.0
AT_ONCE = 500
OPEN_OF_CLIENT = 9000
"""Open transactions of a client; a coordinator takes 10 000 of one client."""

RELOADS = 5
_OPEN = re.compile(r"open transactions</th><td class=\"num\">\s*<span class=\"num\">([\d,?]+)")
_PAGES = ("overview", "transactions", f"topic?topic={TOPIC}&partition=0", "native", "logs")


async def run() -> None:
    """Measures and reports."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, LocalCluster("a", Path(folder) / "a") as cluster:
        words = ("console", "--port", "0", "--clusters", f"a={cluster.bootstrap}")
        async with AsyncExitStack() as stack:
            worker = WorkerProcess(cluster.bootstrap, Path(folder) / "worker.log")
            await stack.enter_async_context(worker)
            await worker.serving()
            await create_topics(cluster.bootstrap, TOPIC)
            console = Child([sys.executable, "-m", "stilltide", *words])
            await stack.enter_async_context(console)
            url = (await console.announced())["web"]
            connector = KafkaConnector(KafkaConfig(cluster.bootstrap))
            clients = [
                await stack.enter_async_context(
                    TransactionClient(connector=connector, open_transactions_max=OPEN_OF_CLIENT)
                )
                for _ in range(2)
            ]
            viewer = await stack.enter_async_context(aiohttp.ClientSession())
            rows += await _delays(clients[0], viewer, url)
            await _load(clients)
            async with aclosing(_bodies(viewer, f"{url}events/overview")) as bodies:
                await _shows(bodies, size("OPEN", 300))
            rows += await _sent(url)
            rows += await _paints(url)
            pids = {"console": console.pid, "worker": worker.pid}
            for viewers in (0, 1, size("VIEWERS", 20)):
                rows += await _watched(pids, url, viewers)
    report("console", rows)


def _row(what: str, value: float, unit: str, aim: str = "") -> dict[str, Any]:
    say(f"console: {what}: {value:.2f} {unit}")
    return {"what": what, "value": value, "unit": unit, "aim": aim}


async def _bodies(viewer: aiohttp.ClientSession, url: str) -> AsyncGenerator[str, None]:
    """The bodies of an open page."""
    async with viewer.get(url, timeout=aiohttp.ClientTimeout(total=WAIT_S)) as answer:
        while event := await answer.content.readuntil(b"\n\n"):
            yield event.decode().replace("data: ", "")


async def _shows(bodies: AsyncIterator[str], count: int) -> None:
    """Waits until the page shows so many open transactions."""
    async for body in bodies:
        found = _OPEN.search(body.replace("\n", ""))
        if found and found[1] == f"{count:,}":
            return
    raise RuntimeError(f"the stream of events ended before the page showed {count} transactions")


async def _delays(
    client: TransactionClient, viewer: aiohttp.ClientSession, url: str
) -> list[dict[str, Any]]:
    """From the end of a transaction to the page, at moments that nothing else knows of."""
    delays: list[float] = []
    async with aclosing(_bodies(viewer, f"{url}events/overview")) as bodies:
        for number in range(size("EVENTS", 40)):
            async with client.transaction() as txn:
                await txn.send(TOPIC, b"event", partition=0)
                await txn.flush()
                await _shows(bodies, 1)
                await past(random.random())
                began_s = time.perf_counter()
                await (txn.abort() if number % 2 else txn.commit())
                await _shows(bodies, 0)
                delays.append(time.perf_counter() - began_s)
    return [
        _row("event to page, p50", median(delays), "s"),
        _row("event to page, p95", quantiles(delays, n=20)[-1], "s", "1.5"),
    ]


async def _load(clients: Sequence[TransactionClient]) -> None:
    """Transactions that abort, then others that stay open."""
    room = asyncio.Semaphore(AT_ONCE)

    async def aborted(number: int) -> None:
        async with room, clients[number % 2].transaction(timeout_s=600) as txn:
            await txn.send(TOPIC, b"%d" % number, partition=number % 3)
            await txn.flush()
            await txn.abort()

    async def left_open(number: int) -> None:
        async with room:
            txn = await clients[number % 2].transaction(timeout_s=600).__aenter__()
            await txn.send(TOPIC, b"%d" % number, partition=number % 3)
            await txn.flush()

    for work, count in ((aborted, size("ABORTED", 1000)), (left_open, size("OPEN", 300))):
        began_s = time.perf_counter()
        for first in range(0, count, 20 * AT_ONCE):
            numbers = range(first, min(count, first + 20 * AT_ONCE))
            await asyncio.gather(*map(work, numbers))
        say(f"console: {count} {work.__name__} after {time.perf_counter() - began_s:.0f} s")


async def _sent(url: str) -> list[dict[str, Any]]:
    """Bytes of pages as they are sent once all is read, without style sheet and script."""
    rows = []
    async with aiohttp.ClientSession(auto_decompress=False) as raw:
        for page in _PAGES:
            body = b""
            while not body or b"Not read yet." in gzip.decompress(body):
                async with raw.get(url + page, headers={"Accept-Encoding": "gzip"}) as answer:
                    body = await answer.read()
            rows.append(_row(f"{page.partition('?')[0]}, sent", len(body) / 1000, "kB", "60"))
    return rows


async def _paints(url: str) -> list[dict[str, Any]]:
    """First paint of each page, the median of some reloads."""
    rows = []
    async with driven() as browser:
        for page in _PAGES:
            async with visiting(browser, url, of=[page]) as visit:
                paints = []
                for _ in range(RELOADS):
                    await visit.page.reload()
                    paints.append(await visit.first_paint_ms())
            name = page.partition("?")[0]
            rows.append(_row(f"{name}, first paint", median(paints) / 1000, "s", "1"))
    return rows


async def _watched(pids: dict[str, int], url: str, viewers: int) -> list[dict[str, Any]]:
    """Processor time while so many look at the overview."""
    seconds = size("SECONDS", 30)

    async def looking() -> None:
        async with aiohttp.ClientSession(auto_decompress=False) as raw:
            endless = aiohttp.ClientTimeout(total=None)
            async with raw.get(f"{url}events/overview", timeout=endless) as answer:
                async for _ in answer.content.iter_any():
                    """Only counts as a viewer."""

    tasks = [asyncio.create_task(looking()) for _ in range(viewers)]
    try:
        await past(35 if viewers == 0 else 10)  # without a viewer, collecting ends after 30 s
        spent = Spent(pids)
        await past(seconds)
        used = spent.ms_per_s()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    aims = {"console": "2" if viewers > 1 else "", "worker": ""}
    return [
        _row(f"{viewers} viewers, {name}", value / 10, "% of a core", aims[name])
        for name, value in used.items()
    ]
