"""The verbs `batching enable|disable|reset|show` of the nouns whose records share log entries.

*Source*: PIP-160, API changes. `-o json` means the same as the PIP's answers and has keys of this
product; `-o pip160` has the keys and names that the PIP spells, its `coodinatorArray` included.

Columns of figures that the owners of all logs have.

The verb `downgrade-check` of the nouns whose records share log entries.

*Source*: PIP-160. A program from before batching cannot read a batch, so every batch must have left
the log before such a program is run again.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import click

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.ports.connector import Connector, closing
from stilltide.pipeline.cli.common.asking import (
    Target,
    answered,
    cluster_options,
    exit_code,
    exit_codes,
    target,
)
from stilltide.pipeline.cli.common.output import Row, output_option, print_rows, say
from stilltide.pipeline.drivers.buffered_log.batch_scan import BatchScan, scan_for_batches
from stilltide.pipeline.drivers.shared.dynamic_settings import DynamicSettings, write_setting
from stilltide.schemas.log_frames import LogFigures
from stilltide.schemas.values import EndOffset, Offset


def bounds_columns(bounds: tuple[Offset, EndOffset]) -> Row:
    """The length of the log, from its offsets, which are consecutive (B3)."""
    start, end = bounds
    return {"log_start_offset": start, "log_end_offset": end, "entries": end - start}


def writing_columns(figures: LogFigures) -> Row:
    """The owner's batching settings, and figures of its written entries."""
    written = figures.entries_written
    return {
        "batching_enabled": figures.batching_enabled,
        "batch_records_max": figures.batch_records_max,
        "batch_bytes_max": figures.batch_bytes_max,
        "batch_delay_ms_max": figures.batch_delay_us_max / 1000,
        "flush_mode": "eager" if figures.flush_eager else "timer",
        "entries_written": figures.entries_written,
        "records_written": figures.records_written,
        "records_per_entry": round(figures.records_written / written, 2) if written else None,
        "appends_in_flight": figures.appends_in_flight,
    }


EXIT_NOT_SAFE = 3
RANGES_SHOWN = 5


class BatchingState(NamedTuple):
    """Whether the records of a coordinator or subscription share log entries.

    Attributes:
        name: name of the coordinator or subscription.
        pip_160: the same name as PIP-160 spells it.
        enabled: whether its records share entries.
    """

    name: str
    pip_160: str
    enabled: bool


States = Mapping[int, Sequence[BatchingState] | None]
"""States of coordinators or subscriptions, by number of their owner; None for an owner that did not
answer. A coordinator or subscription without a request since its owner began is left out."""


class Batched(NamedTuple):
    """A log with batching that can be switched on and off.

    Attributes:
        noun: noun of the commands, such as `txn-log`.
        setting: name of the dynamic setting.
        owners: name of the log's owners in messages.
        listed: key of the list that `show` prints in JSON.
        pip_160: keys of the setting and of the list as PIP-160 spells them.
        states: function that asks the owners for their states.
    """

    noun: str
    setting: str
    owners: str
    listed: str
    pip_160: tuple[str, str]
    states: Callable[[Target], States]


def downgrade_command(log: Batched, topic: str) -> click.Command:
    """The command `downgrade-check` of a noun."""

    @click.command(
        "downgrade-check",
        help=f"Show whether a program from before batching could read {topic} now.\n\n"
        "Reads the whole log, from its start to its end as of the call. Prints `safe`, or the "
        "offsets of the entries that hold batches, as ranges [first, end).",
        epilog=f"""\b
Exit codes:
  0  safe: no entry holds a batch
  1  the command failed; the error names the next step
  3  not safe: some entries hold batches

\b
Examples:
  stilltide {log.noun} downgrade-check
  stilltide {log.noun} downgrade-check -o json
""",
    )
    @cluster_options
    @output_option
    def check(output: str, **cluster: Any) -> int:
        connector = target(**cluster).connector
        scans = asyncio.run(scan_for_batches(connector, topic))
        safe = not any(scan.batch_count for scan in scans)
        _print(topic, scans, output, safe=safe)
        if safe:
            say(f"safe as of now; to prevent new batches: stilltide {log.noun} batching disable")
        else:
            say(
                f"next: stilltide {log.noun} batching disable, then wait until the log has been "
                "trimmed past these offsets, and check again"
            )
        return 0 if safe else EXIT_NOT_SAFE

    return check


def _print(topic: str, scans: Sequence[BatchScan], output: str, *, safe: bool) -> None:
    rows = [scan_row(scan) for scan in scans]
    if output == "json":
        print(json.dumps({"topic": topic, "safe": safe, "logs": rows}, indent=2))
        return
    print_rows([{**row, "batches_at": _short(row["batches_at"])} for row in rows], output)
    print("safe" if safe else "not safe")


