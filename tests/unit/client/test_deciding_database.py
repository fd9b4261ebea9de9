"""L4: the database that decides, as its client asks it: by few statements, and never by a guess."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import pytest

from stilltide.connectors.errors import ConnectorError, OtherTableError, RetriableError
from stilltide.connectors.ports.decisions import DecisionTable
from stilltide.pipeline.client import TransactionClient
from stilltide.pipeline.client import deciding_database as module
from stilltide.pipeline.client.deciding_database import DecidingDatabase
from stilltide.pipeline.errors import (
    DecidedOtherwiseError,
    ForkedError,
    NotOpenError,
    OtherLoopError,
    OutcomeUnknownError,
)
from stilltide.schemas.coordinator.prepared_tokens import decode_token
from tests.support.coordinator.worker_client import TOPICS
from tests.support.coordinator.worker_memory import until

IDENTITY = "0d" * 16


class MemoryTable(DecisionTable):
    """A table in memory; its reads and decisions wait while `gate` is not set.

    Attributes:
        committed: rows that the application has committed.
        reads: keys of each read.
        decided: keys that were decided.
        identities: how often the identity was read.
        deciding: decisions that wait now; `deciding_max` at most.
        failure: raised by every call.
    """

    def __init__(self, *committed: str) -> None:
        self.committed = set(committed)
        self.reads: list[list[str]] = []
        self.decided: list[str] = []
        self.identities = self.deciding = self.deciding_max = 0
        self.failure: ConnectorError | None = None
        self.closed = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def identity(self) -> str:
        """Of this table."""
        self.identities += 1
        await asyncio.sleep(0)
        self._fail()
        return IDENTITY

    async def outcomes(self, token_ids: Sequence[str], identity: str) -> Mapping[str, str]:
        """Notes the keys."""
        assert identity == IDENTITY
        self.reads.append(list(token_ids))
        await self.gate.wait()
        self._fail()
        return {key: "committed" for key in token_ids if key in self.committed}

    async def decide(self, token_id: str, identity: str) -> bool:
        """Notes the key."""
        assert identity == IDENTITY
        self.deciding += 1
        self.deciding_max = max(self.deciding_max, self.deciding)
        await self.gate.wait()
        self.deciding -= 1
        self._fail()
        self.decided.append(token_id)
        return token_id in self.committed

    async def close(self) -> None:
        """Notes the end."""
        self.closed = True

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


async def opened(table: MemoryTable) -> DecidingDatabase:
    """A database whose identity was read."""
    database = DecidingDatabase("orders-db", table)
    assert await database.identity() == IDENTITY
    assert str(database.decider) == f"orders-db/{IDENTITY}"
    return database


async def test_many_callers_share_statements():
    """One statement at a time: the first asks for one, the next for all that came meanwhile."""
    keys = [str(number) for number in range(32)]
    table = MemoryTable(*keys)
    database = await opened(table)
    table.gate.clear()
    first = asyncio.create_task(database.committed(keys[0], likely=True))
    await until(lambda: table.reads)
    others = [asyncio.create_task(database.committed(key, likely=True)) for key in keys[1:]]
    await until(lambda: len(database._next.keys) == len(others))
    table.gate.set()
    assert await asyncio.gather(first, *others) == [True] * 32
    assert table.reads == [keys[:1], keys[1:]]
    assert not table.decided


async def test_a_caller_that_gives_up_harms_no_other_one():
    """The next one of the same statement reads again."""
    table = MemoryTable("1", "2", "3")
    database = await opened(table)
    table.gate.clear()
    asking = [asyncio.create_task(database.committed(key, likely=True)) for key in "123"]
    await until(lambda: len(database._next.keys) == 2)
    asking[0].cancel()
    await until(lambda: len(table.reads) == 2)
    asking[1].cancel()
    table.gate.set()
    assert await asking[2]
    assert table.reads == [["1"], ["2", "3"], ["2", "3"]]


async def test_many_failures_at_once_wait_for_each_other():
    """The identity is read once, and few rows are waited for at a time; nobody is refused."""
    table = MemoryTable("1")
    database = DecidingDatabase("orders-db", table)
    assert set(await asyncio.gather(*(database.identity() for _ in range(99)))) == {IDENTITY}
    table.gate.clear()
    asking = [
        asyncio.create_task(database.committed(str(number), likely=False)) for number in range(99)
    ]
    await until(lambda: table.deciding == module.DECISIONS_MAX)
    read = asyncio.create_task(database.committed("1", likely=True))
    await until(lambda: table.reads)
    table.gate.set()
    assert await read
    assert sum(await asyncio.gather(*asking)) == 1
    assert (table.identities, table.deciding_max) == (1, module.DECISIONS_MAX)


async def test_what_is_not_read_is_decided():
    """A read that shows no row decides nothing; an unlikely commit is decided at once."""
    table = MemoryTable("1")
    database = await opened(table)
    assert not await database.committed("2", likely=True)
    assert await database.committed("1", likely=False)
    assert table.decided == ["2", "1"]
    assert table.reads == [["2"]]


async def test_a_statement_that_fails_fails_all_who_wait_for_it():
    """And the next one is tried."""
    table = MemoryTable("1", "2", "3")
    database = await opened(table)
    table.gate.clear()
    table.failure = RetriableError("away")
    asking = [asyncio.create_task(database.committed(key, likely=True)) for key in "123"]
    await until(lambda: len(database._next.keys) == 2)
    table.gate.set()
    assert [str(it) for it in await asyncio.gather(*asking, return_exceptions=True)] == ["away"] * 3
    assert table.reads == [["1"], ["2", "3"]]
    table.failure = None
    assert await database.committed("1", likely=True)


async def test_a_database_that_never_answers(monkeypatch: pytest.MonkeyPatch):
    """The call ends, and says why."""
    monkeypatch.setattr(module, "ANSWER_S", 0.01)
    table = MemoryTable("1")
    database = await opened(table)
    table.gate.clear()
    with pytest.raises(RetriableError, match="orders-db does not answer"):
        await database.committed("1", likely=True)


async def test_a_database_is_closed_once():
    """What asks afterwards is refused; a second `close` does nothing."""
    table = MemoryTable("1")
    database = await opened(table)
    for _ in range(2):
        await database.close()
    assert table.closed
    for asked in (database.identity(), database.committed("1", likely=True)):
        with pytest.raises(NotOpenError):
            await asked


def test_a_database_is_opened_again_on_another_loop():
    """As an application does whose life begins twice in one process; the identity is read again."""
    database = DecidingDatabase("orders-db", MemoryTable("1"))

    async def life() -> bool:
        database.open()
        assert database.decider.identity == ""
        await database.identity()
        try:
            return all(
                await asyncio.gather(*(database.committed("1", likely=True) for _ in range(9)))
            )
        finally:
            await database.close()

    assert [asyncio.run(life()) for _ in range(2)] == [True, True]


def test_another_loop_and_a_fork_are_refused():
    """Connections belong to the loop and the process of their first use."""
    database = asyncio.run(opened(MemoryTable("1")))
    with pytest.raises(OtherLoopError):
        asyncio.run(database.identity())
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            asyncio.run(database.identity())
        except ForkedError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize(
    "failure", [RetriableError("not decided yet"), OtherTableError("another database")]
)
async def test_a_database_that_never_says(client: TransactionClient, failure: ConnectorError):
    """The transaction stays prepared, however often the program asks; its end is not guessed."""
    table = MemoryTable()
    database = await opened(table)
    txn = client.transaction()
    await txn.send(TOPICS[0], b"o")
    await txn.prepare(decider=database)
    table.failure = failure
    for ask in (txn.commit, txn.abort, txn.commit):
        with pytest.raises(OutcomeUnknownError, match=failure.primary):
            await ask()
    assert txn.id is not None
    assert await client.outcome(txn.id) == "prepared"
    table.failure = None
    with pytest.raises(DecidedOtherwiseError, match="has not committed"):
        await txn.commit()
    assert txn.state == "aborted"


@pytest.mark.parametrize("in_database", [False, True])
async def test_an_operator_has_decided_otherwise(client: TransactionClient, *, in_database: bool):
    """The first decision stands (L3); leaving the block says that row and records differ."""
    table = MemoryTable()
    database = await opened(table)
    with pytest.raises(DecidedOtherwiseError) if in_database else nullcontext():
        async with client.transaction() as txn:
            await txn.send(TOPICS[0], b"o")
            token = await txn.prepare(decider=database)
            assert (await client.resume(token).describe()).decider == "orders-db"
            if in_database:
                table.committed.add(decode_token(token).id)
            await (client.resume(token).abort() if in_database else client.resume(token).commit())
    assert txn.state == ("aborted" if in_database else "committed")
