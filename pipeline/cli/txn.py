"""`stilltide txn`: lists and aborts transactions; tells how ended ones ended.

*Source*: docs/protocols C. Operators need to know which transaction holds readers back, and to end
it.

`stilltide txn history`: the transactions that ended last, from their markers.

*Source*: docs/protocols E9. Needs no running worker.
"""

import asyncio
import getpass
import os
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import click

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.errors import ConnectorError, FatalError
from stilltide.pipeline.cli.common.asking import (
    EXIT_CODES,
    EXIT_INCOMPLETE,
    Target,
    answered,
    ask,
    cluster_options,
    exit_code,
    target,
)
from stilltide.pipeline.cli.common.output import (
    Row,
    output_option,
    print_columns,
    print_error,
    print_rows,
    say,
    utc,
)
from stilltide.pipeline.cli.decisions import decisions_ddl, resolve
from stilltide.pipeline.core.coordinator.history import EndedTransaction
from stilltide.pipeline.drivers.coordinator.history import History, ended_transactions
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.errors import PipelineError, RefusedError
from stilltide.schemas.coordinator.transactions import (
    Abort,
    AbortCause,
    Decide,
    Describe,
    Description,
    Listed,
    ListTransactions,
    OperatorDecision,
)
from stilltide.schemas.decisions import parse_decider
from stilltide.schemas.service.envelopes import shown_client
from stilltide.schemas.values import TxnId

LAST_MAX = 100_000

REASONS_S = 3.0
"""Longest wait of `txn history` for coordinators; outcomes need none."""


@click.command(
    "history",
    epilog="""\b
Exit codes:
  0  done
  1  the command failed; the error names the next step
  4  fewer than --last transactions are known; the error names the markers that are kept

\b
Examples:
  stilltide txn history
  stilltide txn history --last 20 --state aborted
  stilltide txn history -o json | jq '.[] | select(.records > 1000)'
""",
)
@click.option(
    "--last",
    type=click.IntRange(1, LAST_MAX),
    default=100,
    show_default=True,
    help="Most transactions.",
)
@click.option(
    "--state",
    type=click.Choice(["committed", "aborted", "mixed"]),
    help="Only transactions that ended like that; mixed is damage: both outcomes.",
)
@cluster_options
@output_option
def history_command(last: int, state: str | None, output: str, **cluster: Any) -> int:
    """List the transactions that ended last, the newest first.

    Workers keep the outcome of each transaction for a day (`marker_retention_ms`). `records` is the
    number of records that a committed transaction promised; an abort names none. What operators and
    resolvers have decided of prepared transactions has a reason; a coordinator that serves tells
    its last 100 ones.
    """
    history, decisions = asyncio.run(_history(target(**cluster), last, state))
    details = output == "json"
    rows = history_rows(history.transactions, decisions, details=details)
    empty = "no transactions that have ended are known"
    print_rows(rows, output, empty="" if history.cut else empty)
    if history.cut is None:
        return 0
    print_error(history.cut)
    return EXIT_INCOMPLETE


async def _history(
    asked: Target, last: int, state: str | None
) -> tuple[History, Mapping[TxnId, OperatorDecision]]:
    """What markers tell, and the reasons that coordinators tell meanwhile, if they serve."""
    return await asyncio.gather(
        ended_transactions(asked.connector, last, state, say), _decisions(asked)
    )


async def _decisions(asked: Target) -> Mapping[TxnId, OperatorDecision]:
    """What operators and resolvers have decided, as far as coordinators answer."""
    timeout_s = min(asked.timeout_s, REASONS_S)
    try:
        async with Coordinators(asked.connector, request_timeout_s=timeout_s) as coordinators:
            answers = await coordinators.ask_each(ListTransactions())
    except FatalError:
        return {}  # without topics of Stilltide, of which the question for outcomes tells
    except (ConnectorError, PipelineError) as error:
        say(f"reasons of decisions are not known: {error.primary}")
        return {}
    if silent := [number for number, answer in answers.items() if answer is None]:
        say(f"reasons of decisions are not known of coordinators {', '.join(map(str, silent))}")
    return {
        TxnId(number, decision.sequence): decision
        for number, listed in answers.items()
        if isinstance(listed, Listed)
        for decision in listed.decisions
    }


