"""The port to a table of decisions, as resolvers and enlisted transactions use it.

*Source*: docs/protocols L4, L5; `schemas/decisions.py` has the table.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol


class DecisionTable(Protocol):
    """The table `stilltide_decisions` of one database.

    Every call is a database transaction of its own, and raises `RetriableError` if the database is
    away, busy, or a row is locked for longer than a bound; `FatalError` if the table is missing,
    has no identity, or the user may not use it. Calls with an identity raise `OtherTableError`, and
    change nothing, if the table has another one.
    """

    async def identity(self) -> str:
        """The text that tells this table from those of other databases."""
        ...

    async def outcomes(self, token_ids: Sequence[str], identity: str) -> Mapping[str, str]:
        """The committed rows of some keys, by key: `committed` or `aborted`; waits for no row."""
        ...

    async def decide(self, token_id: str, identity: str) -> bool:
        """Inserts `aborted` unless a row stands; returns whether the row that stands commits.

        A row that is inserted and not committed is waited for. What is returned is durable, as far
        as the database keeps what it has committed.
        """
        ...

    async def rows(self, after: str, prefix: str, rows_max: int) -> list[str]:
        """The keys with a prefix behind a key, in order of their bytes, and at most `rows_max`."""
        ...

    async def delete(self, token_ids: Sequence[str]) -> None:
        """Deletes rows; rows that are not there do no harm."""
        ...

    async def close(self) -> None:
        """Closes the connections; a later call makes further ones."""
        ...
