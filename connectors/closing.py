"""A connection for the length of a block."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar


class Closeable(Protocol):
    """What releases its connections by `close`."""

    async def close(self) -> None:
        """Releases connections."""
        ...


C = TypeVar("C", bound=Closeable)


@asynccontextmanager
async def closing(connection: C) -> AsyncIterator[C]:
    """The connection during the block; closed at its end, whatever happens."""
    try:
        yield connection
    finally:
        await connection.close()