def _decision_row(decision: OperatorDecision | None) -> Row:
    return {
        "decided_by": None if decision is None else decision.decided_by or "operator",
        "decided_at": None if decision is None else utc(decision.decided_at_ms),
        "reason": None if decision is None else decision.reason,
    }


def history_rows(
    transactions: Sequence[EndedTransaction],
    decisions: Mapping[TxnId, OperatorDecision],
    *,
    details: bool,
) -> list[Row]:
    """A row for each transaction; with `details` each partition is an object.

    Reasons have columns if there are any; with `details` always.
    """
    reasons = details or any(transaction.txn in decisions for transaction in transactions)
    return [
        {
            "txn": str(transaction.txn),
            "outcome": transaction.outcome,
            "ended_at": utc(transaction.ended_ms),
            "records": transaction.record_count,
            "partitions": [
                {
                    **data._asdict(),
                    "outcome": "committed" if marker.committed else "aborted",
                    "start_offset": marker.start_offset,
                    "end_offset": marker.end_offset if marker.committed else None,
                    "records": marker.record_count if marker.committed else None,
                }
                if details
                else str(data)
                for data, marker in sorted(transaction.markers.items())
            ],
            **(_decision_row(decisions.get(transaction.txn)) if reasons else {}),
        }
        for transaction in transactions
    ]


STATES = ("OPEN", "PREPARED", "COMMITTING", "ABORTING")
ENDED = "ENDED"


class _TxnIdType(click.ParamType):
    name = "coordinator:sequence"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> TxnId:
        """The transaction id in an argument of the command."""
        match = re.fullmatch(r"(\d+):(\d+)", value)
        if match is None:
            self.fail(f"{value!r} is not coordinator:sequence, for example 0:17", param, ctx)
        return TxnId(int(match[1]), int(match[2]))


@click.group()
def txn() -> None:
    """See and abort the transactions of a cluster."""


@txn.command(
    "list",
    epilog=EXIT_CODES
    + """
\b
Examples:
  stilltide txn list
  stilltide txn list --state open --older-than 60 -o json
  stilltide txn list --state prepared
""",
)
@cluster_options
@click.option(
    "--coordinator", type=click.IntRange(0), help="Only transactions of this coordinator."
)
@click.option(
    "--state",
    type=click.Choice(STATES, case_sensitive=False),
    help="Only transactions in this state.",
)
@click.option(
    "--older-than",
    "older_than_s",
    type=float,
    help="Only transactions opened at least this many seconds ago.",
)
@output_option
def list_(
    coordinator: int | None,
    state: str | None,
    older_than_s: float | None,
    output: str,
    **cluster: Any,
) -> int:
    """List the transactions that have not ended, by coordinator and sequence.

    `stilltide txn describe ID` shows all of one, its partitions among them. Of prepared ones,
    `decider` is who decides when their client does not. With -o json there is more: `decide` is the
    command of an operator, and readers of the partitions in `holds_up` wait until then.
    """
    return _print_transactions(
        cluster, output, coordinator=coordinator, state=state, least_age_s=older_than_s
    )


@txn.command(
    epilog=EXIT_CODES
    + """
\b
Examples:
  stilltide txn slow --over 30
  stilltide txn slow --over 30 -o json | jq -r '.[].txn'
"""
)
@cluster_options
@click.option(
    "--over",
    "over_s",
    type=float,
    required=True,
    help="Transactions opened at least this many seconds ago.",
)
@output_option
def slow(over_s: float, output: str, **cluster: Any) -> int:
    """List the transactions that have been open for long, the oldest first.

    Readers of a partition wait at the first record of such a transaction until it ends.
    """
    return _print_transactions(cluster, output, least_age_s=over_s, oldest_first=True)


