"""A broker that allows nothing but what it was told to, and its users."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
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
from stilltide.schemas.rights import Operation, Resource
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import TopicPartition
from tests.support.looks import block_between_looks
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

    def allow(self, user: str, *entries: tuple[Resource, Operation]) -> None:
        """Gives a user entries of `schemas.rights`; returns when the broker holds them."""
        admin = self._admin()
        bindings = [entry_binding(user, *one) for one in entries]
        for future in admin.create_acls(bindings).values():
            future.result(30)
        for one in bindings:
            while not admin.describe_acls(filter_of(one)).result(30):
                """Each look takes a round trip."""

    def withdraw(self, user: str, *entries: tuple[Resource, Operation]) -> None:
        """Takes entries away; returns when the broker has dropped them."""
        admin = self._admin()
        filters = [filter_of(entry_binding(user, *one)) for one in entries]
        for future in admin.delete_acls(filters).values():
            future.result(30)
        for one in filters:
            while admin.describe_acls(one).result(30):
                """As above."""

    @contextmanager
    def without(self, user: str, entry: tuple[Resource, Operation]) -> Iterator[None]:
        """The user lacks one entry for the length of the block."""
        self.withdraw(user, entry)
        try:
            yield
        finally:
            self.allow(user, entry)

    def deny(self, user: str, resource: Resource, operation: Operation) -> AclBinding:
        """Forbids what a prefixed entry allows; returns the entry, for `lift`."""
        binding = entry_binding(user, resource, operation, AclPermissionType.DENY)
        admin = self._admin()
        admin.create_acls([binding])[binding].result(30)
        while not admin.describe_acls(filter_of(binding)).result(30):
            """As above."""
        return binding

    def lift(self, binding: AclBinding) -> None:
        """Takes a denial back."""
        admin = self._admin()
        for future in admin.delete_acls([filter_of(binding)]).values():
            future.result(30)
        while admin.describe_acls(filter_of(binding)).result(30):
            """As above."""

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.cluster.bootstrap})

    def settings(self, user: str) -> dict[str, str]:
        """The settings of a process of this user."""
        secured = Secured(self.listener, scram_listener().settings)
        return secured.settings | {"sasl_username": user, "sasl_password": user}

    def connector(self, user: str) -> KafkaConnector:
        """A connector of this user."""
        options = {name.replace("_", "."): it for name, it in self.settings(user).items()}
        return KafkaConnector(KafkaConfig(self.bootstrap, extra=options))


def entry_binding(
    user: str,
    resource: Resource,
    operation: Operation,
    permission: AclPermissionType = AclPermissionType.ALLOW,
) -> AclBinding:
    """One entry of `stilltide.schemas.rights` as the broker's list has it."""
    pattern = ResourcePatternType.PREFIXED if resource.prefixed else ResourcePatternType.LITERAL
    word = re.sub("(?<=[a-z])(?=[A-Z])", "_", operation.value).upper()
    kind, principal = KINDS[resource.kind.value], f"User:{user}"
    return AclBinding(kind, resource.name, pattern, principal, "*", AclOperation[word], permission)


def filter_of(one: AclBinding) -> AclBindingFilter:
    """The filter that finds this entry."""
    return AclBindingFilter(
        one.restype,
        one.name,
        one.resource_pattern_type,
        one.principal,
        one.host,
        one.operation,
        one.permission_type,
    )


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


async def create_unguarded(guarded: GuardedCluster, *specs: TopicSpec) -> None:
    """Makes topics, as the cluster's own administrator."""
    admin = KafkaConnector(KafkaConfig(guarded.cluster.bootstrap)).admin()
    await admin.ensure_topics(specs)
    await admin.close()


def produce_unguarded(
    guarded: GuardedCluster, data: TopicPartition, key: bytes | None = None
) -> None:
    """Writes a record, once the partition is there."""
    producer = Producer(
        {"bootstrap.servers": guarded.cluster.bootstrap, "topic.metadata.refresh.interval.ms": 50}
    )
    while True:
        found = producer.list_topics(timeout=30).topics.get(data.topic)
        if found is not None and data.partition in found.partitions:
            break
        block_between_looks()
    producer.produce(data.topic, b"1", key, partition=data.partition)
    assert producer.flush(30) == 0
