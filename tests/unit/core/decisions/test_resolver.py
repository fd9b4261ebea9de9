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
)
from stilltide.schemas.values import TxnId

TXN = TxnId(0, 17)
PREPARED = LiveTransaction(TXN, "c/0:17/aa", "orders-db", prepared_ms=6_000)


def listing(*keys: str) -> Resolver:
    """A resolver that has read rows and waits for the coordinators."""
    resolver = Resolver("orders-db", resolve_after_ms=5_000)
    resolver.tick(0)
    resolver.rows(keys)
    return resolver


def test_a_round_reads_rows_before_it_lists():
    """L5: what is listed is asked for when the rows have been read."""
    resolver = Resolver("orders-db", resolve_after_ms=0)
    assert resolver.tick(0) == [ReadRows("")]
    assert resolver.deadline_ms is None
    assert resolver.rows(()) == [ListUnended()]


def test_the_row_decides_and_goes_last():
    """L4, L5: asked of the database, then of the coordinator; then the row goes."""
    resolver = listing()
    assert resolver.listed({0: [PREPARED]}, 0) == [AskDatabase(PREPARED)]
    assert resolver.decided(PREPARED, committed=True) == [EndTransaction(PREPARED, committed=True)]
    assert resolver.ended(PREPARED, 0) == [DeleteRows(("c/0:17/aa",))]


def test_rows_of_transactions_that_are_not_listed_go():
    """L5: only if their coordinator has answered; a stranger's rows stay."""
    resolver = listing("c/0:16/aa", "c/1:3/bb", "c/", "c/0:x/aa", "c/0:1:2/aa", "c")
    assert resolver.listed({0: []}, 0) == [DeleteRows(("c/0:16/aa",))]


def test_a_young_transaction_is_left_to_its_client():
    """L6: `resolve_after_ms` has to pass first."""
    resolver = listing()
    assert resolver.listed({0: [PREPARED._replace(prepared_ms=4_999)]}, 0) == []


def test_a_transaction_grows_old_by_the_clock_of_the_resolver_too():
    """L6: a coordinator whose clock was two hours ahead says for two hours that it is young."""
    resolver = listing()
    young = PREPARED._replace(prepared_ms=0)
    assert resolver.listed({0: [young]}, 0) == []
    resolver.tick(5_000)
    resolver.rows(())
    assert resolver.listed({0: [young]}, 5_000) == [AskDatabase(young)]


def test_what_another_database_decides_is_left_alone():
    """L4: neither asked of this database nor ended; its row in this table stays as well."""
    resolver = listing("c/0:17/aa")
    assert resolver.listed({0: [PREPARED._replace(decider="other-db")]}, 0) == []


def test_what_is_not_decided_comes_again_later():
    """L6: a row that is locked is asked for again after a pause."""
    resolver = listing()
    resolver.listed({0: [PREPARED]}, 0)
    assert resolver.undecided(PREPARED, 0) == []
    for now_ms, again in ((1_000, []), (2_000, [AskDatabase(PREPARED)])):
        assert resolver.tick(now_ms) == [ReadRows("")]
        resolver.rows(())
        assert resolver.listed({0: [PREPARED]}, now_ms) == again


def test_locked_rows_hold_up_no_other_one():
    """L6: however many transactions wait for a locked row, each has its turn."""
    locked = [PREPARED._replace(token_id=f"c/0:{n}/aa", txn=TxnId(0, n)) for n in range(20)]
    young = LiveTransaction(TxnId(0, 99), "c/0:99/aa", "orders-db", prepared_ms=5_000)
    resolver, now_ms, asked = listing(), 0, list[LiveTransaction]()
    while young not in asked:
        effects = resolver.listed({0: [*locked, young]}, now_ms)
        asked = [effect.unended for effect in effects if isinstance(effect, AskDatabase)]
        now_ms += 2_000  # each of them waits for its lock
        for item in asked:
            resolver.undecided(item, now_ms)
        assert now_ms < 10_000
        now_ms = max(now_ms, int(resolver.deadline_ms or 0))
        resolver.tick(now_ms)
        resolver.rows(())


def test_a_round_is_bounded_and_the_next_one_begins_at_once():
    """L6: the oldest transactions come first; a full page of rows is followed by the next one."""
    many = [LiveTransaction(TxnId(0, n), f"c/0:{n}/aa", "orders-db", 10_000 - n) for n in range(20)]
    page = [f"c/1:{n}/of a stranger" for n in range(ROWS_MAX)]
    resolver = listing(*page)
    effects = resolver.listed({0: many}, 0)
    assert effects == [AskDatabase(item) for item in many[:DECISIONS_MAX]]
    for item in many[:DECISIONS_MAX]:
        resolver.undecided(item, 0)
    assert resolver.more
    assert resolver.deadline_ms == 0
    assert resolver.tick(0) == [ReadRows(page[-1])]
