"""The database of worlds keeps what every database promises of unique keys."""

from functools import partial

import pytest

from tests.simulation.databases.database import Database, DatabaseError, Key

KEY = Key("orders", "1")


def answers(database: Database, value: str, into: list[str]) -> object:
    """Begins a session and inserts the key; returns the session, and notes the answer."""
    session = database.begin()
    note = partial(_note, into)
    database.insert(session, KEY, value, note)
    return session


def _note(into: list[str], error: DatabaseError | None) -> None:
    into.append("done" if error is None else error.why)


@pytest.mark.parametrize(("ends", "told"), [("commit", "duplicate"), ("rollback", "done")])
def test_who_inserts_an_open_key_waits(ends: str, told: str):
    """A second insert is answered when the first session has ended, as that ends."""
    database, first, second = Database(lambda: 7.0), list[str](), list[str]()
    holder = answers(database, "a", first)
    answers(database, "b", second)
    assert (first, second) == (["done"], [])
    getattr(database, ends)(holder)
    assert second == [told]
    assert database.rows == ({KEY: "a"} if ends == "commit" else {})


def test_a_wait_that_is_too_long_fails():
    """The session that waits goes on without the row."""
    database, first, second = Database(lambda: 7.0), list[str](), list[str]()
    answers(database, "a", first)
    waiting = answers(database, "b", second)
    database.wait_no_longer(waiting)  # pyright: ignore[reportArgumentType]
    assert second == ["locked"]


def test_a_crash_keeps_what_is_committed():
    """What is not committed is lost, with its sessions; nobody connects until the start."""
    database, told = Database(lambda: 7.0), list[str]()
    database.commit(answers(database, "a", told))  # pyright: ignore[reportArgumentType]
    other = database.begin()
    database.crash()
    with pytest.raises(DatabaseError, match="away"):
        database.begin()
    database.start()
    with pytest.raises(DatabaseError, match="lost"):
        database.commit(other)
    assert database.rows == {KEY: "a"}
    assert database.committed_s == {KEY: 7.0}
