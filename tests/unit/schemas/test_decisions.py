"""What `Prepare` records of a database that decides, and the table's statements."""

import sqlite3

import pytest

from stilltide.pipeline.core.coordinator.admission import DECIDER_CHARS_MAX
from stilltide.schemas.decisions import (
    DDL,
    DECIDER_NAME_CHARS_MAX,
    IDENTITY_CHARS_MAX,
    IDENTITY_QUERY,
    Decider,
    parse_decider,
)

UUID, HEX = "8a1f3f0e-7c9d-4a53-9d52-0d1c6f0a2b11", "0a" * 16


@pytest.mark.parametrize("identity", [UUID, HEX, ""])
def test_a_decider_is_a_text_and_back(identity: str):
    """Identities are those that databases draw."""
    decider = Decider("orders-db", identity)
    assert parse_decider(str(decider)) == decider


@pytest.mark.parametrize("text", ["", "orders/2024", "a/b/c", "/", f"/{UUID}", f"a/{HEX}\n"])
def test_what_a_program_has_named_by_itself(text: str):
    """Every text is a name, and without an identity no table decides."""
    assert parse_decider(text) == Decider(text, "")


def test_the_longest_decider_is_admitted():
    """Coordinators take the longest name with the longest identity."""
    longest = Decider("n" * DECIDER_NAME_CHARS_MAX, "0" * IDENTITY_CHARS_MAX)
    assert len(str(longest)) == DECIDER_CHARS_MAX
    assert parse_decider(str(longest)) == longest


def test_the_identity_of_sqlite_is_drawn_once():
    """Two databases have two identities, and the statements, run again, change none."""
    identities = []
    for _ in range(2):
        db = sqlite3.connect(":memory:")
        for statement in DDL["sqlite"] * 2:
            db.execute(statement)
        identities += db.execute(IDENTITY_QUERY).fetchall()
        with pytest.raises(sqlite3.IntegrityError):
            db.execute(
                "INSERT INTO stilltide_decisions (token_id, outcome) VALUES ('c/0:1/a', 'x')"
            )
        db.close()
    assert len(set(identities)) == 2
    assert all(parse_decider(f"orders-db/{identity}").identity for (identity,) in identities)
