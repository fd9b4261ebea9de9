"""`stilltide txn decisions-ddl` and the mistakes of `stilltide txn resolve`."""

import sqlite3

import pytest

from stilltide.pipeline.cli.program import run_program


def test_the_statement_makes_the_table(capsys: pytest.CaptureFixture[str]):
    """What is printed is SQL of the dialect, and may run twice."""
    assert run_program(["txn", "decisions-ddl", "--dialect", "sqlite"]) in (0, None)
    db, statements = sqlite3.connect(":memory:"), capsys.readouterr().out
    db.executescript(statements)
    rows = db.execute("SELECT token_id, outcome, decided_at FROM stilltide_decisions").fetchall()
    db.executescript(statements)
    assert db.execute("SELECT * FROM stilltide_decisions").fetchall() == rows
    assert [key for key, _, _ in rows] == ["identity"]
    db.close()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [((), "give --decider NAME=URL"), (("--decider", "orders:secret"), "is not name=URL")],
)
def test_a_database_has_to_be_named(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
):
    """The error names the form, and shows no address."""
    assert run_program(["txn", "resolve", *arguments]) != 0
    text = capsys.readouterr().err
    assert told in text
    assert "secret" not in text
