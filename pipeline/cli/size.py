"""`stilltide size`: what a load needs, by the factors of docs/sizing.md. Asks no cluster."""

from typing import Any

import click

from stilltide.pipeline.cli.common.output import output_option, print_rows, say
from stilltide.pipeline.core.sizing import Load, needs, next_limit

_WHOLE = 100


@click.command(
    epilog="""\b
Examples:
  stilltide size --transactions 1000 --partitions 500
  stilltide size --transactions 1000000 --partitions 100000 --groups 1000 --clusters 3 -o json
"""
)
@click.option(
    "--transactions",
    "transactions_per_s",
    type=float,
    required=True,
    metavar="N",
    help="A second, over all clusters.",
)
@click.option(
    "--partitions", type=int, required=True, metavar="N", help="Data partitions of a cluster."
)
@click.option("--groups", type=int, default=0, show_default=True, help="Replicated groups.")
@click.option("--clusters", type=int, default=1, show_default=True, help="All linked to all.")
@click.option(
    "--open-s",
    type=float,
    default=Load.open_s,
    show_default=True,
    help="How long a transaction is open.",
)
@click.option(
    "--records",
    type=int,
    default=Load.records,
    show_default=True,
    help="Records of a transaction.",
)
@click.option(
    "--partitions-of-a-transaction",
    type=int,
    default=Load.partitions_of_a_transaction,
    show_default=True,
    help="Data partitions that a transaction writes to.",
)
@click.option(
    "--partitions-of-a-group",
    type=int,
    default=Load.partitions_of_a_group,
    show_default=True,
    help="Data partitions that a group reads.",
)
@click.option("--replicas", type=int, default=Load.replicas, show_default=True)
@output_option
def size(output: str, **numbers: Any) -> None:
    """Say how many workers, coordinators, links and brokers a load needs, and what limits it.

    An estimate from factors that were measured on one machine; measure on your own before you buy.
    """
    needed = needs(Load(**numbers))
    rows = [
        {
            "what": need.what,
            "needed": _rounded(need.each),
            "most": None if need.most is None else _rounded(need.most),
            "used": None if need.used is None else _rounded(need.used),
            "why": need.why,
        }
        for need in needed
    ]
    print_rows(rows, output, title="For each cluster")
    limit = next_limit(needed)
    assert limit.used is not None, "some needs have a bound"
    says = "the load does not fit" if limit.used > 1 else "the next limit"
    say(f"{says}: {limit.what}, {limit.used:.0%} of what there can be")


def _rounded(value: float) -> float | int:
    """To three digits, and to a whole number from 100 on."""
    return round(value) if value >= _WHOLE or value == int(value) else float(f"{value:.3g}")
