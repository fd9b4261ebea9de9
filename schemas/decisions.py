"""The table `stilltide_decisions`: its SQL, for applications, resolvers and migrations.

*Source*: docs/protocols L4, L5. A row says how one prepared transaction ends. The key of the row is
the transaction's `token_id` (`coordinator/prepared_tokens.py`), which is no secret.

The row with the key `identity` tells this table from those of other databases: its outcome is a
random text. `Prepare` records it behind the database's name (`Decider`).

*Invariants*: a key stands for one transaction of one cluster for ever, compared byte by byte; so
the first row of a key is the decision, no matter which program writes the row.
"""

import re
from types import MappingProxyType
from typing import NamedTuple

TABLE = "stilltide_decisions"

TOKEN_ID_CHARS_MAX = 191
"""Longest key; each MySQL of today indexes as many characters."""

COMMITTED, ABORTED = "committed", "aborted"

IDENTITY_KEY = "identity"
"""Key of the row whose outcome is the table's identity; no prepared transaction has this name."""

IDENTITY_CHARS_MAX = 36
"""Longest identity; a UUID has as many characters."""

DECIDER_NAME_CHARS_MAX = 63
"""Longest name of a database that decides: with an identity, it fits into a decider's text."""

_CHECK = f"CHECK (outcome IN ('{COMMITTED}', '{ABORTED}') OR token_id = '{IDENTITY_KEY}')"


def _identity_row(random: str, nothing: str) -> str:
    columns, key = "(token_id, outcome)", f"'{IDENTITY_KEY}'"
    return f"INSERT INTO {TABLE} {columns} VALUES ({key}, {random}) {nothing}"  # noqa: S608


_NOTHING = "ON CONFLICT (token_id) DO NOTHING"

DDL = MappingProxyType(
    {
        "postgresql": (
            f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    token_id varchar({TOKEN_ID_CHARS_MAX}) COLLATE "C" PRIMARY KEY,
    outcome varchar({IDENTITY_CHARS_MAX}) NOT NULL {_CHECK},
    decided_at timestamp with time zone NOT NULL DEFAULT CURRENT_TIMESTAMP
)""",
            _identity_row("gen_random_uuid()", _NOTHING),
        ),
        "sqlite": (
            f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    token_id text NOT NULL PRIMARY KEY,
    outcome text NOT NULL {_CHECK},
    decided_at text NOT NULL DEFAULT CURRENT_TIMESTAMP
)""",
            _identity_row("lower(hex(randomblob(16)))", _NOTHING),
        ),
        "mysql": (
            f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    token_id varchar({TOKEN_ID_CHARS_MAX}) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY,
    outcome varchar({IDENTITY_CHARS_MAX}) NOT NULL {_CHECK},
    decided_at timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)
) ENGINE=InnoDB""",
            _identity_row("uuid()", "ON DUPLICATE KEY UPDATE token_id = token_id"),
        ),
    }
)
"""The statements that make the table and its identity where they are missing.

By the dialect's name in SQLAlchemy. Each may be run again, and changes nothing then.
"""


class Decider(NamedTuple):
    """What `Prepare` records of who decides.

    Attributes:
        name: name of the database, or what a program has named by itself.
        identity: identity of the database's table; empty: a program has named the decider by
            itself, and no table decides.
    """

    name: str
    identity: str

    def __str__(self) -> str:
        """The text of the request, `NAME/IDENTITY`."""
        return f"{self.name}/{self.identity}" if self.identity else self.name


_IDENTITY = r"[0-9a-f-]{32,36}"
_DECIDER = re.compile(rf"([^/]+)/({_IDENTITY})")


def is_identity(text: str) -> bool:
    """Whether a database may have drawn the text as an identity."""
    return re.fullmatch(_IDENTITY, text) is not None


def parse_decider(text: str) -> Decider:
    """The decider of a text; every text is one, since programs name deciders as they like."""
    parts = _DECIDER.fullmatch(text)
    return Decider(*parts.groups()) if parts else Decider(text, "")


def commit_statement(token_id: str) -> str:
    """The application's row, with the driver's placeholder in place of the key."""
    return f"INSERT INTO {TABLE} (token_id, outcome) VALUES ({token_id}, '{COMMITTED}')"  # noqa: S608


IDENTITY_QUERY = f"SELECT outcome FROM {TABLE} WHERE token_id = '{IDENTITY_KEY}'"  # noqa: S608


def commit_statement_with_identity(token_id: str) -> str:
    """For PostgreSQL: `commit_statement`, which returns a row of two values.

    The first is the table's identity. The second says whether the row belongs to the database
    transaction itself: a row that a savepoint has inserted carries the savepoint's own number.
    """
    return (
        f"{commit_statement(token_id)} RETURNING ({IDENTITY_QUERY}), "
        "CAST(xmin AS text) = CAST(CAST(pg_current_xact_id() AS xid) AS text)"
    )


_INSERT_ABORTED = f"INSERT INTO {TABLE} (token_id, outcome) "
_ABORTED_ROW = (
    f"SELECT :token_id, '{ABORTED}' FROM {TABLE} AS own "  # noqa: S608
    f"WHERE own.token_id = '{IDENTITY_KEY}' AND own.outcome = :identity "
)

ABORT_STATEMENTS = MappingProxyType(
    {
        "postgresql": _INSERT_ABORTED + _ABORTED_ROW + _NOTHING,
        "sqlite": _INSERT_ABORTED + _ABORTED_ROW + _NOTHING,
        # `INSERT IGNORE` would hide more than a row that stands.
        "mysql": f"{_INSERT_ABORTED}{_ABORTED_ROW}"
        f"ON DUPLICATE KEY UPDATE token_id = {TABLE}.token_id",
    }
)
"""A resolver's row, where none stands; meets an uncommitted row by waiting for its end.

A table with another identity takes no row.
"""

OUTCOMES_QUERY = f"SELECT token_id, outcome FROM {TABLE} WHERE token_id IN :token_ids"  # noqa: S608

ROWS_QUERY = (
    f"SELECT token_id FROM {TABLE} WHERE token_id > :after AND token_id < :below "  # noqa: S608
    "ORDER BY token_id LIMIT :rows_max"
)

DELETE_STATEMENT = f"DELETE FROM {TABLE} WHERE token_id IN :token_ids"  # noqa: S608
