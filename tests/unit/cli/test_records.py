"""`stilltide produce` that is stopped while it commits says what it knows, and guesses nothing."""

import asyncio
import gc
import io
import threading
from collections.abc import Sequence

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


class LateLine(io.BytesIO):
    """Standard input of a person who types after the command has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()
        self.typed = threading.Event()

    def readlines(self, hint: int | None = -1, /) -> list[bytes]:
        """Waits for the line."""
        del hint
        self.asked.set()
        self.typed.wait()
        return [b"late\n"]


def test_a_line_after_the_end_of_the_command_is_dropped(recwarn: Sequence[object]):
    """The thread that read it ends without a word: no warning, no traceback."""
    file = LateLine()

    async def stopped_before_the_line() -> None:
        async with (
            MemoryCluster({"orders": 1}) as cluster,
            TransactionClient(connector=cluster.connector) as client,
        ):
            writing = asyncio.create_task(write_lines(client.transaction(), LINES, file))
            await asyncio.to_thread(file.asked.wait)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing

    asyncio.run(stopped_before_the_line())
    reading = [it for it in threading.enumerate() if it.name == "stilltide-lines"]
    file.typed.set()
    for thread in reading:
        thread.join()
    gc.collect()  # says what was never awaited
    assert len(reading) == 1
    assert not recwarn
