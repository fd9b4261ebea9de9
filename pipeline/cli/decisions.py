"""`stilltide txn decisions-ddl` and `stilltide txn resolve`: databases that decide transactions.

*Source*: docs/protocols L4, L5, L6.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import click

from stilltide.connectors.ports.connector import closing
from stilltide.pipeline.cli.common.asking import (
    EXIT_INCOMPLETE,
    Target,
    cluster_options,
    options,
    say_silent,
    target,
)
from stilltide.pipeline.cli.common.output import Row, output_option, print_rows, say
from stilltide.pipeline.config.deciders import parse_deciders
from stilltide.pipeline.config.loading import load_settings
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.drivers.decisions.resolver import (
    DecisionResolver,
    Resolution,
    UnendedTransactions,
    resolvers_of,
)
from stilltide.pipeline.extras import require_module
from stilltide.schemas.decisions import ABORTED, COMMITTED, DDL
from stilltide.schemas.values import TxnId

EXIT_PREPARED = 3


@click.command(
    "decisions-ddl",
    epilog="""\b
Examples:
  stilltide txn decisions-ddl --dialect postgresql | psql orders
  stilltide txn decisions-ddl --dialect sqlite | sqlite3 orders.sqlite
""",
)
@click.option("--dialect", type=click.Choice(sorted(DDL)), required=True, help="The database's.")
def decisions_ddl(dialect: str) -> None:
    """Print the statements that make the table `stilltide_decisions`.

    The table belongs into each database whose rows decide about transactions. Applications and
    resolvers need SELECT, INSERT and DELETE on it.
    """
    for statement in DDL[dialect]:
        print(f"{statement};")


@click.command(
    epilog="""\b
Exit codes:
  0  no transaction is left prepared that these databases decide
  1  the command failed; the error names the next step
  3  some transactions stay prepared: their database is away, or has not decided yet
  4  some coordinators did not answer; the output is from the others

\b
Examples:
  stilltide txn resolve --decider orders-db=postgresql://stilltide@db/orders
  stilltide txn resolve --decider orders-db=sqlite:////var/lib/orders.sqlite --follow
"""
)
@options(
    cluster_options,
    click.option(
        "--decider",
        "deciders",
        multiple=True,
        metavar="NAME=URL",
        help="Name and address of a database; may be repeated.  [default: STILLTIDE_DECIDERS]",
    ),
    click.option(
        "--after-s",
        type=click.FloatRange(0),
        default=5.0,
        show_default=True,
        help="How long a prepared transaction is left to its client.",
    ),
    click.option("--follow", is_flag=True, help="Go on until stopped."),
)
@output_option
def resolve(
    deciders: tuple[str, ...], after_s: float, output: str, *, follow: bool, **cluster: Any
) -> int:
    """End the prepared transactions that their clients have left behind.

    The database that is named in a transaction decides: the transaction commits if the database has
    committed the application's row, and aborts otherwise. Any number of these commands and of
    workers with the setting `deciders` may run at the same time.
    """
    require_module("`stilltide txn resolve`", "sqlalchemy")
    addresses = parse_deciders(" ".join(deciders) or command_deciders())
    if not addresses:
        raise click.UsageError("no database is named: give --decider NAME=URL")
    run = _resolve(target(**cluster), addresses, after_s, follow=follow)
    resolved, left, unknown, silent = asyncio.run(run)
    print_rows([_row(item) for item in resolved], output)
    for txn, why in left.items():
        say(f"{txn} stays prepared: {why}")
    for decider, txn in unknown.items():
        say(
            f"{txn} waits for the database {decider}, whose address is not given\n"
            f"  hint: --decider {decider}=URL"
        )
    say_silent(silent)
    if silent:
        return EXIT_INCOMPLETE
    return EXIT_PREPARED if left else 0


def command_deciders() -> str:
    """The setting `deciders`, in clear."""
    deciders = load_settings().deciders
    return deciders.get_secret_value() if deciders is not None else ""


async def _resolve(
    asked: Target, addresses: dict[str, str], after_s: float, *, follow: bool
) -> tuple[list[Resolution], dict[TxnId, str], dict[str, TxnId], list[int]]:
    """What was ended, what is left and why, unknown databases, and silent coordinators."""
    from stilltide.connectors.databases.table import (  # noqa: PLC0415 - of an extra
        DatabaseTable,
    )

    connector = asked.connector
    async with (
        AsyncExitStack() as stack,
        closing(connector.admin()) as admin,
        Coordinators(connector, request_timeout_s=asked.timeout_s) as coordinators,
    ):
        tables = {name: DatabaseTable(name, address) for name, address in addresses.items()}
        for table in tables.values():
            stack.push_async_callback(table.close)
        unended = UnendedTransactions(
            coordinators, await admin.cluster_id(), tables, connector.clock
        )
        resolvers = resolvers_of(unended, tables, resolve_after_ms=round(after_s * 1000))
        if follow:
            await asyncio.gather(*map(_follow, resolvers))
        rounds = await asyncio.gather(*(anext(resolver.rounds()) for resolver in resolvers))
    resolved = [item for items in rounds for item in items]
    left = {txn: why for resolver in resolvers for txn, why in resolver.waiting.items()}
    return resolved, left, unended.unknown, unended.silent


async def _follow(resolver: DecisionResolver) -> None:
    async for resolved in resolver.rounds():
        for item in resolved:
            say(f"{item.txn} is {_outcome(item)}, as {item.decider} says")


def _row(item: Resolution) -> Row:
    return {"txn": str(item.txn), "decider": item.decider, "outcome": _outcome(item)}


def _outcome(item: Resolution) -> str:
    return COMMITTED if item.committed else ABORTED
