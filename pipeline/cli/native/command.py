"""`stilltide native`: Kafka's own transactions, as its brokers see them.

*Source*: KIP-664. No worker needs to run; only `abort` and `fence` write, and only with `--yes`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.admin import LogAdmin, NativeTransactions
from stilltide.pipeline.cli.common.asking import bootstrap_option, cluster_connector
from stilltide.pipeline.cli.common.output import output_option, print_columns, print_rows, say
from stilltide.pipeline.cli.native.look import aborted_ranges, watch
from stilltide.pipeline.cli.native.rows import described_row, listed_row, open_row, producer_rows
from stilltide.pipeline.drivers.native.open_transactions import (
    abort_hanging,
    find_hanging,
    open_transactions,
)
from stilltide.pipeline.drivers.shared.named_partitions import named_partitions
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.native.transactions import TransactionState
from stilltide.schemas.values import Offset, TopicPartition

T = TypeVar("T")

EXIT_HANGING = 3

_HIDDEN = (
    "  hint: a live transaction looks the same if this user may not describe its transactional id: "
    "abort none unless\n        the user has Describe on the transactional ids of all producers"
)

CLIENT_ID = "stilltide-native"

partition_option = click.option(
    "--partition", "partitions", type=click.IntRange(0), multiple=True, help="Only this partition."
)


def look(
    bootstrap_servers: str | None, work: Callable[[NativeTransactions, LogAdmin], Awaitable[T]]
) -> T:
    """Runs `work` with the brokers' view of a cluster's native transactions."""
    connector = cluster_connector(bootstrap_servers)

    async def run() -> T:
        native, admin = connector.native_transactions(CLIENT_ID), connector.admin()
        try:
            return await work(native, admin)
        finally:
            await native.close()
            await admin.close()

    return asyncio.run(run())


@click.group()
def native() -> None:
    """See Kafka's own transactions, and end those that hang.

    Every committed reader of a partition waits at the first record of an open transaction.
    """


@native.command(
    "list",
    epilog="""\b
Examples:
  stilltide native list
  stilltide native list --state Ongoing --older-than 60 -o json
""",
)
@bootstrap_option
@click.option(
    "--state",
    "states",
    type=click.Choice([it.value for it in TransactionState], case_sensitive=False),
    multiple=True,
    help="Only transactional ids in this state; may be repeated.",
)
@click.option(
    "--older-than",
    "older_than_s",
    type=click.FloatRange(0),
    help="Only transactions open for longer than this many seconds.",
)
@output_option
def list_(
    bootstrap_servers: str | None, states: tuple[str, ...], older_than_s: float | None, output: str
) -> None:
    """List the transactional ids of all coordinators."""
    older_ms = None if older_than_s is None else round(older_than_s * 1000)
    found = look(
        bootstrap_servers,
        lambda native, _: native.list_transactions(states=states, older_than_ms=older_ms),
    )
    print_rows([listed_row(one) for one in found], output)


@native.command(
    epilog="""\b
Examples:
  stilltide native describe payments-writer
  stilltide native describe payments-writer -o json
"""
)
@click.argument("transactional_id")
@bootstrap_option
@output_option
def describe(transactional_id: str, bootstrap_servers: str | None, output: str) -> None:
    """Show a transactional id: its state, its producer, and partitions still without a marker."""
    found = look(bootstrap_servers, lambda native, _: native.describe_transaction(transactional_id))
    if found is None:
        raise _unknown(transactional_id)
    print_columns([described_row(found, SystemClock().now_ms())], output)


@native.command(
    epilog="""\b
Examples:
  stilltide native producers orders --partition 0
  stilltide native producers orders -o json
"""
)
@click.argument("topic")
@partition_option
@bootstrap_option
@output_option
def producers(
    topic: str, partitions: tuple[int, ...], bootstrap_servers: str | None, output: str
) -> None:
    """List the producers that partitions of TOPIC remember, and their open transactions."""

    async def work(native: NativeTransactions, admin: LogAdmin) -> Any:
        return await native.producers(await named_partitions(admin, topic, partitions))

    print_rows(producer_rows(look(bootstrap_servers, work), SystemClock().now_ms()), output)


@native.command(
    epilog="""\b
Exit codes:
  0  no transaction hangs
  1  the command failed; the error names the next step
  3  a transaction hangs

\b
Examples:
  stilltide native hanging orders payments
  stilltide native hanging orders --idle-for 900 -o json
