"""The verbs `batching enable|disable|reset|show` of the nouns whose records share log entries.

*Source*: PIP-160, API changes. The answers mean the same as the PIP's; the keys are spelled in
another way.
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
"""Reports of owners, by number: names and states; None for an owner that did not answer. A
coordinator or subscription without a request since its owner began is left out."""


class Batched(NamedTuple):
    """A log with batching that can be switched on and off.

    Attributes:
        noun: noun of the commands, such as `txn-log`.
        setting: name of the dynamic setting.
        owners: name of the log's owners in messages.
        listed: key of the list that `show` prints in JSON.
        states: function that asks the owners for their states.
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
        "except of those without a request since their owner began. "
        "(The PIP spells the keys txnTcBatchLogEnabled, coodinatorArray, "
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
