"""The table `stilltide_decisions`: its SQL, for applications, resolvers and migrations.

*Source*: docs/protocols L4, L5. A row says how one prepared transaction ends. The key of the row is
the transaction's `token_id` (`coordinator/prepared_tokens.py`), which is no secret.

*Invariants*: a key stands for one transaction of one cluster for ever, compared byte by byte; so
the first row of a key is the decision, no matter which program writes the row.
"""

from types import MappingProxyType

TABLE = "stilltide_decisions"

TOKEN_ID_CHARS_MAX = 191
"""Longest key; each MySQL of today indexes as many characters."""

COMMITTED, ABORTED = "committed", "aborted"

_OUTCOMES = f"'{COMMITTED}', '{ABORTED}'"

DDL = MappingProxyType(
    {
        "postgresql": f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    token_id varchar({TOKEN_ID_CHARS_MAX}) COLLATE "C" PRIMARY KEY,
    outcome varchar(9) NOT NULL CHECK (outcome IN ({_OUTCOMES})),
    decided_at timestamp with time zone NOT NULL DEFAULT CURRENT_TIMESTAMP
)""",
        "sqlite": f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    token_id text NOT NULL PRIMARY KEY,
    outcome text NOT NULL CHECK (outcome IN ({_OUTCOMES})),
    decided_at text NOT NULL DEFAULT CURRENT_TIMESTAMP
)""",
        "mysql": f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    token_id varchar({TOKEN_ID_CHARS_MAX}) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY,
    outcome varchar(9) NOT NULL CHECK (outcome IN ({_OUTCOMES})),
    decided_at timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)
) ENGINE=InnoDB""",
    }
)
"""The statement that makes the table where there is none, by the dialect's name in SQLAlchemy."""


def commit_statement(token_id: str) -> str:
    """The application's row, with the driver's placeholder in place of the key."""
    return f"INSERT INTO {TABLE} (token_id, outcome) VALUES ({token_id}, '{COMMITTED}')"  # noqa: S608


_ABORT = f"INSERT INTO {TABLE} (token_id, outcome) VALUES (:token_id, '{ABORTED}') "  # noqa: S608
_NOTHING = "ON CONFLICT (token_id) DO NOTHING"

ABORT_STATEMENTS = MappingProxyType(
    {
        "postgresql": _ABORT + _NOTHING,
        "sqlite": _ABORT + _NOTHING,
        # `INSERT IGNORE` would hide more than a row that stands.
        "mysql": _ABORT + "ON DUPLICATE KEY UPDATE token_id = VALUES(token_id)",
    }
)
"""A resolver's row, where none stands; meets an uncommitted row by waiting for its end."""

OUTCOME_QUERY = f"SELECT outcome FROM {TABLE} WHERE token_id = :token_id"  # noqa: S608

ROWS_QUERY = (
    f"SELECT token_id FROM {TABLE} WHERE token_id > :after AND token_id < :below "  # noqa: S608
    "ORDER BY token_id LIMIT :rows_max"
)

DELETE_STATEMENT = f"DELETE FROM {TABLE} WHERE token_id IN :token_ids"  # noqa: S608
