"""What the errors of database drivers mean, whichever library raised them.

*Source*: SQLSTATE of PostgreSQL (appendix A), result codes of SQLite, errors of MySQL's server.
"""

from collections.abc import Iterator
from types import MappingProxyType
from typing import Literal

Failure = Literal["missing", "duplicate", "locked", "denied", "read_only", "other"]
"""The table is missing, the key stands, another transaction holds the key, the user has no right,
the server takes no writes on this connection, or anything else."""

_SQL_STATES: MappingProxyType[object, Failure] = MappingProxyType(
    {
        "42P01": "missing",
        "23505": "duplicate",
        "55P03": "locked",
        "57014": "locked",  # a time-out of the statement
        "40001": "locked",  # the row that it waited for was committed, and the snapshot is older
        "40P01": "locked",
        "42501": "denied",
        "25006": "read_only",
    }
)

_MYSQL_ERRORS: MappingProxyType[object, Failure] = MappingProxyType(
    {
        1146: "missing",
        1062: "duplicate",
        1205: "locked",
        1213: "locked",
        1142: "denied",
        1290: "read_only",  # the server's option --read-only
        1792: "read_only",
        1836: "read_only",
    }
)


def failure_of(error: BaseException) -> Failure:
    """What an error of a driver, or of SQLAlchemy around it, means."""
    for cause in _causes(error):
        state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
        if state in _SQL_STATES:
            return _SQL_STATES[state]
        if (failure := _of_sqlite(cause)) is not None:
            return failure
        number = cause.args[0] if cause.args else None
        if type(number) is int and number in _MYSQL_ERRORS:
            return _MYSQL_ERRORS[number]
    return "other"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it wraps; at most ten, for an error may name itself."""
    cause: BaseException | None = error
    for _ in range(10):
        if cause is None:
            return
        yield cause
        cause = getattr(cause, "orig", None) or cause.__cause__


def _of_sqlite(error: BaseException) -> Failure | None:
    name = getattr(error, "sqlite_errorname", "")
    if name in {"SQLITE_CONSTRAINT_PRIMARYKEY", "SQLITE_CONSTRAINT_UNIQUE"}:
        return "duplicate"
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "locked"
    if name == "SQLITE_ERROR" and "no such table" in str(error):
        return "missing"
    return None
