"""The verbs `batching enable|disable|reset|show` of the nouns whose records share log entries.

*Source*: PIP-160 (seed 003), API changes. Its answers are kept in meaning, with our own spelling of
the keys.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import click

from connectors.base import Connector
from connectors.clock import SystemClock
from pipeline.cli.asking import EXIT_CODES, answered, ask, cluster_options, exit_code, target
from pipeline.cli.output import output_option, print_rows, say
from pipeline.drivers.coordinators import Coordinators
from pipeline.drivers.dynamic_settings import DynamicSettings, write_setting

States = Mapping[int, tuple[str, bool] | None]
"""What owners report: name and state, None of one that did not answer; one that has served nothing
since it began has no entry."""


class Batched(NamedTuple):
    """A log whose batching is switched.

    Attributes:
        noun: of the commands.
        setting: the dynamic setting.
        owners_key: what `show` lists the owners under.
        states: asks the owners for their own state.
    """

    noun: str
    setting: str
    owners_key: str
    states: Callable[[Coordinators], Awaitable[States]]


def batching_group(log: Batched) -> click.Group:
    """The group `batching` of a noun."""
    group = click.Group("batching", help="Switch and show whether records share log entries.")
    for name, value, text in (
        ("enable", True, "Let records share log entries, on every worker at once."),
        ("disable", False, "Write every record as an entry of its own, on every worker at once."),
        ("reset", None, "Let every worker do again as its own settings say."),
    ):
        group.add_command(_switch(log, name, text, value=value))
    group.add_command(_show(log))
    return group


def _switch(log: Batched, name: str, text: str, *, value: bool | None) -> click.Command:
    @click.command(
        name,
        help=f"{text}\n\nReturns once the change is durable; workers take it up within a moment, "
        f"and what is in the log stays readable. `stilltide {log.noun} batching show` tells.",
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
    @click.command(
        "show",
        help=f"Show whether records share log entries.\n\n"
        f"JSON as in PIP-160: `{log.setting}`, the setting of the cluster, null where it was never "
        f"set and each worker does as its own settings say; and `{log.owners_key}`, the owners "
        "with their own state, without those that have served nothing since they began. (The PIP "
        "spells its keys txnTcBatchLogEnabled, coodinatorArray, txnPendingAckBatchLogEnabled, "
        "subscriptionArray.)",
        epilog=EXIT_CODES
        + f"\n\b\nExamples:\n  stilltide {log.noun} batching show\n"
        + f"  stilltide {log.noun} batching show -o json\n",
    )
    @cluster_options
    @output_option
    @click.pass_context
    def show(ctx: click.Context, output: str, **cluster: Any) -> None:
        asked = target(**cluster)
        enabled = asyncio.run(_setting(asked.connector, log.setting, asked.timeout_s))
        states = ask(asked, log.states)
        owners = answered(states).values()
        if output == "json":
            found = {
                log.setting: enabled,
                log.owners_key: [{name: state} for name, state in owners],
            }
            print(json.dumps(found, indent=2))
        else:
            rows = [("setting of the cluster", enabled), *owners]
            shown = {None: "not set", True: "on", False: "off"}
            print_rows([{"of": of, "batching": shown[state]} for of, state in rows], output)
        ctx.exit(exit_code(states))

    return show


async def _setting(connector: Connector, name: str, timeout_s: float) -> bool | None:
    settings = DynamicSettings(connector, patience_s=timeout_s)
    try:
        await settings.open()
        return settings.flag(name)
    finally:
        await settings.close()
