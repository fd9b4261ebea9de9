"""Resolves prepared transactions of a cluster in memory, by rows in SQLite."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from stilltide import TransactionClient
from stilltide.connectors.databases.table import DatabaseTable
from stilltide.connectors.ports.decisions import DecisionTable
from stilltide.pipeline.core.decisions import resolver as machine_module
from stilltide.pipeline.drivers.coordinator.growth import grow_coordinators
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.drivers.decisions import resolver as resolver_module
from stilltide.pipeline.drivers.decisions.resolver import (
    DecisionResolver,
    Resolution,
    UnendedTransactions,
    resolvers_of,
)
from stilltide.schemas.coordinator.prepared_tokens import hash_of, token_id
from stilltide.schemas.decisions import DDL, commit_statement
from stilltide.schemas.values import TxnId
from stilltide.testing import MemoryCluster
from tests.support.databases.resolving import SECRET, decider_of, execute, prepared


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """A cluster with a topic."""
    async with MemoryCluster({"orders": 1}) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[TransactionClient]:
    """Writes to the cluster."""
    async with TransactionClient(connector=cluster.connector) as client:
        yield client


@pytest.fixture
def database(tmp_path: Path) -> str:
    """Path of a database with the table."""
    path = str(tmp_path / "orders.sqlite")
    for statement in DDL["sqlite"]:
        execute(path, statement)
    return path


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds and tries follow each other without a pause that anybody notices."""
    monkeypatch.setattr(machine_module, "ROUND_MS", 1)
    monkeypatch.setattr(machine_module, "RETRY_MS", 1)


def keys(path: str) -> set[str]:
    """Keys of the rows."""
    return {key for (key,) in execute(path, "SELECT token_id FROM stilltide_decisions")}


@asynccontextmanager
async def resolving(
    cluster: MemoryCluster, tables: Mapping[str, DecisionTable]
) -> AsyncIterator[tuple[UnendedTransactions, list[DecisionResolver]]]:
    """Resolvers of databases, side by side."""
    cluster_id, clock = await cluster.connector.admin().cluster_id(), cluster.connector.clock
    async with Coordinators(cluster.connector, request_timeout_s=60) as coordinators:
        unended = UnendedTransactions(coordinators, cluster_id, tables, clock)
        yield unended, resolvers_of(unended, tables, resolve_after_ms=0)
    for table in tables.values():
        await table.close()


async def first_round(cluster: MemoryCluster, path: str) -> tuple[list[Resolution], set[TxnId]]:
    """What the resolver of `orders-db` ends in its first round, and what it leaves."""
    tables = {"orders-db": DatabaseTable("orders-db", f"sqlite:///{path}")}
    async with resolving(cluster, tables) as (_, [resolver]):
        return await resolver.once(), set(resolver.waiting)


async def name_of(cluster: MemoryCluster, txn: TxnId) -> str:
    """Key of the transaction's row."""
    return token_id(await cluster.connector.admin().cluster_id(), txn, hash_of(SECRET))


async def test_a_row_of_the_application_commits(
    cluster: MemoryCluster, client: TransactionClient, database: str
):
    """L4, L5: the record is visible, and the row is gone."""
    txn = await prepared(client, decider_of(database))
    execute(database, commit_statement("?"), await name_of(cluster, txn))
    assert await first_round(cluster, database) == (
        [Resolution(txn, "orders-db", committed=True)],
        set(),
    )
    assert [it.value for it in await cluster.committed("orders")] == [b"1"]
    assert keys(database) == {"identity"}


async def test_coordinators_that_were_added_are_asked_too(
    cluster: MemoryCluster, database: str, monkeypatch: pytest.MonkeyPatch
):
    """C14, L6: a resolver that began before coordinators were added asks them as well."""
    monkeypatch.setattr(resolver_module, "GROWTH_MS", 0)
    tables = {"orders-db": DatabaseTable("orders-db", f"sqlite:///{database}")}
    async with resolving(cluster, tables) as (unended, [resolver]):
        coordinators, asked = unended.coordinators, set[int]()

        async def transactions(number: int) -> list[Any]:
            asked.add(number)
            return []

        monkeypatch.setattr(coordinators, "transactions", transactions)
        before = coordinators.count
        await grow_coordinators(cluster.connector.admin(), before + 1)
        await resolver.once()
        assert asked == {*range(before + 1)}


