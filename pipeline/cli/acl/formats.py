"""Rights as rows, as commands of Kafka, and as a user of Strimzi.

*Source*: KIP-290 (prefixed resources); Strimzi's KafkaUser, `kafka.strimzi.io/v1beta2`.

*Invariants*: every text of a user is quoted, for the shell or for YAML.
"""

import json
import shlex
from collections.abc import Iterator, Sequence

from stilltide.pipeline.cli.common.output import Row
from stilltide.schemas.rights import Resource, ResourceKind, Right

_STRIMZI_TYPES = {
    ResourceKind.TOPIC: "topic",
    ResourceKind.GROUP: "group",
    ResourceKind.TRANSACTIONAL_ID: "transactionalId",
    ResourceKind.CLUSTER: "cluster",
}


def table_rows(found: Sequence[Right]) -> list[Row]:
    """A row for each resource."""
    return [
        {
            "resource": one.resource.kind.value,
            "name": one.resource.name,
            "pattern": pattern(one.resource),
            "operations": ", ".join(one.operations),
            "purpose": one.purpose,
        }
        for one in found
    ]


def json_rows(found: Sequence[Right], principal: str) -> list[Row]:
    """As `table_rows`, with a list of operations and the principal."""
    return [
        {**row, "operations": list(one.operations), "principal": principal}
        for row, one in zip(table_rows(found), found, strict=True)
    ]


def kafka_acls(found: Sequence[Right], principal: str, bootstrap_servers: str) -> Iterator[str]:
    """A command line of kafka-acls.sh for each operation of each resource."""
    for one in found:
        kind, name, _ = one.resource
        resource = ["--cluster"] if kind is ResourceKind.CLUSTER else [f"--{kind.value}", name]
        if kind is not ResourceKind.CLUSTER:
            resource += ["--resource-pattern-type", pattern(one.resource)]
        for operation in one.operations:
            words = ["kafka-acls.sh", "--bootstrap-server", bootstrap_servers, "--add"]
            words += ["--allow-principal", principal, "--operation", operation.value, *resource]
            yield shlex.join(words)


def strimzi(found: Sequence[Right], principal: str, cluster: str) -> Iterator[str]:
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
    for one in found:
        kind, name, _ = one.resource
        yield f"      # {one.purpose}"
        yield "      - resource:"
        yield f"          type: {_STRIMZI_TYPES[kind]}"
        if kind is not ResourceKind.CLUSTER:
            yield f"          name: {json.dumps(name)}"
            yield f"          patternType: {_strimzi_pattern(one.resource)}"
        yield f"        operations: [{', '.join(one.operations)}]"


def pattern(resource: Resource) -> str:
    """Kafka's name of the pattern type."""
    return "prefixed" if resource.prefixed else "literal"


def _strimzi_pattern(resource: Resource) -> str:
    return "prefix" if resource.prefixed else "literal"