@txn.command(
    epilog="""\b
Examples:
  stilltide txn describe 0:17
  stilltide txn describe 0:17 -o json
"""
)
@click.argument("txn_id", type=_TxnIdType())
@cluster_options
@output_option
def describe(txn_id: TxnId, output: str, **cluster: Any) -> None:
    """Show one transaction.

    Of a transaction that has ended, `outcome` says how; `forgotten`: it ended too long ago
    (`outcome_history`). `aborted_by` says who aborts it, or has aborted it: client, time-out,
    operator, or token (of a prepared transaction); empty: nobody, or that is forgotten. A prepared
    transaction waits for its token, for its decider, or for an operator, and has no time-out;
    once an operator or resolver has decided, `decided_by`, `decided_at` and `reason` say so.
    """

    async def work(asked: Coordinators) -> tuple[Description, OperatorDecision | None]:
        described = await _describe(asked, txn_id)
        return described, await _decision(asked, txn_id, described)

    description, decision = ask(Coordinators, target(**cluster), work)
    row = description_row(txn_id.coordinator, description, SystemClock().now_ms())
    print_columns([{**row, **(_decision_row(decision) if decision else {})}], output)


async def _decision(
    coordinators: Coordinators, txn_id: TxnId, described: Description
) -> OperatorDecision | None:
    """What an operator or resolver has decided of the transaction; None: nothing that is known."""
    if described.state in {"OPEN", "PREPARED"}:
        return None
    listed = await coordinators.ask(txn_id.coordinator, ListTransactions())
    assert isinstance(listed, Listed)
    return next((it for it in listed.decisions if it.sequence == txn_id.sequence), None)


@txn.command(
    epilog="""\b
Examples:
  stilltide txn abort 0:17          show what would be aborted
  stilltide txn abort 0:17 --yes    abort it
  stilltide txn abort --prepared 0:17 --reason "the order was not stored" --yes
"""
)
@click.argument("txn_id", type=_TxnIdType())
@cluster_options
@click.option(
    "--prepared", is_flag=True, help="The transaction is prepared; needs --reason, which is kept."
)
@click.option("--reason", help="Why a prepared transaction is aborted.")
@click.option(
    "--yes", is_flag=True, help="Abort the transaction; without --yes the command only shows it."
)
@output_option
def abort(
    txn_id: TxnId, *, prepared: bool, reason: str | None, yes: bool, output: str, **cluster: Any
) -> None:
    """Abort a transaction in place of its client; later calls of the client fail.

    Refused if the transaction is committing or has ended. A prepared transaction is aborted with
    --prepared alone: what its token belongs to may have been committed, so look there first.
    """
    if prepared != (reason is not None):
        raise click.UsageError("--prepared and --reason belong together")
    if reason is not None:
        _decide(cluster, txn_id, output, committed=False, reason=reason, yes=yes)
        return

    async def work(coordinators: Coordinators) -> Description:
        before = await _describe(coordinators, txn_id)
        if before.state not in {"OPEN", "ABORTING"}:
            prepared_only = f"`stilltide txn abort --prepared {txn_id} --reason TEXT`"
            raise RefusedError(
                f"transaction {txn_id} cannot be aborted",
                detail=f"it is {before.state}",
                hint=prepared_only if before.state == "PREPARED" else "",
            )
        if not yes:
            return before
        await coordinators.ask(txn_id.coordinator, Abort(txn_id.sequence))
        return await _describe(coordinators, txn_id)

    description = ask(Coordinators, target(**cluster), work)
    print_columns(
        [description_row(txn_id.coordinator, description, SystemClock().now_ms())], output
    )
    say(f"{txn_id} is aborted" if yes else f"{txn_id} would be aborted; do it with --yes")


