"""`stilltide txn decisions-ddl`: the table of decisions, for migrations.

*Source*: docs/protocols L4.
"""

import click

from stilltide.schemas.decisions import DDL


@click.command(
    "decisions-ddl",
    epilog="""\b
Examples:
  stilltide txn decisions-ddl --dialect postgresql | psql orders
  stilltide txn decisions-ddl --dialect sqlite | sqlite3 orders.sqlite
""",
)
@click.option("--dialect", type=click.Choice(sorted(DDL)), required=True, help="The database's.")
def decisions_ddl(dialect: str) -> None:
    """Print the statement that makes the table `stilltide_decisions`.

    The table belongs into each database whose rows decide about transactions. Applications and
    resolvers need SELECT, INSERT and DELETE on it.
    """
    print(f"{DDL[dialect]};")
