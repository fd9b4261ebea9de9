"""`stilltide produce` and `stilltide consume`: records of transactions from and to a shell.

*Source*: docs/protocols C, D. `produce` needs a running worker; `consume` only reads.

*Invariants*: all lines of `produce` are one transaction, so a command that fails, or is stopped,
leaves nothing that a reader sees. `consume` prints committed records alone, and commits the
position of a group only after the records were printed.
"""

import asyncio
import base64
import json
import secrets
import sys
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, NamedTuple

import click

from stilltide.pipeline.cli.common.asking import (
    Target,
    bootstrap_option,
    cluster_connector,
    cluster_options,
    on_stop,
    target,
)
from stilltide.pipeline.cli.common.output import output_option, print_rows, say
from stilltide.pipeline.client.subscription import Message, Subscription
from stilltide.pipeline.client.transaction import Transaction
from stilltide.pipeline.client.transaction_client import TransactionClient
from stilltide.pipeline.core.coordinator.client_transaction import outcome_unknown
from stilltide.pipeline.errors import UsageError
from stilltide.schemas.headers import TXN, Headers
from stilltide.schemas.printable import printable

_READ_BYTES = 1024 * 1024
"""Bytes of lines that are sent together; the transaction opens with the first of them."""

_PARTS_AHEAD = 2
"""Parts of so many bytes that are read before they are sent."""


def _headers(
    _ctx: click.Context, _param: click.Parameter, texts: Sequence[str]
) -> list[tuple[str, bytes]]:
    headers: list[tuple[str, bytes]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE: --header source=shell")
        headers.append((name, value.encode()))
    return headers


class _Input(click.File):
    """A file, or standard input, if the process has one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The open file."""
        if value == "-" and sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]
            self.fail("standard input is closed; name a file, or open it: < lines.txt", param, ctx)
        return super().convert(value, param, ctx)


class LineFormat(NamedTuple):
    """How each line becomes a record."""

    topic: str
    partition: int | None
    headers: Headers
    separator: bytes | None

    async def send(self, txn: Transaction, lines: Sequence[bytes], first: int) -> None:
        """Sends lines; `first` is the number of the first of them, from 1 on."""
        for number, line in enumerate(lines, first):
            key, value = None, line.removesuffix(b"\n").removesuffix(b"\r")
            if self.separator is not None:
                key, end, value = value.partition(self.separator)
                if not end:
                    raise UsageError(
                        f"line {number} has no key: it does not hold {self.separator.decode()!r}",
                        detail="nothing was written: all lines are one transaction",
                        hint="correct the line, or leave --key-separator out",
                    )
            await txn.send(
                self.topic, value, key=key, headers=self.headers, partition=self.partition
            )


@click.command(
    epilog="""\b
Exit codes:
  0  the records are committed
  1  the command failed; no record is visible, unless the error says otherwise

\b
Examples:
  echo hello | stilltide produce orders
  stilltide produce orders orders.txt --key-separator ':'
  jq -c '.[]' orders.json | stilltide produce orders --header source=shell -o json
"""
)
@click.argument("topic")
@click.argument("file", type=_Input("rb"), default="-")
@click.option(
    "--key-separator",
    metavar="TEXT",
    help="What ends the key in each line, such as ':'.  [default: records have no key]",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_headers,
    help="A header of all records; repeatable.",
)
@click.option("--partition", type=click.IntRange(0), help="Partition of all records.")
@click.option(
    "--transaction-timeout-s",
    type=click.FloatRange(0.001),
    default=60.0,
    show_default=True,
    help="Time after which the transaction is aborted.",
)
@cluster_options
@output_option
def produce(
    *,
    topic: str,
    file: BinaryIO,
    key_separator: str | None,
    headers: list[tuple[str, bytes]],
    partition: int | None,
    transaction_timeout_s: float,
    output: str,
    **cluster: Any,
) -> None:
    """Write the lines of FILE, or of standard input, to TOPIC as one transaction.

    Each line is a record. Readers see all of them once the input has ended, or none: a command that
    fails, or is stopped by SIGINT or SIGTERM before the commit was asked for, aborts.
    """
    if key_separator == "":
        raise click.BadParameter("it is empty", param_hint="--key-separator")
    separator = None if key_separator is None else key_separator.encode()
    form = LineFormat(topic, partition, headers, separator)
    try:
        row = asyncio.run(_produced(target(**cluster), form, file, transaction_timeout_s))
    except asyncio.CancelledError:
        say("aborted: no record is visible")
        raise click.Abort from None
    if row is None:
        say("the input is empty: nothing was written")
    else:
        print_rows([row], output)


async def _produced(
    asked: Target, form: LineFormat, file: BinaryIO, timeout_s: float
) -> Mapping[str, Any] | None:
    task = asyncio.current_task()
    assert task is not None
    on_stop(task.cancel)
    async with TransactionClient(
        connector=asked.connector,
        name="stilltide-produce",
        transaction_timeout_s=timeout_s,
        request_timeout_s=asked.timeout_s,
    ) as client:
        return await write_lines(client.transaction(), form, file)


async def write_lines(
    txn: Transaction, form: LineFormat, file: BinaryIO
) -> Mapping[str, Any] | None:
    """Writes the lines of a file in a transaction, and commits it.

    Returns the row that tells what was committed; None: the file is empty. A call that is cancelled
    returns the row as well if the transaction is known to have committed.

    Raises:
        CancelledError: the call was cancelled, and no record becomes visible.
        OutcomeUnknownError: it was cancelled after the commit was asked for, before the answer.
        StilltideError: as `Transaction.send` and `Transaction.commit` raise.
    """
    count = 0
    try:
        async with txn:
            async for lines in _lines(file):
                await form.send(txn, lines, count + 1)
                count += len(lines)
            if not count:
                return None
            await txn.commit(wait_visible=True)
    except asyncio.CancelledError:
        if txn.state == "unknown":
            why = "the command was stopped before the answer"
            raise outcome_unknown(txn.id, why) from None
        if txn.state != "committed":
            raise
    return {
        "topic": form.topic,
        "transaction": str(txn.id),
        "state": txn.state,
        "records": count,
    }


