"""The resolver, step by step; any history is in `tests/stateful/test_resolver.py`."""

from stilltide.pipeline.core.decisions.resolver import (
    DECISIONS_MAX,
    ROUND_MS,
    ROWS_MAX,
    AskDatabase,
    DeleteRows,
    EndTransaction,
    ListUnended,
    LiveTransaction,
    ReadRows,
    Resolver,
    ResolverEffect,
)
from stilltide.schemas.values import TxnId

TXN = TxnId(0, 17)
PREPARED = LiveTransaction(TXN, "c/0:17/aa", "orders-db", prepared_ms=6_000)


def listing(*keys: str, resolve_after_ms: int = 5_000) -> Resolver:
    """A resolver that has read rows and waits for the coordinators."""
    resolver = Resolver("orders-db", resolve_after_ms=resolve_after_ms)
    resolver.tick(0)
    resolver.rows(keys)
    return resolver


def next_round(resolver: Resolver, now_ms: int, *listed: LiveTransaction) -> list[ResolverEffect]:
    """A round that is due, with the list of coordinator 0."""
    assert resolver.tick(now_ms) == [ReadRows("")]
    resolver.rows(())
    effects = resolver.listed(0, listed, (), now_ms)
    resolver.all_listed(now_ms)
    return effects


def test_a_round_reads_rows_before_it_lists():
    """L5: what is listed is asked for when the rows have been read."""
    resolver = Resolver("orders-db", resolve_after_ms=0)
    assert resolver.tick(0) == [ReadRows("")]
    assert resolver.deadline_ms is None
    assert resolver.rows(("c/0:1/aa",)) == [ListUnended(("c/0:1/aa",))]


def test_the_row_decides_and_goes_last():
    """L4, L5: asked of the database, then of the coordinator; then the row goes."""
    resolver = listing()
    assert resolver.listed(0, [PREPARED], (), 0) == [AskDatabase(PREPARED)]
    assert resolver.decided(PREPARED, 0, committed=True) == [
        EndTransaction(PREPARED, committed=True)
    ]
    assert resolver.ended(PREPARED) == [DeleteRows(("c/0:17/aa",))]
    assert not list(resolver.prepared)


def test_rows_of_transactions_that_are_not_listed_go():
    """L5: only if their coordinator has answered; a stranger's rows stay."""
    keys = ("c/0:16/aa", "c/1:3/bb", "c/", "c/0:x/aa", "c/0:1:2/aa", "c")
    assert listing(*keys).listed(0, [], keys, 0) == [DeleteRows(("c/0:16/aa",))]


def test_a_late_list_deletes_what_was_read_before_it():
    """L5: a row that was read when the coordinator had been asked already stays."""
    early, late = ("c/0:16/aa",), ("c/0:16/aa", "c/0:17/aa")
    resolver = listing(*early)
    resolver.all_listed(0)
    resolver.tick(5_000)
    resolver.rows(late)
    assert resolver.listed(0, [], early, 5_000) == [DeleteRows(early)]


def test_a_young_transaction_is_left_to_its_client():
    """L6: `resolve_after_ms` has to pass first."""
    resolver = listing()
    assert resolver.listed(0, [PREPARED._replace(prepared_ms=4_999)], (), 0) == []


def test_a_transaction_grows_old_by_the_clock_of_the_resolver_too():
    """L6: a coordinator whose clock was two hours ahead says for two hours that it is young."""
    resolver = listing()
    young = PREPARED._replace(prepared_ms=0)
    assert resolver.listed(0, [young], (), 0) == []
    resolver.all_listed(0)
    assert next_round(resolver, 5_000, young) == [AskDatabase(young)]


def test_what_another_database_decides_is_left_alone():
    """L4: neither asked of this database nor ended; its row in this table stays as well."""
    resolver = listing("c/0:17/aa")
    assert resolver.listed(0, [PREPARED._replace(decider="other-db")], ("c/0:17/aa",), 0) == []


def test_what_is_not_decided_comes_again_later():
    """L6: a row that is locked is asked for again after a pause."""
    resolver = listing()
    resolver.listed(0, [PREPARED], (), 0)
    resolver.all_listed(0)
    assert resolver.undecided(PREPARED, 0) == []
    assert next_round(resolver, 1_000, PREPARED) == []
    assert next_round(resolver, 2_000, PREPARED) == [AskDatabase(PREPARED)]


