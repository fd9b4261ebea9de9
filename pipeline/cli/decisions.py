"""`stilltide txn decisions-ddl` and `stilltide txn resolve`: databases that decide transactions.

*Source*: docs/protocols L4, L5, L6.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import Any

import click
from prometheus_client import CollectorRegistry

from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.connector import closing
from stilltide.pipeline.cli.common.asking import (
    EXIT_INCOMPLETE,
    Target,
    cluster_options,
    command_settings,
    on_stop,
    options,
    say_silent,
    target,
)
from stilltide.pipeline.cli.common.output import Row, output_option, print_rows, say
from stilltide.pipeline.cli.common.site import serving_site
from stilltide.pipeline.config.deciders import parse_deciders
from stilltide.pipeline.config.loading import load_settings
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.drivers.decisions.resolver import (
    DecisionResolver,
    Resolution,
    UnendedTransactions,
    resolvers_of,
)
from stilltide.pipeline.drivers.shared.outages import OutageGuard
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
  0  no transaction is left prepared that these databases decide; or stopped, with --follow
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
    click.option(
        "--follow", is_flag=True, help="Go on until stopped; a cluster that is away is waited for."
    ),
)
@output_option
def resolve(
    deciders: tuple[str, ...],
    after_s: float,
    output: str,
    timeout_s: float,
    *,
    follow: bool,
    **cluster: Any,
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
    if follow:
        asyncio.run(_follow(command_settings(**cluster), addresses, after_s, timeout_s))
        return 0
    resolved, left, unknown, silent = asyncio.run(
        _once(target(**cluster, timeout_s=timeout_s), addresses, after_s)
    )
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


async def _once(
    asked: Target, addresses: Mapping[str, str], after_s: float
) -> tuple[list[Resolution], dict[TxnId, str], Mapping[str, TxnId], list[int]]:
    """What was ended, what is left and why, unknown databases, and silent coordinators."""
    async with _resolvers(asked, addresses, after_s, 0) as (unended, resolvers):
        rounds = await asyncio.gather(*(resolver.once() for resolver in resolvers))
    resolved = [item for items in rounds for item in items]
    left = {txn: why for resolver in resolvers for txn, why in resolver.waiting.items()}
    return resolved, left, unended.unknown, sorted(unended.silent)


async def _follow(
    settings: Settings, addresses: Mapping[str, str], after_s: float, timeout_s: float
) -> None:
    """Resolves until SIGTERM or SIGINT; a cluster that is away is waited for, and told once."""
    connector = KafkaConnector(settings.kafka)
    own = settings.cluster, settings.bootstrap_servers, connector
    patience_s = settings.broker_away_s_max

    async def run() -> None:
        asked = Target(connector, timeout_s)
        async with _resolvers(asked, addresses, after_s, patience_s) as (_, resolvers):
            await asyncio.gather(*map(_tell, resolvers))

    async with serving_site(settings, None, CollectorRegistry(), {"broker": own}, {}):
        running = asyncio.ensure_future(run())
        on_stop(running.cancel)
        with suppress(asyncio.CancelledError):
            await running


@asynccontextmanager
async def _resolvers(
    asked: Target, addresses: Mapping[str, str], after_s: float, patience_s: float
) -> AsyncIterator[tuple[UnendedTransactions, list[DecisionResolver]]]:
    """A resolver for each database; the cluster may be away for `patience_s` at the start."""
    from stilltide.connectors.databases.table import (  # noqa: PLC0415 - of an extra
        DatabaseTable,
    )

    connector = asked.connector
    async with AsyncExitStack() as stack, closing(connector.admin()) as admin:
        tables = {name: DatabaseTable(name, address) for name, address in addresses.items()}
        for table in tables.values():
            stack.push_async_callback(table.close)

        async def connected() -> UnendedTransactions:
            cluster_id = await admin.cluster_id()
            asking = Coordinators(connector, request_timeout_s=asked.timeout_s)
            coordinators = await stack.enter_async_context(asking)
            return UnendedTransactions(coordinators, cluster_id, tables, connector.clock)

        if patience_s:
            guard = OutageGuard(admin, timeout_s=patience_s, awaits_contact=True)
            unended = await guard.call(connected)
        else:
            unended = await connected()
        yield unended, resolvers_of(unended, tables, resolve_after_ms=round(after_s * 1000))


async def _tell(resolver: DecisionResolver) -> None:
    async with aclosing(resolver.rounds()) as rounds:
        async for resolved in rounds:
            for item in resolved:
                say(f"{item.txn} is {_outcome(item)}, as {item.decider} says")


def _row(item: Resolution) -> Row:
    return {"txn": str(item.txn), "decider": item.decider, "outcome": _outcome(item)}


def _outcome(item: Resolution) -> str:
    return COMMITTED if item.committed else ABORTED
