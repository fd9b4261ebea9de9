"""What the commands that ask a cluster make of its answers."""

import json
import subprocess
import sys

import pytest

from stilltide.pipeline.cli.common.asking import STORES, answered, exit_code
from stilltide.pipeline.cli.common.output import print_columns, print_rows
from stilltide.pipeline.cli.common.tables import Form, form_for
from stilltide.pipeline.cli.logs import coordinator, pending_ack
from stilltide.pipeline.cli.logs.batching import BatchingState, scan_row, shown_json
from stilltide.pipeline.cli.logs.coordinator import internal_rows, stats_rows
from stilltide.pipeline.cli.main import NOUNS
from stilltide.pipeline.cli.txn import description_row, history_rows, listed_row, transaction_rows
from stilltide.pipeline.core.coordinator.history import EndedTransaction
from stilltide.pipeline.drivers.buffered_log.batch_scan import BatchScan
from stilltide.schemas.coordinator.transactions import (
    AbortCause,
    Description,
    LiveEntry,
    LogLiveness,
    OperatorDecision,
    Preparation,
)
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition, TxnId
from tests.support.schemas.wire import READ, REGISTERED, STATS
from tests.support.schemas.wire_acks import STORE_STATS, SUBSCRIPTION_STATS

NOW_MS = 1_700_000_060_000
OLD = Description(3, "COMMITTING", NOW_MS - 60_000, 30_000, (REGISTERED,), (READ,))
NEW = Description(4, "OPEN", NOW_MS - 500, 30_000, ())
LISTED = {0: [OLD, NEW], 2: [NEW._replace(sequence=9)]}
BOUNDS = {1: (Offset(5), EndOffset(12))}

_IMPORTS = """
import importlib, sys
for module in {modules}:
    importlib.import_module(module)
found = {{"faust", "mode", "pyspark", "aiohttp"}} & set(sys.modules)
sys.exit(str(found) if found else 0)
"""


@pytest.mark.parametrize(
    ("filters", "shown"),
    [
        ({}, ["0:3", "0:4", "2:9"]),
        ({"state": "OPEN"}, ["0:4", "2:9"]),
        ({"state": "ABORTING"}, []),
        ({"least_age_s": 60.0}, ["0:3"]),
        ({"least_age_s": 60.5}, []),
        ({"least_age_s": 0.5, "state": "OPEN"}, ["0:4", "2:9"]),
    ],
)
def test_transactions_are_filtered(filters: dict[str, object], shown: list[str]):
    """By state and by age, bounds included; each bears the id that other commands take."""
    rows = transaction_rows(LISTED, NOW_MS, **filters)  # type: ignore[arg-type]
    assert [row["txn"] for row in rows] == shown


@pytest.mark.parametrize("preparation", [None, Preparation(NOW_MS, bytes(32), "orders-db")])
def test_a_listed_transaction_fits_80_columns(preparation: Preparation | None):
    """A line each, with a client of any length; -o json has all of it."""
    client = {"client_name": "a-client-of-a-long-name", "client_key": bytes(range(16))}
    told = OLD._replace(
        sequence=1_234_567,
        state="PREPARED" if preparation else "COMMITTING",
        preparation=preparation,
        opened_at_ms=NOW_MS - 86_399_999,
        **client,
    )
    rows = [*map(listed_row, transaction_rows({0: [told, NEW]}, NOW_MS))]
    cells = [[str(value) for value in row.values()] for row in rows]
    assert form_for([*rows[0]], cells, 80) in (Form.BOXED, Form.PLAIN)
    assert rows[0]["client"] == "a-clien…0c0d0e0f"


def test_ages_are_never_negative():
    """A coordinator whose clock is ahead does not make a transaction of the future."""
    assert [row["age_s"] for row in transaction_rows(LISTED, 0)] == [0, 0, 0]


def test_a_description_says_everything():
    """State, when it was opened, time-out in seconds, and where it may have written from."""
    assert description_row(0, OLD, NOW_MS) == {
        "txn": "0:3",
        "state": "COMMITTING",
        "outcome": None,
        "aborted_by": None,
        "opened_at": "2023-11-14T22:13:20.000+00:00",
        "age_s": 60.0,
        "timeout_s": 30.0,
        "partitions": ["t/3 from 300"],
        "subscriptions": [str(READ)],
        "client": "",
    }