"""
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "--idle-for",
    "idle_s",
    type=click.FloatRange(0),
    default=0.0,
    help="Only transactions without a write for this many seconds.",
)
@bootstrap_option
@output_option
@click.pass_context
def hanging(
    ctx: click.Context,
    topics: tuple[str, ...],
    idle_s: float,
    bootstrap_servers: str | None,
    output: str,
) -> None:
    """List the open transactions in TOPICs that no coordinator will ever end.

    Readers and the log cleaner never pass them. Each was open before and after its coordinator was
    asked, so a transaction that just ended, or just began, is never listed.

    Brokers hide the transactional ids that this user may not describe. A live transaction of such
    an id is listed, too: ask as a user with Describe on all transactional ids before you abort.
    """

    async def work(native: NativeTransactions, admin: LogAdmin) -> Any:
        asked: list[TopicPartition] = []
        for topic in sorted(set(topics)):
            asked += await named_partitions(admin, topic)
        return await open_transactions(native, asked)

    now_ms = SystemClock().now_ms()
    rows = [open_row(one, now_ms) for one in look(bootstrap_servers, work) if one.hanging]
    rows = [row for row in rows if row["idle_s"] is None or row["idle_s"] >= idle_s]
    print_rows(rows, output)
    if rows:
        say(f"{len(rows)} hanging; end one with `stilltide native abort TOPIC PARTITION OPEN_FROM`")
        say(_HIDDEN)
        ctx.exit(EXIT_HANGING)


@native.command(
    epilog="""\b
Examples:
  stilltide native abort orders 0 1742          show what would be aborted
  stilltide native abort orders 0 1742 --yes    abort it
"""
)
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0))
@click.argument("open_from", type=click.IntRange(0))
@click.option("--yes", is_flag=True, help="Do it; without it only shows what would be done.")
@bootstrap_option
@output_option
def abort(
    topic: str,
    partition: int,
    open_from: int,
    *,
    yes: bool,
    bootstrap_servers: str | None,
    output: str,
) -> None:
    """Abort the hanging transaction of a partition that begins at offset OPEN_FROM.

    Writes an ABORT marker to that partition only. Refused for a transaction that its coordinator
    will end, because a part of it would be lost; end such a transaction with `fence`. The refusal
    needs Describe on the transactional id: without it a live transaction looks as if it hung.
    """

    async def work(native: NativeTransactions, admin: LogAdmin) -> Any:
        (data,) = await named_partitions(admin, topic, [partition])
        end = abort_hanging if yes else find_hanging
        return await end(native, data, Offset(open_from))

    one = look(bootstrap_servers, work)
    print_rows([open_row(one, SystemClock().now_ms())], output)
    say("aborted" if yes else "not aborted yet; to abort the transaction, add --yes")


@native.command(
    epilog="""\b
Examples:
  stilltide native fence payments-writer          show what would be aborted
  stilltide native fence payments-writer --yes    abort it
"""
)
@click.argument("transactional_id")
@click.option("--yes", is_flag=True, help="Do it; without it only shows what would be done.")
@bootstrap_option
@output_option
def fence(transactional_id: str, *, yes: bool, bootstrap_servers: str | None, output: str) -> None:
    """Abort the open transaction of a transactional id as a whole, and fence its producer.

    The effect is that of a new producer with the id: the coordinator aborts the transaction in
    every partition, and the present producer can write no more.
    """
    connector = cluster_connector(bootstrap_servers)
    found = asyncio.run(_fence(connector, transactional_id, yes=yes))
    if found is None:
        raise _unknown(transactional_id)
    print_columns([described_row(found, SystemClock().now_ms())], output)
    say("fenced" if yes else "not fenced yet; to fence the producer, add --yes")


async def _fence(connector: KafkaConnector, transactional_id: str, *, yes: bool) -> Any:
    """The coordinator's answer, after the fence if there is one; None for an unknown id."""
    native = connector.native_transactions(CLIENT_ID)
    try:
        found = await native.describe_transaction(transactional_id)
        if found is None or not yes:
            return found
        writer = connector.transactional_writer(transactional_id)
        try:
            await writer.fence()
        finally:
            await writer.close()
        return await native.describe_transaction(transactional_id)
    finally:
        await native.close()


def _unknown(transactional_id: str) -> RefusedError:
    return RefusedError(
        f"no coordinator knows the transactional id {transactional_id}",
        hint="`stilltide native list` shows the known ids; an id that was not used for 7 days is "
        "forgotten",
    )


for command in (aborted_ranges, watch):
    native.add_command(command)
