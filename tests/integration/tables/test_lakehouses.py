"""Delta and Iceberg by the command, killed at any moment; and what two writers do."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from stilltide.schemas.digest import content_digest
from stilltide.schemas.values import TxnId
from tests.support.processes.child import Child
from tests.support.spark.topics import Content, HandWriter, create_topics

RUN_S = 480
FORMATS = ("delta", "iceberg")


async def answer(module: str, *words: str) -> dict[str, dict[str, object]]:
    """What a program of the tests prints."""
    async with Child.of_module(module, *words) as child, asyncio.timeout(RUN_S):
        return json.loads(await child.line())


async def test_of_two_writers_one_stores_a_batch(tmp_path: Path):
    """K2, K4, K5: the slower one gets an error, its records are not there; a batch may be empty."""
    found = await answer("tests.support.spark.lakehouses", str(tmp_path))
    for name in FORMATS:
        said = found[name]
        assert (said["begun"], said["loaded"], said["after"]) == (0, [True, True], 3)
        assert said["offsets"] == list(range(20))
        assert "another writer has stored batch 2" in str(said["slower"])
        assert "without progress" in str(said["foreign"])


@pytest.mark.parametrize("name", FORMATS)
async def test_a_killed_command_goes_on(name: str, bootstrap: str, topic_name: str, tmp_path: Path):
    """K3: killed after its first batch, it stores the rest once; the digest is the topic's."""
    create_topics(bootstrap, {topic_name: 2})
    writer = HandWriter(bootstrap, topic_name)
    content: list[Content] = []
    for number in range(12):
        txn = TxnId(4, number)
        written = writer.of_txn(txn, number % 2, 3)
        if number % 3:
            writer.commit(txn, number % 2, written)
            content += written.content
        else:
            writer.abort(txn, number % 2)
    place = f"{name}:{tmp_path}/lake/orders"
    words = ("--topics", topic_name, "--to", place, "--bootstrap-servers", bootstrap, "--once")
    more = ("--records-max", "8", "--master", "local[1]")
    command = [sys.executable, "-m", "stilltide", "table", "follow", *words, *more]
    async with Child(command, tmp_path / "log") as child, asyncio.timeout(RUN_S):
        await child.announced(RUN_S)
        assert json.loads(await child.line())["batch"] == 1
        await child.kill()
        await child.spawn()
        await child.announced(RUN_S)
        assert await child.ended(RUN_S) == 0, child.said
    found = await answer("tests.support.spark.table_content", place)
    assert found["content"] == {"records": len(content), "digest": str(content_digest(content))}
