"""`stilltide audit follow` as a process: killed with its JVM, started again, asked, stopped."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from urllib.request import urlopen

import pyarrow.parquet as pq
import pytest

from stilltide.pipeline.jobs.audits.follow.history import HISTORY
from stilltide.schemas.values import TxnId
from tests.support.processes.child import Child
from tests.support.processes.jvm import ends_with_its_jvm
from tests.support.spark.topics import HandWriter, create_topics

RUN_S = 600


def command(bootstrap: str, topic: str, directory: Path, *words: str) -> list[str]:
    """The command line."""
    return [
        *(sys.executable, "-m", "stilltide", "audit", "follow", "--bootstrap-servers", bootstrap),
        *("--topics", topic, "--report", str(directory), "--master", "local[1]", *words),
    ]


async def next_run(child: Child) -> dict[str, object]:
    """The line that the command prints after its next run."""
    async with asyncio.timeout(RUN_S):
        return json.loads(await child.line())


def page(url: str) -> str:
    """What the site answers."""
    with urlopen(url, timeout=10) as answer:  # noqa: S310 - an address of this test
        return answer.read().decode()


@pytest.mark.slow
async def test_a_killed_process_goes_on_and_a_stopped_one_ends_cleanly(
    bootstrap: str, topic_name: str, tmp_path: Path
):
    """After SIGKILL nothing is counted twice; SIGTERM ends the process with 0 after the run."""
    create_topics(bootstrap, {topic_name: 1})
    writer, directory = HandWriter(bootstrap, topic_name), tmp_path / "audits"
    open_txn, whole = TxnId(3, 1), TxnId(3, 2)
    writer.commit(whole, 0, writer.of_txn(whole, 0, 3))
    writer.of_txn(open_txn, 0, 2)
    words = command(bootstrap, topic_name, directory, "--every", "3600", "--web-port", "0")
    async with Child(words, tmp_path / "log") as child:
        web = (await child.announced(RUN_S))["web"]
        first = await next_run(child)
        assert (first["run"], first["verdict"], first["behind"]) == (1, "unknown", 2)
        metrics = await asyncio.to_thread(page, f"{web}/metrics")
        for line in (
            'stilltide_audit_verdict{check="all",verdict="unknown"} 1.0',
            'stilltide_audit_findings{check="orphans",kind="undecided"} 1.0',
            f'stilltide_audit_checked_until{{partition="0",topic="{topic_name}"}} 3.0',
        ):
            assert line in metrics
        assert "[+]audit unknown" in await asyncio.to_thread(page, f"{web}/readyz")
        await ends_with_its_jvm(child)

        writer.marker(open_txn, 0, committed=True, start=3, end=5, count=2)
        await child.spawn()
        await child.announced(RUN_S)
        await child.kill()  # in its run
        assert child.exit_code == -signal.SIGKILL

        await child.spawn()
        await child.announced(RUN_S)
        run = await next_run(child)
        assert (run["verdict"], run["records"], run["behind"]) == ("valid", 5, 0)
        assert await child.stop() == 0
    rows = pq.read_table(directory / HISTORY).to_pylist()
    assert [one["run"] for one in rows] == list(range(1, len(rows) + 1))
