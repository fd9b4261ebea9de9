"""`stilltide table follow` as a process: killed with its JVM, started again, asked, stopped."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from urllib.request import urlopen

import pyarrow.parquet as pq
import pytest

from stilltide.pipeline.cli.main import run
from stilltide.schemas.digest import content_digest
from stilltide.schemas.values import TxnId
from tests.support.processes.child import Child
from tests.support.processes.jvm import ends_with_its_jvm
from tests.support.spark.topics import HandWriter, create_topics

RUN_S = 360


def command(bootstrap: str, topic: str, to: str, *words: str) -> list[str]:
    """The command line."""
    return [
        *(sys.executable, "-m", "stilltide", "table", "follow", "--topics", topic, "--to", to),
        *("--bootstrap-servers", bootstrap, "--master", "local[1]", *words),
    ]


async def next_line(child: Child) -> dict[str, object]:
    """What the command prints after its next batch."""
    async with asyncio.timeout(RUN_S):
        return json.loads(await child.line())


def page(url: str) -> str:
    """What the site answers."""
    with urlopen(url, timeout=60) as answer:  # noqa: S310 - an address of this test
        return answer.read().decode()


def rows_of(delta: Path) -> list[dict[str, Any]]:
    """The rows of a Delta table, by its log; other readers than Spark see the same."""
    log = (path.read_text() for path in sorted((delta / "_delta_log").glob("*.json")))
    actions = [json.loads(line) for text in log for line in text.splitlines()]
    names = [unquote(action["add"]["path"]) for action in actions if "add" in action]
    return [row for name in names for row in pq.read_table(delta / name).to_pylist()]


async def test_a_batch_is_stored_and_a_stopped_process_ends_cleanly(
    bootstrap: str, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """K3: what is committed is stored, what is open is behind; SIGTERM ends with 0.

    `table status` says how much is behind while the process runs, and without Spark.
    """
    create_topics(bootstrap, {topic_name: 1})
    writer, place, txn = HandWriter(bootstrap, topic_name), tmp_path / "table", TxnId(3, 1)
    stored = writer.of_txn(txn, 0, 3)
    writer.commit(txn, 0, stored)
    writer.of_txn(TxnId(3, 2), 0, 2)
    words = command(bootstrap, topic_name, f"parquet:{place}", "--every", "3600")
    async with Child(words, tmp_path / "log") as child:
        await child.announced(RUN_S)
        batch = await next_line(child)
        assert (batch["batch"], batch["records"], batch["behind"]) == (1, 3, 2)
        words = ["table", "status", f"parquet:{place}", "--history", "3", "-o", "json"]
        asked = [*words, "--bootstrap-servers", bootstrap]
        assert await asyncio.to_thread(run, asked) == 0
        status = json.loads(capsys.readouterr().out)
        assert (status["batch"], status["offsets_behind"]) == (1, 2)
        assert status["seconds_behind"] > 0
        assert [(it["batch"], it["offsets"]) for it in status["batches"]] == [(1, None)]
        assert await child.stop() == 0
    rows = [row for file in place.rglob("*.parquet") for row in pq.read_table(file).to_pylist()]
    assert [(row["key"], row["value"]) for row in rows] == stored.content


@pytest.mark.slow
async def test_a_killed_process_goes_on(bootstrap: str, topic_name: str, tmp_path: Path):
    """K3: nothing is lost or doubled by SIGKILL of the process or its JVM.

    `make chaos` kills a JVM while the process stores.
    """
    create_topics(bootstrap, {topic_name: 1})
    writer, place = HandWriter(bootstrap, topic_name), tmp_path / "table"
    whole, later, aborted = (TxnId(3, number) for number in (1, 2, 3))
    first = writer.of_txn(whole, 0, 3)
    writer.commit(whole, 0, first)
    second = writer.of_txn(later, 0, 2)
    words = command(bootstrap, topic_name, f"delta:{place}", "--every", "3600", "--web-port", "0")
    async with Child(words, tmp_path / "log") as child:
        web = (await child.announced(RUN_S))["web"]
        batch = await next_line(child)
        assert (batch["batch"], batch["records"], batch["behind"]) == (1, 3, 2)
        metrics = await asyncio.to_thread(page, f"{web}/metrics")
        for line in (
            "stilltide_table_behind 2.0",
            "stilltide_table_records_total 3.0",
            f'stilltide_table_stored_until{{partition="0",topic="{topic_name}"}} 3.0',
        ):
            assert line in metrics
        assert "[+]table batch 1, 2 offsets behind" in await asyncio.to_thread(
            page, f"{web}/readyz"
        )
        await child.kill()
        assert child.exit_code == -signal.SIGKILL

        writer.commit(later, 0, second)
        writer.of_txn(aborted, 0, 2)
        writer.abort(aborted, 0)
        await child.spawn()
        await child.announced(RUN_S)
        batch = await next_line(child)
        assert (batch["batch"], batch["records"]) == (2, 2)
        await ends_with_its_jvm(child)

        third = writer.records(0, 2)
        await child.spawn()
        await child.announced(RUN_S)
        assert (await next_line(child))["batch"] == 3
        assert await child.stop() == 0
    rows = rows_of(place)
    assert sorted(row["offset"] for row in rows) == [0, 1, 2, 3, 4, 7, 8]
    content = [*first.content, *second.content, *third.content]
    assert content_digest([(row["key"], row["value"]) for row in rows]) == content_digest(content)