def test_l8_a_prepared_transaction_says_who_decides():
    """L8: since when it waits, and for which decider."""
    preparation = Preparation(NOW_MS - 60_000, bytes(32), "orders-db")
    told = OLD._replace(state="PREPARED", preparation=preparation)
    row = description_row(0, told, NOW_MS)
    assert row["state"] == "PREPARED"
    assert row["prepared_at"] == "2023-11-14T22:13:20.000+00:00"
    assert row["decider"] == "orders-db"


def test_l7_a_list_says_who_decides_and_who_waits():
    """L7: of a prepared transaction also the command that decides; others have nothing there."""
    preparation = Preparation(NOW_MS - 60_000, bytes(32), f"orders-db/{bytes(16).hex()}")
    told = OLD._replace(state="PREPARED", preparation=preparation)
    waiting, other = transaction_rows({0: [told, NEW]}, NOW_MS)
    names = ("prepared_at", "decider", "holds_up", "decide")
    assert [waiting[name] for name in names] == [
        "2023-11-14T22:13:20.000+00:00",
        "orders-db",
        ["t/3"],
        "stilltide txn commit|abort --prepared 0:3 --reason TEXT",
    ]
    assert {other[name] for name in names} == {None}
    assert not set(names) & transaction_rows({0: [NEW]}, NOW_MS)[0].keys()


def test_l3_history_tells_reasons():
    """L3: who has decided, when and why; others have columns in JSON, or beside such ones."""
    ended = [EndedTransaction(TxnId(0, number), NOW_MS) for number in (1, 2)]
    decision = OperatorDecision(1, True, NOW_MS - 60_000, "the order is stored", "me@here")
    names = ("decided_by", "decided_at", "reason")
    by_hand, by_itself = history_rows(ended, {TxnId(0, 1): decision}, details=False)
    assert [by_hand[name] for name in names] == [
        "me@here",
        "2023-11-14T22:13:20.000+00:00",
        "the order is stored",
    ]
    assert {by_itself[name] for name in names} == {None}
    assert not set(names) & history_rows(ended, {}, details=False)[0].keys()
    assert {history_rows(ended, {}, details=True)[0][name] for name in names} == {None}


def test_an_ended_transaction_has_no_times():
    """What is not held any more is shown as unknown, not as the year 1970."""
    row = description_row(0, Description(3, "ENDED", 0, 0, ()), NOW_MS)
    assert (row["opened_at"], row["age_s"], row["timeout_s"]) == (None, None, None)


@pytest.mark.parametrize(
    ("committed", "outcome"), [(True, "committed"), (False, "aborted"), (None, "forgotten")]
)
def test_an_ended_transaction_has_an_outcome(committed: bool | None, outcome: str):  # noqa: FBT001 - a parameter of pytest
    """C12: how it ended, or that nobody knows any more."""
    row = description_row(0, Description(3, "ENDED", 0, 0, (), committed=committed), NOW_MS)
    assert row["outcome"] == outcome


@pytest.mark.parametrize(
    ("cause", "shown"),
    [
        (AbortCause.CLIENT, "client"),
        (AbortCause.TIMED_OUT, "time-out"),
        (AbortCause.OPERATOR, "operator"),
        (AbortCause.TOKEN, "token"),
        (None, None),
    ],
)
def test_an_aborted_transaction_has_a_cause(cause: AbortCause | None, shown: str | None):
    """C12: who has aborted it, or that nobody knows any more."""
    told = Description(3, "ENDED", 0, 0, (), committed=False, cause=cause)
    assert description_row(0, told, NOW_MS)["aborted_by"] == shown


def test_stats_hold_the_log_s_length():
    """B3: offsets are consecutive, so entries are end minus start."""
    (row,) = stats_rows({1: STATS}, BOUNDS)
    assert (row["log_start_offset"], row["log_end_offset"], row["entries"]) == (5, 12, 7)
    assert (row["open"], row["committing"], row["aborting"]) == (4, 5, 6)


