"""A broker that allows nothing but what it was told to, and its users."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.broker import Listener
from stilltide.connectors.local.cluster import LocalCluster
from tests.support.processes.secure import Secured, scram_listener

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "false",
}
"""The plain listener, whose users have no name, is for the broker itself and for the test."""

KINDS = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
    "cluster": ResourceType.BROKER,
}
CLUSTER = "kafka-cluster"
START_S = 180.0
"""Longest start of the broker, on a machine that is busy."""

EVERY = "*"
"""Name of all resources of a kind."""


class Right(NamedTuple):
    """Operations on the resource of a name, of those with a prefix `name*`, or of `EVERY` name."""

    kind: str
    name: str
    operations: Sequence[str]


@dataclass
class GuardedCluster:
    """The broker; every user's password is the user's name."""

    cluster: LocalCluster
    listener: Listener

    @property
    def bootstrap(self) -> str:
        """The address of the listener that asks for a name."""
        return self.listener.bootstrap

    def grant(self, user: str, *rights: Right) -> None:
        """Gives a user rights; returns when the broker holds them."""
        bindings = [*{binding(user, right, one) for right in rights for one in right.operations}]
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        for future in admin.create_acls(bindings).values():
            future.result(30)

    def settings(self, user: str) -> dict[str, str]:
        """The settings of a process of this user."""
        secured = Secured(self.listener, scram_listener().settings)
        return secured.settings | {"sasl_username": user, "sasl_password": user}

    def connector(self, user: str) -> KafkaConnector:
        """A connector of this user."""
        options = {name.replace("_", "."): it for name, it in self.settings(user).items()}
        return KafkaConnector(KafkaConfig(self.bootstrap, extra=options))


def binding(user: str, right: Right, operation: str) -> AclBinding:
    """One entry of the broker's list."""
    prefixed = right.name.endswith("*") and right.name != EVERY
    return AclBinding(
        KINDS[right.kind],
        right.name.removesuffix("*") if prefixed else right.name,
        ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        AclOperation[operation.upper()],
        AclPermissionType.ALLOW,
    )


@contextmanager
def guarded_cluster(directory: Path, *users: str) -> Iterator[GuardedCluster]:
    """A broker with these users, who have no right yet."""
    plain = scram_listener().listener
    listener = Listener(
        plain.name, plain.protocol, plain.port, plain.properties, {user: user for user in users}
    )
    cluster = LocalCluster(
        "g", directory, fast_start=True, listeners=(listener,), properties=AUTHORIZER
    )
    cluster.start(timeout_s=START_S)
    try:
        yield GuardedCluster(cluster, listener)
    finally:
        cluster.stop()
