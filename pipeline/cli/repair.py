"""`stilltide repair`: damaged records of system topics, and what can be done about them.

*Source*: docs/protocols B10. No worker needs to run; only `--apply` writes.

*Invariants*: nothing is written before everything that would be written was shown.
"""

import asyncio
import json
from collections.abc import Sequence

import click

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.ports.connector import Connector, closing
from stilltide.pipeline.cli.common.asking import bootstrap_option, cluster_connector
from stilltide.pipeline.cli.common.output import (
    Row,
    confirmed,
    output_option,
    print_columns,
    say,
)
from stilltide.pipeline.drivers.repair.judging import Damage
from stilltide.pipeline.drivers.repair.repairing import TOPICS, find
from stilltide.pipeline.drivers.repair.repairing import repair as repair_damage
from stilltide.schemas.topics import PREFIX

EXIT_DAMAGED = 3

_NAMES = sorted({*TOPICS, *(name.removeprefix(PREFIX) for name in TOPICS)})


@click.command(
    epilog="""\b
Exit codes:
  0  nothing is damaged, or everything that was was repaired
  1  the command failed; the error names the next step
  3  there is damage, and it was not repaired, or not all of it

\b
Examples:
  stilltide repair stilltide.txn-markers
  stilltide repair stilltide.txn-log --partition 2 -o json
  stilltide repair stilltide.txn-log --partition 2 --apply
  stilltide repair stilltide.txn-snapshots --partition 0 --offset 7 --apply --yes
"""
)
@click.argument("topic", type=click.Choice(_NAMES), metavar="TOPIC")
@click.option("--partition", type=click.IntRange(0), help="Only this partition.")
@click.option("--offset", type=click.IntRange(0), help="Only the record at this offset.")
@click.option("--apply", "applied", is_flag=True, help="Repair what can be repaired.")
@click.option("--yes", is_flag=True, help="Repair without asking; needed without a terminal.")
@bootstrap_option
@output_option
def repair(
    topic: str,
    bootstrap_servers: str | None,
    output: str,
    *,
    partition: int | None,
    offset: int | None,
    applied: bool,
    yes: bool,
) -> int:
    """Show the damaged records of a system topic, and repair them with --apply.

    A record is damaged if it is Stilltide's by its place and does not decode. An owner that meets
    such a record ends; the worker serves the rest. Records of other programs are passed over and
    are no damage.

    In a log, all damaged entries of a partition are skipped together: the command takes the log
    over, writes the state without them, and trims the log. In a compacted topic the command writes
    an earlier value again, or a tombstone. A repair that could make readers show something wrong is
    refused, with the reason.
    """
    name = topic if topic.startswith(PREFIX) else PREFIX + topic
    if offset is not None and partition is None:
        raise click.UsageError("--offset needs --partition")
    connector = cluster_connector(bootstrap_servers)
    damage = asyncio.run(damage_in(connector, name, partition, offset))
    rows = [_row(one) for one in damage]
    if output == "table":
        print_columns(rows, output)
    done: list[Damage] = []
    possible = [one for one in damage if one.repairable]
    if applied and possible and (yes or confirmed("Repair these records?")):
        done = asyncio.run(repaired(connector, possible))
    if output == "json":
        document = {
            "damage": rows,
            "repaired": [
                {**mended.record.data._asdict(), "offset": mended.record.offset} for mended in done
            ],
        }
        print(json.dumps(document, indent=2))
    _tell(name, damage, done, applied=applied)
    return 0 if {_id(one) for one in damage} <= {_id(one) for one in done} else EXIT_DAMAGED


async def damage_in(
    connector: Connector, topic: str, partition: int | None, offset: int | None
) -> list[Damage]:
    """The damage of a topic, or of one partition or offset; raises as `repairing.find`."""
    async with closing(connector.admin()) as admin:
        now_ms = SystemClock().now_ms()
        damage = await find(connector, admin, topic, partition, now_ms)
    return [one for one in damage if offset in {None, one.record.offset}]


async def repaired(connector: Connector, damage: Sequence[Damage]) -> list[Damage]:
    """Repairs; raises as `repairing.repair`."""
    async with closing(connector.admin()) as admin:
        return await repair_damage(connector, admin, damage, SystemClock().now_ms())


def _tell(name: str, damage: Sequence[Damage], done: Sequence[Damage], *, applied: bool) -> None:
    if not damage:
        say(f"nothing is damaged in {name}")
    elif done:
        say(f"repaired {len(done)} of {len(damage)}; owners that have ended begin again soon")
    elif not any(one.repairable for one in damage):
        say("none of this can be repaired safely; the table says why")
    elif applied:
        say("nothing was changed: answer the question, or give --yes")
    else:
        say("nothing was changed: --apply repairs")


def _id(damage: Damage) -> tuple[str, int, int]:
    return damage.record.topic, damage.record.partition, damage.record.offset


def _row(damage: Damage) -> Row:
    return {
        "offset": damage.record.offset,
        **damage.record.data._asdict(),
        "key": damage.key,
        "begins": damage.begins,
        "size_bytes": len(damage.record.value or b""),
        "why": damage.why,
        "repair": damage.remedy.action or "not safe",
        "may_lose": damage.remedy.loses,
    }
