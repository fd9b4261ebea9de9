"""Tables of every format while the command and its JVM are killed: nothing lost, nothing doubled.

*Source*: rules K1-K5. `make chaos ROUNDS=100 ARGS="-k tables"` kills each format a hundred times;
`SEED=7` draws other moments.
"""

import asyncio
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from tests.support.processes.child import Child
from tests.support.processes.jvm import jvm_of
from tests.support.spark.histories import MixedHistory
from tests.support.spark.topics import create_topics

SEED, ROUNDS = int(os.environ.get("SEED", "1")), int(os.environ.get("ROUNDS", "2"))
PARTITIONS, WAIT_S, DELAY_S_MAX = 3, 600, 6.0
CONTENT = "tests.support.spark.table_content"


async def hear(child: Child, random: Random) -> None:
    """Listens for a while, so that the command is killed at any moment of a batch."""
    with suppress(TimeoutError):
        async with asyncio.timeout(random.uniform(0, DELAY_S_MAX)):
            while await child.line():
                """One more batch."""


@pytest.mark.timeout(3600 + 60 * ROUNDS)
@pytest.mark.parametrize("name", ["parquet", "manifest", "delta", "iceberg"])
async def test_tables_hold_what_an_audit_sees(
    name: str, bootstrap: str, topic_name: str, tmp_path: Path
):
    """K2, K3: by digest, after SIGKILLs of the command or of its JVM at random moments."""
    create_topics(bootstrap, {topic_name: PARTITIONS})
    random, place = Random(SEED), f"{name}:{tmp_path}/lake/orders"
    history = MixedHistory(bootstrap, topic_name, PARTITIONS, SEED)
    words = ("--topics", topic_name, "--to", place, "--bootstrap-servers", bootstrap)
    more = ("--master", "local[1]", "--every", "0.1", "--records-max", "9")
    command = [sys.executable, "-m", "stilltide", "table", "follow", *words, *more]
    async with Child(command, tmp_path / "log") as child:
        for number in range(ROUNDS):
            if number:
                await child.spawn()
            await asyncio.to_thread(history.act, 15)
            await child.announced(WAIT_S)
            await hear(child, random)
            if random.random() < 0.5:
                jvm_of(child.pid).kill()
                assert await child.ended(WAIT_S) == 1
            else:
                await child.kill()
    await asyncio.to_thread(history.end)
    async with Child([*command, "--once"], tmp_path / "log") as child:
        await child.announced(WAIT_S)
        while await child.line():
            """One more batch."""
        assert await child.ended(WAIT_S) == 0, child.said
    async with Child.of_module(CONTENT, place, bootstrap, topic_name) as child:
        async with asyncio.timeout(WAIT_S):
            found = json.loads(await child.line())
    assert found["content"] == found["audited"]