def scan_row(scan: BatchScan) -> Row:
    """The result for one log."""
    return {
        "partition": scan.log.partition,
        "start_offset": scan.start_offset,
        "end_offset": scan.end_offset,
        "entries": scan.end_offset - scan.start_offset,
        "batches": scan.batch_count,
        "batches_at": [list(it) for it in scan.ranges],
    }


def _short(ranges: Sequence[Sequence[int]]) -> str:
    shown = [f"[{first}, {end})" for first, end in ranges[:RANGES_SHOWN]]
    more = ["..."] if len(ranges) > RANGES_SHOWN else []
    return " ".join(shown + more) or "-"


def batching_group(log: Batched) -> click.Group:
    """The group `batching` of a noun."""
    group = click.Group("batching", help="Switch and show whether records share log entries.")
    for name, value, text in (
        ("enable", True, "Let records share log entries, on every worker at once."),
        ("disable", False, "Write every record as an entry of its own, on every worker at once."),
        ("reset", None, "Make every worker follow its own settings again."),
    ):
        group.add_command(_switch(log, name, text, value=value))
    group.add_command(_show(log))
    return group


def _switch(log: Batched, name: str, text: str, *, value: bool | None) -> click.Command:
    @click.command(
        name,
        help=f"{text}\n\nReturns once the change is durable; workers follow within a moment, and "
        f"the log stays readable. `stilltide {log.noun} batching show` shows the state.",
        epilog=f"\b\nExamples:\n  stilltide {log.noun} batching {name}\n",
    )
    @cluster_options
    def switch(**cluster: Any) -> None:
        connector = target(**cluster).connector
        at_ms = SystemClock().now_ms()
        asyncio.run(write_setting(connector, log.setting, value, at_ms=at_ms))
        say(f"{log.setting}: {'reset' if value is None else 'on' if value else 'off'}")

    return switch


def _show(log: Batched) -> click.Command:
    # PIP-160 has a log for each subscription, where a pending-ack store here has one log for many:
    # a subscription's state is that of its store. A store lists a subscription once its present
    # owner has applied an acknowledgement of that subscription in a transaction.
    @click.command(
        "show",
        help=f"Show whether records share log entries.\n\n"
        f"JSON as in PIP-160: `{log.setting}` is the setting of the cluster, null if it was never "
        f"set and each worker follows its own settings; `{log.listed}` has the state of each, "
        "except of those without a request since their owner began. `-o pip160` has the keys and "
        f"names that the PIP spells: {' and '.join(log.pip_160)}.",
        epilog=exit_codes(log.owners)
        + f"\n\b\nExamples:\n  stilltide {log.noun} batching show\n"
        + f"  stilltide {log.noun} batching show -o json\n"
        + f"  stilltide {log.noun} batching show -o pip160\n",
    )
    @cluster_options
    @click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json", "pip160"]),
        default="table",
        show_default=True,
        help="Format of the states on stdout.",
    )
    def show(output: str, **cluster: Any) -> int:
        asked = target(**cluster)
        enabled = asyncio.run(_setting(asked.connector, log.setting, asked.timeout_s))
        states = log.states(asked)
        listed = [one for some in answered(states, log.owners).values() for one in some]
        if output == "table":
            rows = [("setting of the cluster", enabled), *((it.name, it.enabled) for it in listed)]
            shown = {None: "not set", True: "on", False: "off"}
            print_rows([{"of": of, "batching": shown[state]} for of, state in rows], output)
        else:
            body = shown_json(log, listed, enabled=enabled, pip_160=output == "pip160")
            print(json.dumps(body, indent=2))
        return exit_code(states)

    return show


def shown_json(
    log: Batched, listed: Sequence[BatchingState], *, enabled: bool | None, pip_160: bool
) -> dict[str, Any]:
    """What `show` prints as JSON.

    Args:
        log: the log.
        listed: the states.
        enabled: the setting of the cluster; None: it was never set.
        pip_160: whether keys and names are PIP-160's.
    """
    setting, key = log.pip_160 if pip_160 else (log.setting, log.listed)
    names = ((it.pip_160 if pip_160 else it.name, it.enabled) for it in listed)
    return {setting: enabled, key: [{name: state} for name, state in names]}


async def _setting(connector: Connector, name: str, timeout_s: float) -> bool | None:
    async with closing(DynamicSettings(connector, patience_s=timeout_s)) as settings:
        await settings.open()
        return settings.flag(name)
