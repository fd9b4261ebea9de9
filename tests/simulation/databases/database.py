"""A database with unique keys: what it keeps, and what its sessions have not committed.

*Invariants*: a key stands once. Who inserts a key that another session has inserted and not
committed waits for the end of that session, as in every database at each isolation level. A crash
loses what was not committed, and nothing else.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Why = Literal["duplicate", "locked", "lost", "away"]

SQL_STATES: dict[Why, str] = {
    "duplicate": "23505",
    "locked": "55P03",
    "lost": "08006",
    "away": "08001",
}
"""PostgreSQL's codes for the reasons of a failure."""


class Key(NamedTuple):
    """The primary key of a row of a table."""

    table: str
    name: str


class DatabaseError(Exception):
    """A statement has failed; the session's transaction can only be rolled back."""

    def __init__(self, why: Why) -> None:
        super().__init__(why)
        self.why: Why = why
        self.sqlstate = SQL_STATES[why]


Answer = Callable[[DatabaseError | None], None]
"""Takes None when a statement has been carried out, or why it was not."""


@dataclass(eq=False)
class Session:
    """One transaction of a connection: what it has inserted and not committed."""

    inserted: dict[Key, str] = field(default_factory=dict[Key, str])


class _Waiting(NamedTuple):
    session: Session
    value: str
    answer: Answer


class Database:
    """The database; its calls are carried out at once, and answered when that is possible.

    Attributes:
        rows: what is committed.
        committed_s: when each row was committed.
        is_down: whether nobody can connect.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.rows: dict[Key, str] = {}
        self.committed_s: dict[Key, float] = {}
        self.is_down = False
        self._sessions: dict[Session, None] = {}
        self._holders: dict[Key, Session] = {}
        self._waiting: dict[Key, list[_Waiting]] = {}

    def begin(self) -> Session:
        """A session with a transaction; raises `DatabaseError` while the database is down."""
        if self.is_down:
            raise DatabaseError("away")
        session = Session()
        self._sessions[session] = None
        return session

    def insert(self, session: Session, key: Key, value: str, answer: Answer) -> None:
        """Inserts a row; waits while another session has inserted the key and has not ended."""
        holder = self._holders.get(key)
        if session not in self._sessions:
            answer(DatabaseError("lost"))
        elif key in self.rows or holder is session:
            answer(DatabaseError("duplicate"))
        elif holder is not None:
            self._waiting.setdefault(key, []).append(_Waiting(session, value, answer))
        else:
            self._holders[key] = session
            session.inserted[key] = value
            answer(None)

    def wait_no_longer(self, session: Session) -> None:
        """Fails the insert with which a session waits, if it does."""
        for key, waiting in [*self._waiting.items()]:
            for item in [it for it in waiting if it.session is session]:
                self._waiting[key].remove(item)
                item.answer(DatabaseError("locked"))

    def commit(self, session: Session) -> None:
        """Makes what a session has inserted durable, and ends the session.

        Raises:
            DatabaseError: the session is lost, and so is what it has inserted.
        """
        if session not in self._sessions:
            raise DatabaseError("lost")
        self.rows |= session.inserted
        self.committed_s |= dict.fromkeys(session.inserted, self._now_s())
        self._end(session)

    def rollback(self, session: Session) -> None:
        """Ends a session without effect; one that has ended already stays as it is."""
        if session in self._sessions:
            self.wait_no_longer(session)
            self._end(session)

    def delete(self, keys: Iterable[Key]) -> None:
        """Deletes rows that are committed; raises `DatabaseError` while the database is down."""
        if self.is_down:
            raise DatabaseError("away")
        for key in keys:
            self.rows.pop(key, None)

    def names(self, table: str) -> list[str]:
        """The keys of the rows of a table; raises `DatabaseError` while the database is down."""
        if self.is_down:
            raise DatabaseError("away")
        return sorted(key.name for key in self.rows if key.table == table)

    def values(self, keys: Iterable[Key]) -> dict[Key, str]:
        """The rows of keys; raises `DatabaseError` while the database is down."""
        if self.is_down:
            raise DatabaseError("away")
        return {key: self.rows[key] for key in keys if key in self.rows}

    def crash(self) -> None:
        """Ends all sessions, and refuses new ones until `start`."""
        self.is_down = True
        sessions, self._sessions = self._sessions, {}
        waiting, self._waiting = self._waiting, {}
        self._holders.clear()
        for session in sessions:
            session.inserted.clear()
        for items in waiting.values():
            for item in items:
                item.answer(DatabaseError("lost"))

    def start(self) -> None:
        """Is there again, with what was committed."""
        self.is_down = False

    def _end(self, session: Session) -> None:
        self._sessions.pop(session, None)
        keys = [*session.inserted]
        for key in keys:
            del self._holders[key]
        session.inserted.clear()
        for key in keys:
            for item in self._waiting.pop(key, []):
                self.insert(item.session, key, item.value, item.answer)