def test_internal_stats_hold_the_batch_index():
    """Batching in force, records per entry, and which records of which entry are live."""
    live = LogLiveness(Offset(6), 2, 9, (LiveEntry(Offset(6), 0b1001),))
    (row,) = internal_rows({1: STATS._replace(liveness=live)}, BOUNDS)
    assert (row["records_per_entry"], row["batch_delay_ms_max"]) == (1.08, 0.011)
    assert (row["live_records"], row["dead_records"], row["first_live_offset"]) == (2, 9, 6)
    assert row["live_entries"] == [{"offset": 6, "live": [0, 3]}]


def test_internal_stats_of_an_owner_that_tracks_no_liveness():
    """What is not known is null, under the same keys, and nothing is divided by no entry."""
    log = STATS.log._replace(entries_written=0, records_written=0)
    (row,) = internal_rows({1: STATS._replace(log=log)}, BOUNDS)
    assert [row[it] for it in ("records_per_entry", "live_records", "live_entries")] == [None] * 3


def test_subscriptions_of_all_stores_are_in_order():
    """By topic, partition as a number, and group; each with the log that holds it."""
    names = [("t", 10, "g"), ("t", 9, "z"), ("t", 9, "a"), ("s", 11, "g")]
    subscriptions = [
        SUBSCRIPTION_STATS._replace(subscription=SubscriptionId(TopicPartition(topic, n), group))
        for topic, n, group in names
    ]
    stores = {
        0: STORE_STATS._replace(subscriptions=tuple(subscriptions[:2])),
        3: STORE_STATS._replace(subscriptions=tuple(subscriptions[2:])),
    }
    rows = pending_ack.stats_rows(stores)
    assert [(it["topic"], it["partition"], it["group"]) for it in rows] == sorted(names)
    assert [it["log"] for it in rows] == [3, 3, 0, 0]


def test_a_subscription_s_row():
    """Everything there is to say of it, numbers as they came."""
    (row,) = pending_ack.stats_rows({2: STORE_STATS})
    assert row == {
        "topic": "t",
        "partition": 3,
        "group": "g",
        "attached": True,
        "cursor": 3,
        "committed": 4,
        "acknowledged_ranges": 5,
        "pending_transactions": 6,
        "pending_individual": 7,
        "pending_cumulative_offset": 8,
        "locked_offsets": 9,
        "log": 2,
    }


def test_internals_of_a_store():
    """Where its log lies, from where to where, its base, and what its buffered writer holds."""
    (row,) = pending_ack.internal_rows({1: STORE_STATS}, BOUNDS)
    assert (row["log"], row["epoch"]) == ("stilltide.pending-ack-log/1", 1)
    assert (row["log_start_offset"], row["log_end_offset"], row["entries"]) == (5, 12, 7)
    assert (row["base_as_of_offset"], row["log_records"]) == (17, 18)
    assert (row["buffered_records"], row["buffered_bytes"]) == (14, 15)
    assert (row["records_per_entry"], row["batch_delay_ms_max"]) == (1.09, 0.009)
    assert (row["subscriptions"], row["transactions"], row["recovery_s"]) == (2, 3, 0.016)


def test_only_subscriptions_that_were_served_have_a_state():
    """PIP-160: none before a transaction has acknowledged there since the owner began."""
    idle = SUBSCRIPTION_STATS._replace(subscription=READ._replace(group="idle"), has_served=False)
    log = STORE_STATS.log._replace(batching_enabled=False)
    one = STORE_STATS._replace(log=log, subscriptions=(SUBSCRIPTION_STATS, idle))
    assert pending_ack.subscription_states(one) == [("t/3 of g", "t-g-3", False)]
    assert pending_ack.subscription_states(one._replace(subscriptions=(idle,))) == []


