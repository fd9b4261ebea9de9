"""The verbs `batching enable|disable|reset|show` of the nouns whose records share log entries.

*Source*: PIP-160 (seed 003), API changes. Its answers are kept in meaning, with our own spelling of
the keys.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import click

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.cli.common.asking import (
    Target,
    answered,
    cluster_options,
    exit_code,
    exit_codes,
    target,
)
from stilltide.pipeline.cli.common.output import output_option, print_rows, say
from stilltide.pipeline.drivers.shared.dynamic_settings import DynamicSettings, write_setting

States = Mapping[int, Sequence[tuple[str, bool]] | None]
"""What owners report, by number: names and states, None of one that did not answer. What has been
served nothing since its owner began is left out."""


class Batched(NamedTuple):
    """A log whose batching is switched.

    Attributes:
        noun: of the commands.
        setting: the dynamic setting.
        owners: who is asked.
        listed: what `show` lists, with the state of each.
        states: asks the owners.
    """

    noun: str
    setting: str
    owners: str
    listed: str
    states: Callable[[Target], States]


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
        f"set and each worker does as its own settings say; and `{log.listed}`, "
        "each with its own state, without those that have served nothing since their owner began. "
        "(The PIP spells its keys txnTcBatchLogEnabled, coodinatorArray, "
        "txnPendingAckBatchLogEnabled, subscriptionArray.)",
        epilog=exit_codes(log.owners)
        + f"\n\b\nExamples:\n  stilltide {log.noun} batching show\n"
        + f"  stilltide {log.noun} batching show -o json\n",
    )
    @cluster_options
    @output_option
    @click.pass_context
    def show(ctx: click.Context, output: str, **cluster: Any) -> None:
        asked = target(**cluster)
        enabled = asyncio.run(_setting(asked.connector, log.setting, asked.timeout_s))
        states = log.states(asked)
        listed = [one for some in answered(states, log.owners).values() for one in some]
        if output == "json":
            found = {
                log.setting: enabled,
                log.listed: [{name: state} for name, state in listed],
            }
            print(json.dumps(found, indent=2))
        else:
            rows = [("setting of the cluster", enabled), *listed]
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
