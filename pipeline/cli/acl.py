"""`stilltide acl`: the least rights of each component, for several tools.

*Source*: docs/protocols C15, C17; `schemas.rights`. Asks no cluster.

Rights as rows, as commands of Kafka, and as a user of Strimzi.

*Source*: KIP-290 (prefixed resources); Strimzi's KafkaUser, `kafka.strimzi.io/v1beta2`.

*Invariants*: every text of a user is quoted, for the shell or for YAML.
"""

import json
import shlex
from collections.abc import Iterator, Sequence

import click

from stilltide.pipeline.cli.common.asking import bootstrap_option, command_settings
from stilltide.pipeline.cli.common.output import Row, print_rows
from stilltide.schemas.rights import (
    NEEDS,
    Component,
    LinkSide,
    Names,
    Resource,
    ResourceKind,
    Right,
    rights,
)

_STRIMZI_TYPES = {
    ResourceKind.TOPIC: "topic",
    ResourceKind.GROUP: "group",
    ResourceKind.TRANSACTIONAL_ID: "transactionalId",
    ResourceKind.CLUSTER: "cluster",
}


def table_rows(granted: Sequence[Right]) -> list[Row]:
    """A row for each resource."""
    return [
        {
            "resource": right.resource.kind.value,
            "name": right.resource.name,
            "pattern": pattern(right.resource),
            "operations": ", ".join(right.operations),
            "purpose": right.purpose,
        }
        for right in granted
    ]


def json_rows(granted: Sequence[Right], principal: str) -> list[Row]:
    """As `table_rows`, with a list of operations and the principal."""
    return [
        {**row, "operations": list(right.operations), "principal": principal}
        for row, right in zip(table_rows(granted), granted, strict=True)
    ]


def kafka_acls(granted: Sequence[Right], principal: str, bootstrap_servers: str) -> Iterator[str]:
    """A command line of kafka-acls.sh for each operation of each resource."""
    for right in granted:
        kind, name, _ = right.resource
        resource = ["--cluster"] if kind is ResourceKind.CLUSTER else [f"--{kind.value}", name]
        if kind is not ResourceKind.CLUSTER:
            resource += ["--resource-pattern-type", pattern(right.resource)]
        for operation in right.operations:
            words = ["kafka-acls.sh", "--bootstrap-server", bootstrap_servers, "--add"]
            words += ["--allow-principal", principal, "--operation", operation.value, *resource]
            yield shlex.join(words)


def strimzi(granted: Sequence[Right], principal: str, cluster: str) -> Iterator[str]:
    """The lines of a KafkaUser; a text in JSON is a text in YAML, too."""
    user = principal.partition(":")[2]
    yield from (
        "apiVersion: kafka.strimzi.io/v1beta2",
        "kind: KafkaUser",
        "metadata:",
        f"  name: {json.dumps(user)}",
        "  labels:",
        f"    strimzi.io/cluster: {json.dumps(cluster)}",
        "spec:",
        "  authorization:",
        "    type: simple",
        "    acls:",
    )
    for right in granted:
        kind, name, _ = right.resource
        yield f"      # {right.purpose}"
        yield "      - resource:"
        yield f"          type: {_STRIMZI_TYPES[kind]}"
        if kind is not ResourceKind.CLUSTER:
            yield f"          name: {json.dumps(name)}"
            yield f"          patternType: {_strimzi_pattern(right.resource)}"
        yield f"        operations: [{', '.join(right.operations)}]"


def pattern(resource: Resource) -> str:
    """Kafka's name of the pattern type."""
    return "prefixed" if resource.prefixed else "literal"


def _strimzi_pattern(resource: Resource) -> str:
    return "prefix" if resource.prefixed else "literal"


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
    needed = rights(
        Component(component),
        Names(topics, groups, settings.own_prefix, source, target, LinkSide(side), replicated),
    )
    if output == "kafka-acls":
        print(*kafka_acls(needed, principal, settings.bootstrap_servers), sep="\n")
    elif output == "strimzi":
        print(*strimzi(needed, principal, cluster_name), sep="\n")
    elif output == "json":
        print_rows(json_rows(needed, principal), "json")
    else:
        print_rows(table_rows(needed), "table")


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
