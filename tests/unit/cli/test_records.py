"""`stilltide produce` that is stopped while it commits says what it knows, and guesses nothing."""

import asyncio
import io

import pytest

from stilltide import TransactionClient
from stilltide.pipeline.cli.records import LineFormat, write_lines
from stilltide.pipeline.errors import OutcomeUnknownError
from stilltide.testing import MemoryCluster

LINES = LineFormat("orders", None, (), None)


async def stopped(cluster: MemoryCluster, state: str) -> object:
    """What is returned when the command is stopped once its transaction is in this state."""
    async with TransactionClient(connector=cluster.connector) as client:
        txn = client.transaction()
        writing = asyncio.create_task(write_lines(txn, LINES, io.BytesIO(b"one\ntwo\n")))
        while txn.id is None or txn.state != state:
            assert not writing.done()
            await asyncio.sleep(0)
        writing.cancel()
        return await writing


async def test_a_stop_before_the_answer_tells_no_outcome():
    """The commit was asked for, so that the records may become visible."""
    async with MemoryCluster({"orders": 1}) as cluster:
        with pytest.raises(OutcomeUnknownError, match="was committed is unknown"):
            await stopped(cluster, "unknown")


async def test_a_stop_after_the_answer_tells_what_was_committed():
    """What is left then is the wait until readers know it."""
    async with MemoryCluster({"orders": 1}) as cluster:
        row = await stopped(cluster, "committed")
    assert row == {"topic": "orders", "transaction": "0:0", "state": "committed", "records": 2}


async def test_a_stop_before_the_commit_aborts():
    """The input was not read to its end."""
    async with MemoryCluster({"orders": 1}) as cluster:
        with pytest.raises(asyncio.CancelledError):
            await stopped(cluster, "open")
