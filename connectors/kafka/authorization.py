"""Who asks a cluster for what, so that a refusal names operation, resource and principal.

*Source*: docs/protocols C17. A broker's refusal has a code and no more, such as
`TOPIC_AUTHORIZATION_FAILED`: it names neither the operation nor the user, and often no topic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from confluent_kafka import KafkaError

from stilltide.connectors.errors import NotAuthorizedError
from stilltide.schemas.rights import CLUSTER_NAME, Operation, Resource, ResourceKind

REFUSALS: Mapping[int, ResourceKind] = MappingProxyType(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED: ResourceKind.TOPIC,
        KafkaError.GROUP_AUTHORIZATION_FAILED: ResourceKind.GROUP,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ResourceKind.TRANSACTIONAL_ID,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED: ResourceKind.CLUSTER,
    }
)
"""The kind of resource that each code refuses."""


@dataclass(frozen=True)
class Caller:
    """A client of a cluster; its text is the cluster's address.

    Attributes:
        address: bootstrap servers of the cluster.
        principal: the user as Kafka names it, as far as the client knows.
    """

    address: str
    principal: str

    def __str__(self) -> str:
        return self.address


class Access(NamedTuple):
    """What a call asks for: an operation on a resource."""

    operation: Operation
    resource: Resource


DESCRIBE_CLUSTER = Access(Operation.DESCRIBE, Resource(ResourceKind.CLUSTER, CLUSTER_NAME))
DESCRIBE_BROKERS = Access(Operation.DESCRIBE_CONFIGS, Resource(ResourceKind.CLUSTER, CLUSTER_NAME))
ALTER_CLUSTER = Access(Operation.ALTER, Resource(ResourceKind.CLUSTER, CLUSTER_NAME))


def on_topic(operation: Operation, name: str) -> Access:
    """An operation on a topic."""
    return Access(operation, Resource(ResourceKind.TOPIC, name))


def on_group(operation: Operation, name: str) -> Access:
    """An operation on a consumer group."""
    return Access(operation, Resource(ResourceKind.GROUP, name))


def on_id(operation: Operation, name: str) -> Access:
    """An operation on a transactional id."""
    return Access(operation, Resource(ResourceKind.TRANSACTIONAL_ID, name))


def principal_of(options: Mapping[str, str]) -> str:
    """The user that brokers see, or how the client logs in where only brokers know the name.

    Args:
        options: security options by librdkafka's names.
    """
    protocol = options.get("security.protocol", "PLAINTEXT").upper()
    if protocol.startswith("SASL"):
        if name := options.get("sasl.username"):
            return f"User:{name}"
        client = options.get("sasl.oauthbearer.client.id", "")
        return f"the subject of the token of the OAuth client {client}"
    if protocol == "SSL" and (path := options.get("ssl.certificate.location")):
        return f"the subject of the certificate {path}"
    return "User:ANONYMOUS"


def refusal(
    code: int | None, caller: Caller | str, action: str, asked: Sequence[Access], detail: str
) -> NotAuthorizedError | None:
    """The error of a call that the authorizer refused; None for another code.

    Args:
        code: the broker's code.
        caller: the client, or only the cluster's address.
        action: the failed action, such as `cannot write`.
        asked: what the action needs; the first of the refused kind is named.
        detail: the client's words.
    """
    kind = REFUSALS.get(-1 if code is None else code)
    fitting = [one for one in asked if one.resource.kind is kind] or list(asked)
    if kind is None or not fitting:
        return None
    return not_allowed(caller, f"{action} at {caller}", fitting[0], detail)


def not_allowed(
    caller: Caller | str, action: str, access: Access, detail: str
) -> NotAuthorizedError:
    """The error that names operation, resource and principal."""
    operation, resource = access
    principal = caller.principal if isinstance(caller, Caller) else "this user"
    return NotAuthorizedError(
        f"{action}: {operation} on {resource} is not allowed to {principal}",
        detail=detail,
        hint=f"`stilltide acl print --component COMPONENT --principal {_shown(principal)}` prints "
        "the rights of a worker, application, reader, operator, link, indexer or audit",
        operation=operation.value,
        resource=str(resource),
        principal=principal,
    )


def _shown(principal: str) -> str:
    return principal if principal.startswith("User:") else "User:NAME"
