"""The resolver, step by step; any history is in `tests/stateful/test_resolver.py`."""

from stilltide.pipeline.core.decisions.resolver import (
    DECISIONS_MAX,
    ROWS_MAX,
    AskDatabase,
    DeleteRows,
    EndTransaction,
    ListUnended,
    LiveTransaction,
    ReadRows,
    Resolver,
    Row,
    UnknownDecider,
)
from stilltide.schemas.values import TxnId

TXN = TxnId(0, 17)
PREPARED = LiveTransaction(TXN, "c/0:17/aa", "orders-db", prepared_ms=6_000)


def listing(*deciders: str) -> Resolver:
    """A resolver that has read no rows and waits for the coordinators."""
    resolver = Resolver(deciders, resolve_after_ms=5_000)
    for effect in resolver.tick(0):
        assert isinstance(effect, ReadRows)
        resolver.rows(effect.decider, ())
    return resolver


def test_a_round_reads_rows_before_it_lists():
    """L5: what is listed is asked for when the rows of every table have been read."""
    resolver = Resolver(["a", "b"], resolve_after_ms=0)
    assert resolver.tick(0) == [ReadRows("a", ""), ReadRows("b", "")]
    assert resolver.rows("b", ()) == []
    assert resolver.rows("a", ()) == [ListUnended()]


def test_the_row_decides_and_goes_last():
    """L4, L5: asked of the database, then of the coordinator; then the row goes."""
    resolver = listing("orders-db")
    assert resolver.listed({0: [PREPARED]}, 0) == [AskDatabase("orders-db", PREPARED)]
    assert resolver.decided(PREPARED, committed=True) == [EndTransaction(PREPARED, committed=True)]
    assert resolver.ended(PREPARED, 0) == [DeleteRows("orders-db", ("c/0:17/aa",))]


def test_rows_of_transactions_that_are_not_listed_go():
    """L5: only if their coordinator has answered."""
    resolver = Resolver(["orders-db"], resolve_after_ms=0)
    resolver.tick(0)
    resolver.rows("orders-db", [Row("c/0:16/aa", TxnId(0, 16)), Row("c/1:3/bb", TxnId(1, 3))])
    assert resolver.listed({0: []}, 0) == [DeleteRows("orders-db", ("c/0:16/aa",))]


def test_a_young_transaction_is_left_to_its_client():
    """L6: `resolve_after_ms` has to pass first."""
    resolver = listing("orders-db")
    assert resolver.listed({0: [PREPARED._replace(prepared_ms=4_999)]}, 0) == []


def test_an_unknown_decider_is_told_once():
    """L6: the transaction stays prepared."""
    resolver = listing("other-db")
    assert resolver.listed({0: [PREPARED]}, 0) == [UnknownDecider("orders-db", TXN)]
    assert resolver.tick(10_000) == [ReadRows("other-db", "")]
    resolver.rows("other-db", ())
    assert resolver.listed({0: [PREPARED]}, 10_000) == []


def test_what_is_not_decided_comes_again_later():
    """L6: a row that is locked is asked for again after a pause."""
    resolver = listing("orders-db")
    resolver.listed({0: [PREPARED]}, 0)
    assert resolver.undecided(PREPARED, 0) == []
    for now_ms, again in ((1_000, []), (2_000, [AskDatabase("orders-db", PREPARED)])):
        assert resolver.tick(now_ms) == [ReadRows("orders-db", "")]
        resolver.rows("orders-db", ())
        assert resolver.listed({0: [PREPARED]}, now_ms) == again


def test_a_round_is_bounded_and_the_next_one_begins_at_once():
    """L6: the oldest transactions come first; a full page of rows is followed by the next one."""
    many = [LiveTransaction(TxnId(0, n), f"c/0:{n}/aa", "orders-db", 10_000 - n) for n in range(20)]
    resolver = Resolver(["orders-db"], resolve_after_ms=0)
    resolver.tick(0)
    page = [Row(f"c/1:{n}/aa", TxnId(1, n)) for n in range(ROWS_MAX)]
    resolver.rows("orders-db", page)
    effects = resolver.listed({0: many}, 0)
    assert effects == [AskDatabase("orders-db", item) for item in many[:DECISIONS_MAX]]
    for item in many[:DECISIONS_MAX]:
        resolver.undecided(item, 0)
    assert resolver.more
    assert resolver.deadline_ms == 0
    assert resolver.tick(0) == [ReadRows("orders-db", page[-1].token_id)]


def test_without_deciders_nothing_is_due():
    """A resolver that knows no database never asks anybody."""
    resolver = Resolver([], resolve_after_ms=0)
    assert resolver.deadline_ms is None
    assert resolver.tick(0) == []
