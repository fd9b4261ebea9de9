"""Databases of tests, and `Decisions` that are closed with the test."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import psycopg
import pytest

from stilltide.databases import Decisions
from stilltide.testing import MemoryCluster
from tests.support.databases.kinds import Place
from tests.support.databases.postgres import PostgresServer


@pytest.fixture
def place(postgres: PostgresServer, tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    """Databases without a table of decisions."""
    with psycopg.connect(postgres.conninfo) as db:
        db.execute("DROP TABLE IF EXISTS stilltide_decisions")
    return Place(postgres, tmp_path, lambda: request.getfixturevalue("mariadb"))


@pytest.fixture
async def decisions_of(place: Place) -> AsyncIterator[Callable[[str], Decisions]]:
    """`Decisions` of the database of a kind of connection."""
    async with AsyncExitStack() as stack:

        def made(kind: str) -> Decisions:
            decisions = Decisions("orders-db", place.address(kind))
            stack.push_async_callback(decisions.close)
            return decisions

        yield made


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """A cluster with a topic."""
    async with MemoryCluster({"orders": 1}) as cluster:
        yield cluster