def test_batching_is_shown_in_the_spelling_of_pip_160():
    """PIP-160, API changes: its keys, its misspelling, and its names of subscriptions."""
    ((name, spelled, _),) = pending_ack.subscription_states(STORE_STATS)
    states = [BatchingState(name, spelled, True)]
    assert shown_json(pending_ack._LOG, states, enabled=True, pip_160=True) == {
        "txnPendingAckBatchLogEnabled": True,
        "subscriptionArray": [{"t-g-3": True}],
    }
    assert shown_json(pending_ack._LOG, states, enabled=None, pip_160=False) == {
        "pending_ack_batching_enabled": None,
        "subscriptions": [{"t/3 of g": True}],
    }
    one = BatchingState("1", "1", True)
    assert shown_json(coordinator._LOG, [one], enabled=True, pip_160=True) == {
        "txnTcBatchLogEnabled": True,
        "coodinatorArray": [{"1": True}],
    }


def test_what_an_answer_had_no_room_for_is_said(capsys: pytest.CaptureFixture[str]):
    """How many subscriptions of which store are missing, and how to ask for them."""
    full = STORE_STATS._replace(subscriptions_omitted=0)
    pending_ack.say_omitted({0: full, 1: None, 2: STORE_STATS})
    said = capsys.readouterr().err
    assert said.startswith("20 more subscriptions of store 2 are not shown\n  hint: ")
    assert said.count("\n") == 2


def test_a_scan_names_offsets():
    """Ranges [first, end) of the entries that hold batches."""
    scan = BatchScan(TopicPartition("log", 2), Offset(4), EndOffset(9), 3, [(5, 7), (8, 9)])
    assert scan_row(scan) == {
        "partition": 2,
        "start_offset": 4,
        "end_offset": 9,
        "entries": 5,
        "batches": 3,
        "batches_at": [[5, 7], [8, 9]],
    }


def test_a_missing_answer_shows(capsys: pytest.CaptureFixture[str]):
    """Who gave no answer is on stderr and in the exit code, never left out in silence."""
    assert answered({0: "a", 1: None, 2: None}) == {0: "a"}
    assert capsys.readouterr().err.startswith("no answer from coordinators 1, 2\n  hint: ")
    assert answered({0: None}, STORES) == {}
    assert capsys.readouterr().err.startswith("no answer from pending-ack stores 0\n  hint: ")
    assert (exit_code({0: "a", 1: None}), exit_code({0: "a"})) == (4, 0)


def test_columns_hold_what_json_holds(capsys: pytest.CaptureFixture[str]):
    """A row of many columns is shown as one, with long lists cut; JSON has all of it."""
    rows = [{"coordinator": 7, "epoch": 12, "live": list(range(1000, 1030)), "none": None}]
    print_columns(rows, "table")
    table = capsys.readouterr().out
    assert all(cell in table for cell in ("coordinator", "7", "epoch", "12", "1009", "20 more"))
    assert "1010" not in table
    print_columns(rows, "json")
    assert json.loads(capsys.readouterr().out) == rows
    print_columns([], "table")
    assert capsys.readouterr().out == ""


def test_a_list_in_a_cell_is_no_python(capsys: pytest.CaptureFixture[str]):
    """Items have commas between them; a long list is cut, and JSON has all of it."""
    print_rows([{"partitions": [f"t/{number}" for number in range(12)], "none": []}], "table")
    table = capsys.readouterr().out
    assert "t/0, t/1, t/2" in table
    assert "t/9, ... 2 more" in table
    assert "[" not in table


def test_a_table_without_rows_may_say_so(capsys: pytest.CaptureFixture[str]):
    """On stderr, so that a pipe gets no row; JSON is an empty list."""
    print_rows([], "table", empty="no open transactions")
    assert capsys.readouterr() == ("", "no open transactions\n")
    print_rows([], "json", empty="no open transactions")
    assert capsys.readouterr() == ("[]\n", "")


def test_admin_commands_do_not_import_faust():
    """An operator's command does not wait for a second until a worker's library is there."""
    heavy = {"audit", "console", "demo", "publish", "replicate", "table", "worker"}  # these serve
    modules = [
        f"stilltide.pipeline.cli.{noun.target.partition(':')[0]}"
        for name, noun in NOUNS.items()
        if name not in heavy
    ]
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTS.format(modules=modules)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