async def test_without_a_row_the_transaction_aborts(
    cluster: MemoryCluster, client: TransactionClient, database: str
):
    """L4, L5: the record is hidden, and the resolver's own row is gone."""
    txn = await prepared(client, decider_of(database))
    assert await first_round(cluster, database) == (
        [Resolution(txn, "orders-db", committed=False)],
        set(),
    )
    assert await cluster.committed("orders") == []
    assert keys(database) == {"identity"}


async def test_unknown_databases_and_those_that_are_away_decide_nothing(
    cluster: MemoryCluster, client: TransactionClient, tmp_path: Path
):
    """L6: the transactions stay prepared; only those of a known database are waited for."""
    await prepared(client, "other-db")
    txn = await prepared(client, f"orders-db/{'0a' * 16}")
    gone = str(tmp_path / "missing" / "orders.sqlite")
    assert await first_round(cluster, gone) == ([], {txn})


class FrozenTable(DecisionTable):
    """A database that takes statements and never answers, as one whose disk stands still."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def identity(self) -> str:
        """Never answers."""
        return await self._never()

    async def outcomes(self, token_ids: Sequence[str], identity: str) -> Mapping[str, str]:
        """Never answers."""
        return await self._never(token_ids, identity)

    async def decide(self, token_id: str, identity: str) -> bool:
        """Never answers."""
        return await self._never(token_id, identity)

    async def rows(self, after: str, prefix: str, rows_max: int) -> list[str]:
        """Never answers."""
        return await self._never(after, prefix, rows_max)

    async def delete(self, token_ids: Sequence[str]) -> None:
        """Never answers."""
        await self._never(token_ids)

    async def close(self) -> None:
        """Has nothing to close."""

    async def _never(self, *statement: object) -> Any:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError(statement)


async def test_a_database_that_never_answers_holds_up_no_other_one(
    cluster: MemoryCluster, client: TransactionClient, database: str
):
    """L6: rounds of the other database go on, while not even the rows of this one are read."""
    frozen = FrozenTable()
    tables = {"stock-db": frozen, "orders-db": DatabaseTable("orders-db", f"sqlite:///{database}")}
    async with resolving(cluster, tables) as (_, [stock, orders]):
        stuck = asyncio.ensure_future(stock.once())
        await frozen.asked.wait()
        for _ in range(2):
            left = await prepared(client, f"stock-db/{'0a' * 16}")
            txn = await prepared(client, decider_of(database))
            assert await orders.once() == [Resolution(txn, "orders-db", committed=False)]
            assert await client.outcome(left) == "prepared"
        assert not stuck.done()
        stuck.cancel()


class BrokenTable(FrozenTable):
    """A table with a fault of ours."""

    async def rows(self, after: str, prefix: str, rows_max: int) -> list[str]:
        """Raises what nobody expects."""
        raise ZeroDivisionError(after, prefix, rows_max)


async def test_an_error_that_nobody_expects_ends_the_rounds(cluster: MemoryCluster):
    """The caller is told, and does not wait for ever."""
    async with (
        resolving(cluster, {"orders-db": BrokenTable()}) as (_, [resolver]),
        aclosing(resolver.rounds()) as rounds,
    ):
        assert await anext(rounds) == []
        with pytest.raises(ZeroDivisionError):
            await anext(rounds)


async def test_a_round_ends_without_an_answer(
    cluster: MemoryCluster, client: TransactionClient, monkeypatch: pytest.MonkeyPatch
):
    """L6: `txn resolve` does not wait for ever; the transaction stays prepared, and is named."""
    monkeypatch.setattr(resolver_module, "ANSWER_S", 0.05)
    txn = await prepared(client, "stock-db")
    async with resolving(cluster, {"stock-db": FrozenTable()}) as (_, [stock]):
        assert await stock.once() == []
        assert "does not answer" in stock.waiting[txn]


async def test_a_silent_coordinator_holds_up_no_other_one(
    cluster: MemoryCluster, client: TransactionClient, database: str
):
    """L6: what others list is decided, round by round, while nobody serves coordinator 1."""
    await grow_coordinators(cluster.connector.admin(), 2)
    tables = {"orders-db": DatabaseTable("orders-db", f"sqlite:///{database}")}
    async with (
        resolving(cluster, tables) as (unended, [resolver]),
        aclosing(resolver.rounds()) as rounds,
    ):
        for _ in range(2):
            txn = await prepared(client, decider_of(database))
            while not (resolved := await anext(rounds)):
                pass
            assert resolved == [Resolution(txn, "orders-db", committed=False)]
        assert not unended.silent  # its time-out has not come yet


async def test_a_resolver_that_has_nothing_to_decide_asks_nobody(
    cluster: MemoryCluster, database: str
):
    """L6: with a minute for clients, neither database nor coordinators are asked before that."""
    tables = {"orders-db": DatabaseTable("orders-db", f"sqlite:///{database}")}
    async with resolving(cluster, tables) as (unended, _):
        [resolver] = resolvers_of(unended, tables, resolve_after_ms=60_000)
        before_ms = unended.clock.monotonic_ms()
        await resolver.once()
        due_ms = resolver._machine.deadline_ms
        assert due_ms is not None
        assert due_ms >= before_ms + 60_000


async def test_a_decider_without_an_address_is_told_once(
    cluster: MemoryCluster, client: TransactionClient, database: str
):
    """L6: whichever resolver lists its transactions; they stay prepared."""
    txn = await prepared(client, f"other-db/{'0a' * 16}")
    tables = {
        name: DatabaseTable(name, f"sqlite:///{database}") for name in ("orders-db", "stock-db")
    }
    with capture_logs() as logs:
        async with resolving(cluster, tables) as (unended, resolvers):
            for _ in range(2):
                await asyncio.gather(*(resolver.once() for resolver in resolvers))
            assert unended.unknown == {"other-db": txn}
    assert [it["decider"] for it in logs if it["event"] == "decider_unknown"] == ["other-db"]
    assert await client.outcome(txn) == "prepared"


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("decider", "told"),
    [(f"orders-db/{'0a' * 16}", "is that of another database"), ("orders-db", "without `enlist`")],
)
async def test_another_database_of_the_name_decides_nothing(
    cluster: MemoryCluster,
    client: TransactionClient,
    database: str,
    *,
    decider: str,
    told: str,
):
    """L4: the transaction stays prepared; the log says so once, with the next step."""
    txn = await prepared(client, decider)
    tables = {"orders-db": DatabaseTable("orders-db", f"sqlite:///{database}")}
    with capture_logs() as logs:
        async with resolving(cluster, tables) as (unended, [resolver]):
            for _ in range(3):
                assert await resolver.once() == []
            assert told in resolver.waiting[txn]
            assert "hint: " in resolver.waiting[txn]
            assert not unended.unknown
    assert [it["what"] for it in logs if it["event"] == "prepared_not_decided"] == [
        await name_of(cluster, txn)
    ]
    assert keys(database) == {"identity"}
    assert await client.outcome(txn) == "prepared"


async def test_rows_of_strangers_stay(cluster: MemoryCluster, database: str):
    """L5: rows of other clusters, and keys that name no transaction, are left alone."""
    cluster_id = await cluster.connector.admin().cluster_id()
    ended = f"{cluster_id}/0:0/ab"
    names = [ended, f"{cluster_id}/0:x/ab", f"{cluster_id}/", "other/0:0/ab"]
    for name in names:
        execute(database, commit_statement("?"), name)
    await first_round(cluster, database)
    assert keys(database) == {"identity", *names} - {ended}
