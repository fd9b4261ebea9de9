"""What a deployment passes to the product, checked against the product."""

from collections.abc import Iterable, Sequence

import click

from stilltide.pipeline.cli.main import cli
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.config.sources import ENV_PREFIX, FILE_SUFFIX


def unknown_variables(names: Iterable[str]) -> list[str]:
    """The variables STILLTIDE_* among names that are neither settings nor files with settings."""
    settings = {ENV_PREFIX + name.upper() for name in Settings.model_fields}
    known = settings | {name + FILE_SUFFIX for name in settings} | {f"{ENV_PREFIX}CACHE_DIR"}
    return sorted(name for name in names if name.startswith(ENV_PREFIX) and name not in known)


def usage_error(arguments: Sequence[str]) -> str:
    """Why `stilltide` would refuse the arguments as wrong usage; empty if it takes them.

    The arguments are parsed; the command is not run.
    """
    command: click.Command = cli
    rest = list(arguments)
    while isinstance(command, click.Group):
        word = rest.pop(0)
        found = command.get_command(click.Context(command), word)
        if found is None:
            return f"no command {word}"
        command = found
    try:
        command.make_context(command.name, rest)
    except click.UsageError as error:
        return error.format_message()
    return ""
