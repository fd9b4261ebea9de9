"""`stilltide native`: Kafka's own transactions, as its brokers see them.

*Source*: KIP-664. No worker needs to run; only `abort` and `fence` write, and only with `--yes`.

The rows of tables and JSON about native transactions.

*Source*: KIP-664.

`stilltide native aborted-ranges` and `watch`: aborted ranges, and what readers wait for.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
from rich.console import Console

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.admin import LogAdmin, NativeTransactions
from stilltide.connectors.ports.connector import closing
from stilltide.pipeline.cli.common.asking import (
    EXIT_INCOMPLETE,
    bootstrap_option,
    cluster_connector,
)
from stilltide.pipeline.cli.common.output import (
    Row,
    output_option,
    print_columns,
    print_rows,
    say,
    utc,
)
from stilltide.pipeline.core.native.hanging import OpenNativeTransaction, is_own
from stilltide.pipeline.drivers.native.evidence import FoundRanges, indexed_ranges, ranges_in_log
from stilltide.pipeline.drivers.native.open_transactions import (
    StablePosition,
    abort_hanging,
    find_hanging,
    open_transactions,
    stable_positions,
)
from stilltide.pipeline.drivers.shared.named_partitions import named_partitions
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.native.transactions import (
    ActiveProducer,
    DescribedTransaction,
    TransactionState,
)
from stilltide.schemas.values import Offset, TopicPartition


def described_row(transaction: DescribedTransaction, now_ms: int) -> Row:
    """The row of everything that a coordinator reports of a transactional id."""
    started_ms = transaction.started_at_ms
    return {
        "transactional_id": transaction.transactional_id,
        "coordinator": transaction.coordinator,
        "state": transaction.state,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "timeout_s": transaction.timeout_ms / 1000,
        "started_at": None if started_ms is None else utc(started_ms),
        "age_s": None if started_ms is None else _since_s(started_ms, now_ms),
        "partitions": [str(data) for data in transaction.partitions],
    }


def producer_rows(
    producers: Mapping[TopicPartition, Sequence[ActiveProducer]], now_ms: int
) -> list[Row]:
    """A row for each producer of each partition."""
    return [
        {
            **data._asdict(),
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "open_from": producer.open_from,
            "last_sequence": producer.last_sequence,
            "last_write_at": utc(producer.last_timestamp_ms)
            if producer.last_timestamp_ms >= 0
            else None,
            "idle_s": _idle_s(producer, now_ms),
            "coordinator_epoch": producer.coordinator_epoch,
        }
        for data, them in sorted(producers.items())
        for producer in them
    ]


def open_row(shown: OpenNativeTransaction, now_ms: int) -> Row:
    """The row of a transaction that is open in a partition."""
    transaction = shown.transaction
    return {
        **shown.data._asdict(),
        "open_from": shown.open_from,
        "producer_id": shown.producer.producer_id,
        "producer_epoch": shown.producer.producer_epoch,
        "transactional_id": shown.transactional_id,
        "state": "hanging" if shown.hanging or transaction is None else transaction.state,
        "idle_s": None if shown.written_ms is None else _since_s(shown.written_ms, now_ms),
    }


def position_row(position: StablePosition, now_ms: int) -> Row:
    """The row of a partition: the position of committed readers, and the transaction there."""
    first = position.open[0] if position.open else None
    blocking = None if first is None else open_row(first, now_ms)
    return {
        **position.data._asdict(),
        "last_stable_offset": position.last_stable_offset,
        "high_watermark": position.high_watermark,
        "lag": max(0, position.high_watermark - position.last_stable_offset),
        "open": len(position.open),
        "held_by": blocking
        and (blocking["transactional_id"] or f"producer {blocking['producer_id']}"),
        "state": blocking and blocking["state"],
        "idle_s": blocking and blocking["idle_s"],
    }


def _idle_s(producer: ActiveProducer, now_ms: int) -> float | None:
    """Seconds since the producer's last write, by that write's timestamp."""
    return None if producer.last_timestamp_ms < 0 else _since_s(producer.last_timestamp_ms, now_ms)


def _since_s(at_ms: int, now_ms: int) -> float:
    return max(0, now_ms - at_ms) / 1000


@click.command(
    "aborted-ranges",
    epilog="""\b
Exit codes:
  0  the answer covers the whole range
  1  the command failed; the error names the next step
  4  the answer covers a part: the rest is not indexed, or not stable yet

\b
Examples:
  stilltide native aborted-ranges payments 0
  stilltide native aborted-ranges payments 0 --from 1000 --to 2000 --source log -o json
""",
)
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0))
@click.option("--from", "first", type=click.IntRange(0), help="First offset of the range.")
@click.option("--to", "until", type=click.IntRange(0), help="End of the range, exclusive.")
@click.option(
    "--source",
    type=click.Choice(["index", "log"]),
    default="index",
    show_default=True,
    help="Read the index that `stilltide index` keeps, or the log itself.",
)
@bootstrap_option
@output_option
def aborted_ranges(
    topic: str,
    partition: int,
    *,
    first: int | None,
    until: int | None,
    source: str,
    bootstrap_servers: str | None,
    output: str,
) -> int:
    """List the offset ranges of a partition in which every record is aborted."""
    known = asyncio.run(_ranges(bootstrap_servers, topic, partition, source))
    if known is None:
        print_rows([], output)
        say("unknown: the range is not indexed; run `stilltide index once`, or use --source log")
        return EXIT_INCOMPLETE
    begin = known.covered_from if first is None else first
    end = known.covered_to if until is None else until
    rows = [
        {
            "topic": topic,
            "partition": partition,
            "first": max(aborted.first, begin),
            "end": min(aborted.end, end),
        }
        for aborted in known.ranges
        if aborted.first < end and begin < aborted.end
    ]
    print_rows(rows, output, empty="no range of aborted records")
    say(f"known from {known.covered_from} to {known.covered_to}")
    if begin < known.covered_from or end > known.covered_to:
        say("unknown outside of these offsets")
        return EXIT_INCOMPLETE
    return 0


async def _ranges(
    bootstrap_servers: str | None, topic: str, partition: int, source: str
) -> FoundRanges | None:
    connector = cluster_connector(bootstrap_servers)
    async with (
        closing(connector.admin()) as admin,
        closing(connector.batch_reader("stilltide-native")) as batches,
    ):
        (data,) = await named_partitions(admin, topic, [partition])
        if source == "log":
            return await ranges_in_log(batches, admin, data)
        return await indexed_ranges(connector, admin, data)


@click.command(
    epilog="""\b