@txn.command(
    epilog="""\b
Examples:
  stilltide txn commit --prepared 0:17 --reason "the order is stored"          show it
  stilltide txn commit --prepared 0:17 --reason "the order is stored" --yes    commit it
"""
)
@click.argument("txn_id", type=_TxnIdType())
@cluster_options
@click.option(
    "--prepared",
    is_flag=True,
    required=True,
    help="Only prepared transactions can be committed: what they hold is complete.",
)
@click.option("--reason", required=True, help="Why it is committed; kept by the coordinator.")
@click.option(
    "--yes", is_flag=True, help="Commit the transaction; without --yes the command only shows it."
)
@output_option
def commit(
    txn_id: TxnId, *, prepared: bool, reason: str, yes: bool, output: str, **cluster: Any
) -> None:
    """Commit a prepared transaction in place of the holder of its token.

    What its token belongs to may not have been committed, so look there first: the first decision
    stands. Refused if the transaction is not prepared, or was aborted.
    """
    assert prepared, "a required option"
    _decide(cluster, txn_id, output, committed=True, reason=reason, yes=yes)


def _decide(
    cluster: Mapping[str, Any],
    txn_id: TxnId,
    output: str,
    *,
    committed: bool,
    reason: str,
    yes: bool,
) -> None:
    """Shows a prepared transaction, and with `yes` decides how it ends (L3)."""

    async def work(coordinators: Coordinators) -> Description:
        if yes:
            decide = Decide(txn_id.sequence, committed, reason, decided_by=_who())
            await coordinators.ask(txn_id.coordinator, decide)
        described = await _describe(coordinators, txn_id)
        if not yes and described.state != "PREPARED":
            raise RefusedError(
                f"transaction {txn_id} is not prepared", detail=f"it is {described.state}"
            )
        return described

    description = ask(Coordinators, target(**cluster), work)
    print_columns(
        [description_row(txn_id.coordinator, description, SystemClock().now_ms())], output
    )
    decided = "committed" if committed else "aborted"
    say(f"{txn_id} is {decided}" if yes else f"{txn_id} would be {decided}; do it with --yes")


