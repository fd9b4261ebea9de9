"""`stilltide config`: the settings in force, and the origin of each.

*Invariants*: a secret is never printed, only whether it is set.
"""

from collections.abc import Mapping
from typing import cast

import click
from pydantic import SecretStr

from stilltide.pipeline.cli.common.output import Row, output_option, print_rows
from stilltide.pipeline.config.clusters import ClusterAddress
from stilltide.pipeline.config.loading import load_with_origins


@click.group()
def config() -> None:
    """See the settings in force."""


@config.command(
    epilog="""\b
Examples:
  stilltide config show --origin
  STILLTIDE_COORDINATORS=8 stilltide config show --origin -o json
  stilltide --config stilltide.toml config show
"""
)
@click.option("--origin", is_flag=True, help="Also show where each value comes from.")
@output_option
def show(output: str, *, origin: bool) -> None:
    """List every setting with the value that a command started here gets.

    An origin is a variable, the file that STILLTIDE_CONFIG names, or the default. Secrets are shown
    as stars.
    """
    settings, origins = load_with_origins()
    rows: list[Row] = []
    for name, value in settings:
        row = {"setting": name, "value": _shown(value)}
        rows.append(row | ({"origin": origins[name]} if origin else {}))
    print_rows(rows, output)


def _shown(value: object) -> str | float | None:
    if isinstance(value, SecretStr):
        return "**********"
    if isinstance(value, Mapping):  # clusters, whose options may hold secrets
        clusters = cast("Mapping[str, ClusterAddress]", value)
        return " ".join(f"{name}={one.bootstrap_servers}" for name, one in clusters.items())
    return value if value is None or isinstance(value, int | float) else str(value)
