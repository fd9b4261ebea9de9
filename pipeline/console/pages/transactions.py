"""The page of transactions: those that readers wait for, open ones, those that ended last."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from stilltide.pipeline.console import charts
from stilltide.pipeline.console.ids import TRANSACTIONS, client_cell, partition_cell, txn_cell
from stilltide.pipeline.console.pages.overview import half_hour
from stilltide.pipeline.console.pages.partition import written_at
from stilltide.pipeline.console.views import (
    ANY,
    NOTHING,
    ROWS_MAX,
    Cell,
    Choice,
    PageSection,
    PageView,
    Query,
    age_text,
    ago,
    chosen_of,
    cluster_choice,
    columns,
    number,
    rows_each,
    table,
)
from stilltide.pipeline.core.status.asks import EndedAsk, EndedTxn, EndedTxns
from stilltide.pipeline.core.status.findings import deciding_command, ending_command
from stilltide.pipeline.core.status.values import (
    TIME_OUT,
    Aged,
    ClusterSeen,
    OldestTransaction,
    ReaderHold,
    SystemStatus,
)

NAME = TRANSACTIONS
NATIVE = "native"
PARAMS = ("cluster", "text", "state", "sort", "txn")

USUAL = "usual"
_STATES = ("open", "prepared", "committing", "aborting")
_OUTCOMES = ("committed", "aborted", "mixed")
_SORTS = (USUAL, "oldest first", "newest first", "client", "most partitions")
_STEPS = columns("step", "when", "ago#", "what is known")
_PLACES = columns("partition", "readers wait at#", "offsets behind#")
_NONE_PASSES = "No transaction passes the filter."

_HOLDS = columns("readers wait at", "for the transaction", "client", "since#", "offsets behind#")
_UNENDED = columns(
    "transaction", "client", "coordinator#", "open for#", "partitions#", "state", "ends"
)
_ENDED = columns("transaction", "outcome", "ended#", "records#", "partitions")
_OUTCOME_KINDS = {"committed": "good", "aborted": "idle"}
_PARTITIONS_SHOWN = 3
_KINDS = {"OPEN": "idle", "PREPARED": "warn", "COMMITTING": "good", "ABORTING": "warn"}


_END = {
    "PREPARED": "once it is decided",
    "COMMITTING": "once its markers are written",
    "ABORTING": "once its markers are written",
}
"""When a transaction ends; an open one at its time-out at the latest."""


def transactions_asks(status: SystemStatus, _query: object) -> tuple[EndedAsk, ...]:
    """What the page shows beyond the common state; nothing of clusters that are away."""
    return tuple(EndedAsk(cluster.name) for cluster in status.clusters if not cluster.away)


def transactions(view: PageView) -> tuple[PageSection, ...]:
    """The filter; readers that wait, transactions by age, then ended ones, for each cluster."""
    status, query, state = view.status, view.query, view.query.get("state", ANY)
    sections = [_filter(status, query)]
    clusters = chosen_of(status, query)
    rows_max = rows_each(clusters)
    for cluster in clusters:
        ended = view.answers.get(EndedAsk(cluster.name), Aged())
        if "txn" in query:
            sections.append(_life(cluster, query["txn"], ended, status.now_ms))
            continue
        if state == ANY:
            if not _is_filtered(query):
                sections.append(half_hour(view, cluster, charts.TRANSACTIONS))
            sections.append(_waiting(cluster, query, status.now_ms))
        if state not in _OUTCOMES:
            sections.append(_unended(cluster, query, status.now_ms, rows_max))
        if state not in _STATES:
            sections.append(_ended(cluster, ended, query, status.now_ms, rows_max))
    return tuple(sections)


def _filter(status: SystemStatus, query: Query) -> PageSection:
    chosen = any(query.get(name, ANY) not in {ANY, USUAL} for name in PARAMS)
    return PageSection(
        "Which transactions",
        path=NAME,
        choices=(
            Choice("text", "Transaction, client or partition", query.get("text", "")),
            Choice("state", "State", query.get("state", ANY), (ANY, *_STATES, *_OUTCOMES)),
            cluster_choice(status, query),
            Choice("sort", "Order", query.get("sort", USUAL), _SORTS),
        ),
        links=(Cell("all transactions", href=NAME),) if chosen else (),
    )


def _life(cluster: ClusterSeen, txn: str, aged: Aged[EndedTxns], now_ms: int) -> PageSection:
    """What is known of one transaction, as steps in time, and its partitions."""
    known = cluster.transactions.value
    listed = () if known is None else known.listed
    ended = () if aged.value is None else aged.value.ended
    unended = next((shown for shown in listed if shown.txn == txn), None)
    marked = next((shown for shown in ended if str(shown.txn) == txn), None)
    by = "" if known is None else known.aborted_by.get(txn, "")
    reason = "" if known is None else known.reasons.get(txn, "")
    steps: list[tuple[Cell, ...]] = []
    if unended is not None:
        steps += _steps(unended, cluster, reason, now_ms)
    if marked is not None:
        records = "" if marked.records is None else f"{marked.records:,} records"
        outcome = _outcome(marked, by, reason)
        note = "; ".join(filter(None, (records, outcome.note)))
        steps.append(
            _step("ended", marked.ended_ms, Cell(outcome.text, outcome.kind, note), now_ms)
        )
    empty = ""
    if not re.fullmatch("[0-9]{1,9}:[0-9]{1,18}", txn):
        empty = "No transaction has this id: an id is COORDINATOR:SEQUENCE, for example 0:17."
    elif known is not None and aged.value is not None:
        empty = (
            f"Neither among the oldest {len(listed)} that have not ended, nor among the last"
            f" {len(ended)} that ended: `stilltide txn describe {txn}` asks its coordinator."
        )
    return PageSection(
        f"Transaction {txn} on {cluster.name}",
        note="A transaction is opened, registers partitions, may be prepared, is decided, and ends"
        " with its first marker. When it was opened is known until it ends.",
        age=age_text(cluster.transactions if marked is None else aged, now_ms),
        problem=cluster.transactions.problem or aged.problem or cluster.brokers.problem,
        hint=cluster.transactions.hint or aged.hint or cluster.brokers.hint,
        empty=empty,
        tables=(
            *table(f"Life of transaction {txn}", _STEPS, steps),
            *table(f"Partitions of transaction {txn}", _PLACES, _places(cluster, txn, marked)),
        ),
    )


def _step(name: str, at_ms: int | None, what: Cell, now_ms: int) -> tuple[Cell, ...]:
    when = Cell("not kept", "soft") if at_ms is None else written_at(at_ms)
    return Cell(name), when, Cell(ago(at_ms, now_ms), "num"), what


def _steps(
    unended: OldestTransaction, cluster: ClusterSeen, reason: str, now_ms: int
) -> list[tuple[Cell, ...]]:
    """The steps of a transaction that has not ended."""
    count = unended.partition_count
    steps = [
        _step("opened", unended.opened_ms, client_cell(cluster.name, unended.client), now_ms),
        _step(
            "registered",
            None,
            Cell(
                f"{count:,} partition{'s' * (count != 1)}",
                note=f"`stilltide txn describe {unended.txn}` names them",
            ),
            now_ms,
        ),
    ]
    if unended.prepared_ms is not None:
        decider = f"decider {unended.decider}" if unended.decider else "no decider"
        steps.append(_step("prepared", unended.prepared_ms, Cell(decider), now_ms))
    if unended.state in {"COMMITTING", "ABORTING"}:
        note = reason or (f"by {unended.aborted_by}" if unended.aborted_by else "")
        decided = Cell(unended.state.lower(), _KINDS[unended.state], note=note)
        steps.append(_step("decided", None, decided, now_ms))
    ends = _transaction(unended, now_ms, cluster)[-1]
    steps.append((Cell("ends"), Cell("not yet", "soft"), Cell(NOTHING, "num"), ends))
    return steps


def _places(cluster: ClusterSeen, txn: str, ended: EndedTxn | None) -> list[tuple[Cell, ...]]:
    """The partitions that are known, and where readers wait there for the transaction."""
    holds = {hold.data: hold for hold in cluster.holds.value or () if hold.holder == txn}
    rows: list[tuple[Cell, ...]] = []
    for data in sorted({*holds, *(() if ended is None else ended.partitions)}):
        hold = holds.get(data)
        none = Cell(NOTHING, "num")
        rows.append(
            (
                partition_cell(cluster.name, data),
                none if hold is None else number(hold.offset),
                none if hold is None else number(hold.behind),
            )
        )
    return rows


def _passes(query: Query, state: str, *texts: str) -> bool:
    """Whether the filter lets a transaction of this state and with these texts pass."""
    text = query.get("text", "").strip().casefold()
    return query.get("state", ANY) in {ANY, state} and any(
        text in shown.casefold() for shown in texts
    )


def _waiting(cluster: ClusterSeen, query: Query, now_ms: int) -> PageSection:
    rows = [
        _hold(hold, cluster, now_ms)
        for hold in cluster.holds.value or ()
        if _passes(query, ANY, hold.holder, hold.client, str(hold.data))
    ]
    return PageSection(
        f"Readers that wait on {cluster.name}",
        note="A reader of committed data stops at the first record of a transaction that has not"
        " ended.",
        age=age_text(cluster.holds, now_ms),
        problem=cluster.holds.problem or cluster.brokers.problem,
        hint=cluster.holds.hint or cluster.brokers.hint,
        empty="" if cluster.holds.value is None else _nothing("No reader waits.", query),
        tables=table(f"Readers that wait on {cluster.name}", _HOLDS, rows),
    )


def _nothing(text: str, query: Query) -> str:
    return _NONE_PASSES if _is_filtered(query) else text


def _is_filtered(query: Query) -> bool:
    return bool(query.get("text")) or query.get("state", ANY) != ANY


def _hold(hold: ReaderHold, cluster: ClusterSeen, now_ms: int) -> tuple[Cell, ...]:
    client = Cell("native", "soft") if hold.native else client_cell(cluster.name, hold.client)
    if hold.hanging:
        client = Cell("native", "soft", note="hangs: no coordinator will end it")
    return (
        partition_cell(
            cluster.name, hold.data, hold.offset, command=ending_command(hold, cluster.name)
        ),
        Cell(hold.holder, "bad" if hold.hanging else "id", href=NATIVE)
        if hold.native
        else txn_cell(cluster.name, hold.holder),
        client,
        Cell(ago(hold.since_ms, now_ms), "num"),
        number(hold.behind),
    )


def _unended(cluster: ClusterSeen, query: Query, now_ms: int, rows_max: int) -> PageSection:
    transactions = cluster.transactions.value
    listed = () if transactions is None else transactions.listed
    total = 0 if transactions is None else _total(cluster)
    silent = ", ".join(map(str, transactions.silent)) if transactions is not None else ""
    note = f"Coordinators that did not answer, and are not counted: {silent}." if silent else ""
    passed = _ordered(
        [txn for txn in listed if _passes(query, txn.state.lower(), txn.txn, txn.client)],
        query,
    )
    if _is_filtered(query):
        if total > len(listed):
            note = f"Searched are the oldest {len(listed):,} of {total:,}. {note}".strip()
        total = len(passed)
    return PageSection(
        f"Transactions on {cluster.name} that have not ended",
        note=note,
        age=age_text(cluster.transactions, now_ms),
        problem=cluster.transactions.problem or cluster.brokers.problem,
        hint=cluster.transactions.hint or cluster.brokers.hint,
        empty="" if transactions is None else _nothing("Every transaction has ended.", query),
        tables=table(
            f"Transactions on {cluster.name}",
            _UNENDED,
            [_transaction(txn, now_ms, cluster) for txn in passed],
            total,
            _elsewhere(rows_max),
            rows_max=rows_max,
        ),
    )


def _elsewhere(rows_max: int) -> str:
    """Where the transactions are that are left out; empty: where it is usual."""
    return "choose one cluster, or search" if rows_max < ROWS_MAX else ""


def _ordered(listed: Sequence[OldestTransaction], query: Query) -> list[OldestTransaction]:
    """The order that the viewer has chosen; the usual one: the oldest first, as they come."""
    by_age = sorted(listed, key=lambda txn: txn.opened_ms)
    match query.get("sort"):
        case "newest first":
            return by_age[::-1]
        case "client":
            return sorted(by_age, key=lambda txn: txn.client)
        case "most partitions":
            return sorted(by_age, key=lambda txn: -txn.partition_count)
        case _:
            return by_age


def _ended(
    cluster: ClusterSeen, aged: Aged[EndedTxns], query: Query, now_ms: int, rows_max: int
) -> PageSection:
    ended = aged.value.ended if aged.value is not None else ()
    known = cluster.transactions.value
    by = known.aborted_by if known is not None else {}
    reasons = known.reasons if known is not None else {}
    counts = Counter(it.outcome for it in ended)
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    note = f"Of the last {len(ended)}: {outcomes}. " if ended else ""
    passed = [
        txn for txn in ended if _passes(query, txn.outcome, str(txn.txn), *map(str, txn.partitions))
    ]
    if query.get("sort") == "oldest first":
        passed.reverse()
    elif query.get("sort") == "most partitions":
        passed.sort(key=lambda txn: -len(txn.partitions))
    return PageSection(
        f"Transactions on {cluster.name} that ended last",
        note=f"{note}Who has aborted a transaction is known of the last ones of each coordinator."
        " `stilltide txn history` shows more.",
        age=age_text(aged, now_ms),
        problem=aged.problem or cluster.brokers.problem,
        hint=aged.hint or cluster.brokers.hint,
        empty=""
        if aged.value is None
        else _nothing("No marker of an ended transaction is kept.", query),
        tables=table(
            f"Transactions on {cluster.name} that ended last",
            _ENDED,
            [_ended_row(txn, cluster, now_ms, by, reasons) for txn in passed],
            elsewhere=_elsewhere(rows_max),
            rows_max=rows_max,
        ),
    )


def _ended_row(
    ended: EndedTxn,
    cluster: ClusterSeen,
    now_ms: int,
    by: Mapping[str, str],
    reasons: Mapping[str, str],
) -> tuple[Cell, ...]:
    shown = (partition_cell(cluster.name, data) for data in ended.partitions[:_PARTITIONS_SHOWN])
    more = len(ended.partitions) - _PARTITIONS_SHOWN
    return (
        txn_cell(cluster.name, str(ended.txn)),
        _outcome(ended, by.get(str(ended.txn), ""), reasons.get(str(ended.txn), "")),
        Cell(ago(ended.ended_ms, now_ms), "num"),
        Cell(NOTHING, "num") if ended.records is None else number(ended.records),
        Cell("", note=f"and {more} more" if more > 0 else "", parts=tuple(shown)),
    )


def _outcome(ended: EndedTxn, by: str, reason: str) -> Cell:
    """How a transaction ended; by whom, and why, if that is known."""
    if ended.outcome == "aborted" and by == TIME_OUT:
        return Cell("timed out", "warn")
    return Cell(
        ended.outcome,
        _OUTCOME_KINDS.get(ended.outcome, "bad"),
        note=reason or (f"by {by}" if ended.outcome == "aborted" and by else ""),
    )


def _total(cluster: ClusterSeen) -> int:
    transactions = cluster.transactions.value
    assert transactions is not None, "asked only for transactions that were read"
    undecided = transactions.open_count + transactions.prepared_count
    return undecided + transactions.committing_count + transactions.aborting_count


def _note(transaction: OldestTransaction, now_ms: int) -> str:
    if transaction.state == "PREPARED":
        decider = f", decider {transaction.decider}" if transaction.decider else ""
        return f"for {ago(transaction.prepared_ms, now_ms)}{decider}"
    return f"by {transaction.aborted_by}" if transaction.aborted_by else ""


def _deciding(transaction: OldestTransaction, cluster: str) -> str:
    """The command with which an operator decides how a prepared transaction ends."""
    return deciding_command(transaction.txn, cluster) if transaction.state == "PREPARED" else ""


def _transaction(
    transaction: OldestTransaction, now_ms: int, cluster: ClusterSeen
) -> tuple[Cell, ...]:
    left_ms = transaction.opened_ms + transaction.timeout_ms - now_ms
    ends = f"by time-out in {ago(now_ms - left_ms, now_ms)}" if left_ms > 0 else "by time-out, due"
    return (
        txn_cell(cluster.name, transaction.txn),
        client_cell(cluster.name, transaction.client),
        Cell(transaction.txn.partition(":")[0], "num"),
        Cell(ago(transaction.opened_ms, now_ms), "num"),
        number(transaction.partition_count),
        Cell(
            transaction.state.lower(),
            _KINDS.get(transaction.state, "idle"),
            note=_note(transaction, now_ms),
        ),
        Cell(_END.get(transaction.state, ends), command=_deciding(transaction, cluster.name)),
    )