def _who() -> str:
    """The user and host of this process, for the log of decisions."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a user without a name, as in some containers
        return f"user {os.getuid()}@{socket.gethostname()}"


async def _describe(coordinators: Coordinators, txn_id: TxnId) -> Description:
    answer = await coordinators.ask(txn_id.coordinator, Describe(txn_id.sequence))
    assert isinstance(answer, Description)
    return answer


def _print_transactions(
    cluster: Mapping[str, Any],
    output: str,
    *,
    coordinator: int | None = None,
    state: str | None = None,
    least_age_s: float | None = None,
    oldest_first: bool = False,
) -> int:
    """Asks the coordinators, filters and prints; returns the exit code."""

    async def work(coordinators: Coordinators) -> dict[int, list[Description] | None]:
        if coordinator is None:
            return await coordinators.transactions_of_each()
        return {coordinator: await coordinators.transactions(coordinator)}

    answers = ask(Coordinators, target(**cluster), work)
    now_ms = SystemClock().now_ms()
    rows = transaction_rows(answered(answers), now_ms, state=state, least_age_s=least_age_s)
    if oldest_first:
        rows.sort(key=lambda row: -row["age_s"])
    code = exit_code(answers)
    filtered = (coordinator, state, least_age_s) != (None, None, None)
    empty = "no open transactions" + (" pass the filters" if filtered else "")
    shown = rows if output == "json" else [*map(listed_row, rows)]
    print_rows(shown, output, empty="" if code else empty)
    return code


_CLIENT_WIDTH = 16
"""Columns of a client in the table, whose rows fit a terminal of 80 columns then."""


def listed_row(row: Row) -> Row:
    """The columns of the table: a client is cut in the middle, and ages are whole seconds."""
    client = row["client"]
    if len(client) > _CLIENT_WIDTH:
        half = _CLIENT_WIDTH // 2
        client = f"{client[: half - 1]}…{client[-half:]}"
    columns = {"txn": row["txn"], "state": row["state"], "age_s": round(row["age_s"])}
    columns |= {"timeout_s": row["timeout_s"], "partitions": row["partitions"]}
    columns |= {"decider": row["decider"]} if "decider" in row else {}
    return columns | {"client": client}


def transaction_rows(
    listed: Mapping[int, Sequence[Description]],
    now_ms: int,
    *,
    state: str | None = None,
    least_age_s: float | None = None,
) -> list[Row]:
    """A row for each transaction that passes the filters; with more columns if one is prepared."""
    passing = [
        (coordinator, transaction)
        for coordinator, transactions in listed.items()
        for transaction in transactions
        if state in {None, transaction.state}
        and (least_age_s is None or _age_s(transaction, now_ms) >= least_age_s)
    ]
    prepared = any(transaction.preparation for _, transaction in passing)
    return [
        {
            "txn": str(TxnId(coordinator, transaction.sequence)),
            "state": transaction.state,
            "opened_at": utc(transaction.opened_at_ms),
            "age_s": _age_s(transaction, now_ms),
            "timeout_s": transaction.timeout_ms / 1000,
            "partitions": len(transaction.partitions),
            "subscriptions": len(transaction.subscriptions),
            "client": shown_client(transaction.client_name, transaction.client_key),
            **(_prepared_row(coordinator, transaction) if prepared else {}),
        }
        for coordinator, transaction in passing
    ]


def _prepared_row(coordinator: int, description: Description) -> Row:
    """What is known of a prepared transaction; None where it is not prepared."""
    preparation = description.preparation
    if preparation is None or description.state != "PREPARED":
        return dict.fromkeys(("prepared_at", "decider", "holds_up", "decide"))
    txn_id = TxnId(coordinator, description.sequence)
    return {
        "prepared_at": utc(preparation.prepared_at_ms),
        "decider": parse_decider(preparation.decider).name or None,
        "holds_up": [str(it.data) for it in description.partitions],
        "decide": f"stilltide txn commit|abort --prepared {txn_id} --reason TEXT",
    }


_OUTCOMES = {True: "committed", False: "aborted", None: "forgotten"}
_CAUSES = {
    AbortCause.CLIENT: "client",
    AbortCause.TIMED_OUT: "time-out",
    AbortCause.OPERATOR: "operator",
    AbortCause.TOKEN: "token",
}


def description_row(coordinator: int, description: Description, now_ms: int) -> Row:
    """Everything that a coordinator reports of a transaction."""
    known = description.state != ENDED
    preparation = description.preparation
    prepared: Row = {}
    if preparation is not None:
        prepared = {
            "prepared_at": utc(preparation.prepared_at_ms),
            "decider": parse_decider(preparation.decider).name or None,
            "decider_table": parse_decider(preparation.decider).identity or None,
        }
    return {
        "txn": str(TxnId(coordinator, description.sequence)),
        "state": description.state,
        "outcome": None if known else _OUTCOMES[description.committed],
        "aborted_by": None if description.cause is None else _CAUSES[description.cause],
        "opened_at": utc(description.opened_at_ms) if known else None,
        "age_s": _age_s(description, now_ms) if known else None,
        "timeout_s": description.timeout_ms / 1000 if known else None,
        "partitions": [f"{it.data} from {it.start_offset}" for it in description.partitions],
        "subscriptions": [str(subscription) for subscription in description.subscriptions],
        "client": shown_client(description.client_name, description.client_key) if known else None,
    } | prepared


def _age_s(description: Description, now_ms: int) -> float:
    return max(0, now_ms - description.opened_at_ms) / 1000


txn.add_command(history_command)
txn.add_command(decisions_ddl)
txn.add_command(resolve)
