"""`stilltide acl`: the least rights of each component, for several tools.

*Source*: docs/protocols C15, C17; `schemas.rights`. Asks no cluster.
"""

import click

from stilltide.pipeline.cli.acl.formats import json_rows, kafka_acls, strimzi, table_rows
from stilltide.pipeline.cli.common.asking import bootstrap_option, command_settings
from stilltide.pipeline.cli.common.output import print_rows
from stilltide.schemas.rights import NEEDS, Component, LinkSide, Names, rights

_OPTIONS = {"topics": "--topic", "groups": "--group", "source": "--source", "target": "--target"}


@click.group()
def acl() -> None:
    """See the rights in Kafka that Stilltide's processes need."""


@acl.command(
    "print",
    epilog="""\b
Components:
  worker       `stilltide worker`; --replicated with groups that move between clusters
  application  TransactionClient: writes in transactions
  reader       Subscription: reads, and acknowledges in transactions
  operator     status, txn, coordinator, pending-ack, snapshot, topics check
  link         `stilltide replicate`, or a worker with replicate_from; once for each --side
  publish      `stilltide publish`, or a worker with publish; --target is the topic of the copies
  indexer      `stilltide index`, audit run --update-index, or a worker with index_topics
  audit        `stilltide audit`, Spark jobs
  console      `stilltide console`, `stilltide status`: reads everything and changes nothing

A process that is several components needs the rights of each.

\b
Examples:
  stilltide acl print --component worker --principal User:stilltide --topic 'orders-*'
  stilltide acl print --component reader --topic orders --group billing -o kafka-acls
  stilltide acl print --component link --side target --source a --target b --topic orders
  stilltide acl print --component publish --topic orders --target orders.committed
  stilltide acl print --component application --topic orders -o strimzi --cluster-name prod
""",
)
@click.option(
    "--component",
    type=click.Choice([it.value for it in Component]),
    required=True,
    help="The process that needs the rights; see below.",
)
@click.option(
    "--principal",
    default="User:stilltide",
    show_default=True,
    help="The user of the process, as Kafka names it.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME",
    help="Data topic; `orders-*` means all topics whose names begin with `orders-`; repeatable.",
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="NAME",
    help="Consumer group, or a beginning of names as for --topic; repeatable.",
)
@click.option("--own-prefix", help="Beginning of Stilltide's own groups and transactional ids.")
@click.option("--source", default="", help="Name of the cluster that a link copies from.")
@click.option(
    "--target",
    default="",
    help="Name of the cluster that a link copies to, or of the topic that is published to.",
)
@click.option(
    "--side",
    type=click.Choice([it.value for it in LinkSide]),
    default=LinkSide.SOURCE.value,
    show_default=True,
    help="The cluster of a link for which the rights are.",
)
@click.option("--replicated", is_flag=True, help="The worker replicates the groups of --group.")
@click.option("--cluster-name", default="kafka", show_default=True, help="Cluster of Strimzi.")
@bootstrap_option
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "kafka-acls", "json", "strimzi"]),
    default="table",
    show_default=True,
    help="Format of the rights on stdout.",
)
def print_(
    component: str,
    principal: str,
    *,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    own_prefix: str | None,
    source: str,
    target: str,
    side: str,
    replicated: bool,
    cluster_name: str,
    bootstrap_servers: str | None,
    output: str,
) -> None:
    """Print the least rights of a component: with them all works, without one of them it does not.

    Read, Write, Delete and Alter include Describe. No right is on all topics or groups: name them.
    """
    settings = command_settings(bootstrap_servers=bootstrap_servers, own_prefix=own_prefix)
    chosen = {"topics": topics, "groups": groups, "source": source, "target": target}
    _check(Component(component), principal, chosen)
    found = rights(
        Component(component),
        Names(topics, groups, settings.own_prefix, source, target, LinkSide(side), replicated),
    )
    if output == "kafka-acls":
        print(*kafka_acls(found, principal, settings.bootstrap_servers), sep="\n")
    elif output == "strimzi":
        print(*strimzi(found, principal, cluster_name), sep="\n")
    elif output == "json":
        print_rows(json_rows(found, principal), "json")
    else:
        print_rows(table_rows(found), "table")


def _check(component: Component, principal: str, chosen: dict[str, tuple[str, ...] | str]) -> None:
    """Refuses names that are missing, and those that mean every resource."""
    if not principal.partition(":")[2]:
        raise click.UsageError(f"--principal {principal}: a type and a name, such as User:ada")
    for name in NEEDS[component]:
        if not chosen[name]:
            raise click.UsageError(f"the rights of component {component} need {_OPTIONS[name]}")
    named = {"topics": chosen["topics"], "groups": chosen["groups"]}
    if component is Component.PUBLISH:
        named["target"] = (str(chosen["target"]),)
    for option, names in named.items():
        for name in names:
            if "*" in name[:-1] or name in ("", "*"):
                raise click.UsageError(
                    f"{_OPTIONS[option]} {name!r}: a name, or a beginning of names and one `*`"
                )
