"""Options of the commands that copy topics until they are stopped."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from stilltide.pipeline.cli.common.asking import replicas_options, web_port_option
from stilltide.pipeline.config.settings import Settings

_Command = TypeVar("_Command", bound=Callable[..., Any])

EXIT_CODES = """\b
Exit codes:
  0  stopped by SIGINT or SIGTERM; all copies made are committed
  1  the command failed; the error names the next step
"""


def of_settings(settings: Settings) -> dict[str, Any]:
    """The options of `ReplicationOptions` that the settings hold."""
    return {
        "partition_count": settings.partitions,
        "replicas": settings.replicas,
        "patience_s": settings.broker_away_s_max,
        "skips_keyless": settings.copy_keyless == "skip",
    }


def copying_options(command: _Command) -> _Command:
    """Adds the options of a link's pace, of what it shows, and of the topics that it creates."""
    for option in (
        web_port_option,
        replicas_options,
        click.option(
            "--keyless",
            type=click.Choice(["wait", "skip"]),
            help="A record without key, for a topic that compacts: its partition waits, or the"
            " record is left out.  [default: STILLTIDE_COPY_KEYLESS, or wait]",
        ),
        click.option(
            "--progress-s",
            type=click.FloatRange(min=0.1),
            default=10.0,
            show_default=True,
            help="Seconds between two progress lines on stderr.",
        ),
        click.option(
            "--throttle-bytes-per-s",
            type=click.FloatRange(min=1),
            help="Most bytes of keys and values copied in a second.  [default: no limit]",
        ),
    ):
        command = option(command)
    return command