def test_locked_rows_hold_up_no_other_one():
    """L6: however many transactions wait for a locked row, each has its turn."""
    locked = [PREPARED._replace(token_id=f"c/0:{n}/aa", txn=TxnId(0, n)) for n in range(20)]
    young = LiveTransaction(TxnId(1, 99), "c/1:99/aa", "orders-db", prepared_ms=5_000)
    resolver, now_ms = listing(), 0
    effects = [*resolver.listed(0, locked, (), 0), *resolver.listed(1, [young], (), 0)]
    asked = [effect.unended for effect in effects if isinstance(effect, AskDatabase)]
    while young not in asked:
        now_ms += 2_000  # each of them waits for its lock
        assert now_ms < 10_000
        effects = [effect for item in asked for effect in resolver.undecided(item, now_ms)]
        asked = [effect.unended for effect in effects if isinstance(effect, AskDatabase)]
        assert len(asked) <= DECISIONS_MAX


def test_decisions_are_bounded_and_follow_each_other_at_once():
    """L6: the oldest transactions come first; a full page of rows is followed by the next one."""
    many = [LiveTransaction(TxnId(0, n), f"c/0:{n}/aa", "orders-db", 10_000 - n) for n in range(20)]
    page = [f"c/1:{n}/of a stranger" for n in range(ROWS_MAX)]
    resolver = listing(*page)
    effects = resolver.listed(0, many, page, 0)
    assert effects == [AskDatabase(item) for item in many[:DECISIONS_MAX]]
    resolver.all_listed(0)
    assert resolver.decided(many[3], 0, committed=True) == [
        EndTransaction(many[3], committed=True),
        AskDatabase(many[DECISIONS_MAX]),
    ]
    assert resolver.more
    assert resolver.deadline_ms == 0
    assert resolver.tick(0) == [ReadRows(page[-1])]


def test_with_nothing_to_decide_a_resolver_rests():
    """L6: for as long as nothing that is prepared meanwhile has to be decided, and no longer."""
    resolver = listing()
    resolver.listed(0, [PREPARED._replace(decider="other-db"), LiveTransaction(TxnId(0, 1))], (), 0)
    resolver.all_listed(0)
    assert resolver.deadline_ms == 5_000
    young = PREPARED._replace(prepared_ms=4_990)
    assert next_round(resolver, 5_000, young) == []
    assert resolver.deadline_ms == 6_000
    assert next_round(resolver, 6_000, young._replace(prepared_ms=5_990)) != []


def test_a_resolver_that_leaves_nothing_to_clients_rests_for_a_round():
    """L6: `resolve_after_ms` of 0 promises a second."""
    resolver = listing(resolve_after_ms=0)
    resolver.listed(0, [], (), 0)
    resolver.all_listed(0)
    assert resolver.deadline_ms == ROUND_MS


def test_a_late_list_ends_the_rest():
    """L6: rounds follow each other as soon as a coordinator has said that something is prepared."""
    resolver = listing()
    resolver.all_listed(0)
    assert resolver.deadline_ms == 5_000
    resolver.listed(1, [PREPARED._replace(prepared_ms=0)], (), 1_500)
    assert resolver.deadline_ms == 2_500


def test_nothing_is_decided_of_a_silent_coordinator():
    """L6: what it has listed before may have ended; it is asked when it answers again."""
    resolver = listing()
    resolver.listed(0, [PREPARED._replace(prepared_ms=4_000)], (), 0)
    resolver.silent(0)
    resolver.all_listed(0)
    other = LiveTransaction(TxnId(1, 17), "c/1:17/aa", "orders-db", prepared_ms=6_000)
    resolver.tick(5_000)
    resolver.rows(())
    assert resolver.listed(1, [other], (), 5_000) == [AskDatabase(other)]
    assert list(resolver.prepared) == [other]


def test_a_resolver_that_is_woken_rests_longer():
    """L6: the coordinators of a worker say what is prepared; only a rest is cut short by that."""
    resolver = Resolver("orders-db", resolve_after_ms=5_000, rest_ms=60_000)
    assert next_round(resolver, 0) == []
    assert resolver.deadline_ms == 60_000
    resolver.woken(1_000)
    assert resolver.deadline_ms == 1_000
    assert next_round(resolver, 1_000, PREPARED._replace(prepared_ms=10)) == []
    resolver.woken(1_500)
    assert resolver.deadline_ms == 2_000