Examples:
  stilltide native watch orders payments
  stilltide native watch orders --looks 1
  stilltide native watch orders -o json | jq -c '.[] | select(.state == "hanging")'
"""
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "--every-s",
    type=click.FloatRange(0.1),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--looks", type=click.IntRange(1), help="Number of looks.  [default: until Ctrl-C]")
@bootstrap_option
@output_option
def watch(
    topics: tuple[str, ...],
    every_s: float,
    looks: int | None,
    bootstrap_servers: str | None,
    output: str,
) -> None:
    """Watch the positions of committed readers of TOPICs, and the transactions that hold them.

    JSON has a line for each look.
    """
    connector = cluster_connector(bootstrap_servers)

    async def run() -> None:
        async with (
            closing(connector.native_transactions("stilltide-native")) as native,
            closing(connector.admin()) as admin,
        ):
            number = 0
            while looks is None or number < looks:
                if number:
                    await asyncio.sleep(every_s)
                number += 1
                _show(await _look(native, admin, topics), output)

    asyncio.run(run())


async def _look(
    native: NativeTransactions, admin: LogAdmin, topics: tuple[str, ...]
) -> list[dict[str, Any]]:
    asked = [data for topic in sorted(set(topics)) for data in await named_partitions(admin, topic)]
    now_ms = SystemClock().now_ms()
    return [dict(position_row(one, now_ms)) for one in await stable_positions(native, admin, asked)]


def _show(rows: list[dict[str, Any]], output: str) -> None:
    """Prints a look, on a terminal in place of the last one."""
    if output == "json":
        print(json.dumps(rows), flush=True)
        return
    if sys.stdout.isatty():
        Console().clear()
    print_rows(rows, output)


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
        async with (
            closing(connector.native_transactions(CLIENT_ID)) as native,
            closing(connector.admin()) as admin,
        ):
            return await work(native, admin)

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
    listed = look(
        bootstrap_servers,
        lambda native, _: native.list_transactions(states=states, older_than_ms=older_ms),
    )
    rows = [
        {
            "transactional_id": txn.transactional_id,
            "producer_id": txn.producer_id,
            "state": txn.state,
        }
        for txn in listed
    ]
    print_rows(rows, output, empty="no transactional id passes the filters")


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
    described = look(
        bootstrap_servers, lambda native, _: native.describe_transaction(transactional_id)
    )
    if described is None:
        raise _unknown(transactional_id)
    print_columns([described_row(described, SystemClock().now_ms())], output)


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

    rows = producer_rows(look(bootstrap_servers, work), SystemClock().now_ms())
    print_rows(rows, output, empty="no producer is remembered")


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
def hanging(
    topics: tuple[str, ...],
    idle_s: float,
    bootstrap_servers: str | None,
    output: str,
) -> int:
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
    rows = [open_row(shown, now_ms) for shown in look(bootstrap_servers, work) if shown.hanging]
    rows = [row for row in rows if row["idle_s"] is None or row["idle_s"] >= idle_s]
    print_rows(rows, output, empty="no transaction hangs")
    if rows:
        say(f"{len(rows)} hanging; end one with `stilltide native abort TOPIC PARTITION OPEN_FROM`")
        say(_HIDDEN)
    return EXIT_HANGING if rows else 0


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

    shown = look(bootstrap_servers, work)
    print_rows([open_row(shown, SystemClock().now_ms())], output)
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
    every partition, and the present producer can write no more. An id that begins with `stilltide.`
    is of a link, publish or index, which ends its transaction itself when it runs.
    """
    connector = cluster_connector(bootstrap_servers)
    fenced = asyncio.run(_fence(connector, transactional_id, yes=yes))
    if fenced is None:
        raise _unknown(transactional_id)
    print_columns([described_row(fenced, SystemClock().now_ms())], output)
    if is_own(transactional_id) and not yes:
        say("not fenced: it is Stilltide's own, and its link, publish or index ends it")
        return
    say("fenced" if yes else "not fenced yet; to fence the producer, add --yes")


async def _fence(connector: KafkaConnector, transactional_id: str, *, yes: bool) -> Any:
    """The coordinator's answer, after the fence if there is one; None for an unknown id."""
    async with closing(connector.native_transactions(CLIENT_ID)) as native:
        described = await native.describe_transaction(transactional_id)
        if described is None or not yes:
            return described
        async with closing(connector.transactional_writer(transactional_id)) as writer:
            await writer.fence()
        return await native.describe_transaction(transactional_id)


def _unknown(transactional_id: str) -> RefusedError:
    return RefusedError(
        f"no coordinator knows the transactional id {transactional_id}",
        hint="`stilltide native list` shows the known ids; an id that was not used for 7 days is "
        "forgotten",
    )


for command in (aborted_ranges, watch):
    native.add_command(command)