async def _lines(file: BinaryIO) -> AsyncIterator[list[bytes]]:
    """The lines of a file, many at a time.

    They are read on a daemon thread: the end of a command does not wait for a person's next line.
    """
    loop = asyncio.get_running_loop()
    parts: asyncio.Queue[list[bytes] | Exception] = asyncio.Queue()
    room = threading.Semaphore(_PARTS_AHEAD)

    def read() -> None:
        part: list[bytes] | Exception = []
        while True:
            try:
                part = file.readlines(_READ_BYTES)
            except Exception as error:  # noqa: BLE001 - raised where the lines are taken
                part = error
            room.acquire()
            try:
                loop.call_soon_threadsafe(parts.put_nowait, part)
            except RuntimeError:  # the loop has ended
                return
            if not part or isinstance(part, Exception):
                return

    threading.Thread(target=read, name="stilltide-lines", daemon=True).start()
    while part := await parts.get():
        if isinstance(part, Exception):
            raise part
        room.release()
        yield part


_COMMIT_S = 1.0
"""Longest time from a record's print to the commit of its position."""


@click.command(
    epilog="""\b
Exit codes:
  0  --max records were printed, or stopped by SIGINT or SIGTERM
  1  the command failed; the error names the next step

\b
Examples:
  stilltide consume orders --from-beginning --max 10
  stilltide consume orders payments -o json | jq .value
  stilltide consume 'orders-*' --group billing --key-separator ': '
"""
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "--group", help="Read as a member of this consumer group.  [default: a group for this command]"
)
@click.option(
    "--from-beginning",
    is_flag=True,
    help="Begin at the log start, if the group has no position.  [default: at the log end]",
)
@click.option("--max", "records_max", type=click.IntRange(1), help="End after so many records.")
@click.option("--key-separator", metavar="TEXT", help="Print keys, with this text after each.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Values, a line each, or a JSON object for each record.",
)
@bootstrap_option
def consume(
    *,
    topics: tuple[str, ...],
    group: str | None,
    from_beginning: bool,
    records_max: int | None,
    key_separator: str | None,
    output: str,
    bootstrap_servers: str | None,
) -> None:
    """Print the committed records of TOPICs, names or patterns, until stopped.

    A record of a transaction is printed once the transaction has committed, and never if it was
    aborted. Control characters are printed as escapes; bytes that are no UTF-8 as base64 in JSON.
    """
    connector = cluster_connector(bootstrap_servers)
    subscription = Subscription(
        topics,
        group=group or connector.own_id(f"consume-{secrets.token_hex(8)}"),
        connector=connector,
        client_id="stilltide-consume",
        from_start=from_beginning,
    )
    printing = _Printing(output, key_separator, records_max, commits=group is not None)
    asyncio.run(_consumed(subscription, printing))
    say(f"{printing.count} record{'s' * (printing.count != 1)}")


class _Printing:
    """Prints the records of a subscription.

    Args:
        output: `text` or `json`.
        separator: what stands between key and value; None: no keys.
        records_max: number of records after which to end; None: never.
        commits: whether positions are committed.

    Attributes:
        count: records that were printed.
    """

    def __init__(
        self, output: str, separator: str | None, records_max: int | None, *, commits: bool
    ) -> None:
        self.count = 0
        self._line = _document if output == "json" else _Text(separator).line
        self._records_max = records_max
        self._commits = commits
        self._due_s = 0.0

    async def run(self, subscription: Subscription) -> None:
        """Prints until the last record, or until cancelled."""
        now = asyncio.get_running_loop().time
        async for message in subscription:
            print(self._line(message), flush=True)
            self.count += 1
            if self.count == self._records_max:
                return
            if self._commits and now() >= self._due_s:
                await subscription.commit()
                self._due_s = now() + _COMMIT_S

    async def end(self, subscription: Subscription) -> None:
        """Commits what was printed last."""
        if self._commits:
            await subscription.commit()


async def _consumed(subscription: Subscription, printing: _Printing) -> None:
    """Prints until the last record, or until SIGINT or SIGTERM."""

    async def work() -> None:
        async with subscription:
            with suppress(asyncio.CancelledError):  # the command was stopped
                await printing.run(subscription)
            await printing.end(subscription)

    working = asyncio.create_task(work())
    on_stop(working.cancel)
    with suppress(asyncio.CancelledError):
        await working


class _Text:
    """The line of a record: its value, or key and value."""

    def __init__(self, separator: str | None) -> None:
        self._separator = separator

    def line(self, message: Message) -> str:
        """The line."""
        value = _shown(message.value)
        if self._separator is None:
            return value
        return f"{_shown(message.key)}{self._separator}{value}"


def _shown(data: bytes | None) -> str:
    return "null" if data is None else printable(data.decode(errors="backslashreplace"))


def _document(message: Message) -> str:
    txn = message.txn
    return json.dumps(
        {
            "topic": message.topic,
            "partition": message.partition,
            "offset": message.offset,
            "key": _plain(message.key),
            "value": _plain(message.value),
            "headers": [
                [name, _plain(value)] for name, value in message.headers or () if name != TXN
            ],
            "transaction": None if txn is None else str(txn),
        }
    )


def _plain(data: bytes | None) -> Any:
    """Bytes as JSON has them."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
