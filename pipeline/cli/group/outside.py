"""Tells an operator which positions of groups no log holds, with the command that helps."""

from collections.abc import Iterable

from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.core.outside_log import OutsideLog

SHOWN_MAX = 20
"""Positions that are told one by one; the others are counted."""


def say_outside(found: Iterable[OutsideLog], at: str = "") -> None:
    """Prints a line and a hint to stderr for each position; `at` names the cluster to a command."""
    positions = list(found)
    for one in positions[:SHOWN_MAX]:
        say(f"{one.text}\n  hint: {one.command(at)}")
    if len(positions) > SHOWN_MAX:
        say(f"{len(positions) - SHOWN_MAX} more positions lie outside of their logs")
