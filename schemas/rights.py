"""The least rights in Kafka of each of Stilltide's processes, as data.

*Source*: docs/protocols C15, C17, C18; Kafka: Read, Write, Delete and Alter on a resource
include Describe, and Alter Configs includes Describe Configs.

*Invariants*: no right is on all resources of a kind, and no operation is listed that another one
includes. `tests/integration/rights` shows that each operation is needed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from stilltide.schemas.topics import (
    ABORTED_INDEX,
    ACK_REQUESTS,
    GROUP_REQUESTS,
    OPERATOR_ACK_REQUESTS,
    OPERATOR_REQUESTS,
    PREFIX,
    REPLICATION_MARKERS,
    REPLICATION_POSITIONS,
    SETTINGS,
    SNAPSHOT_REQUESTS,
    TXN_MARKERS,
    TXN_REQUESTS,
    TXN_RESPONSES,
    TXN_SNAPSHOTS,
)


class ResourceKind(StrEnum):
    """A kind of resource, as kafka-acls.sh names it."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"
    CLUSTER = "cluster"


KAFKA_TRANSACTIONS, KAFKA_OFFSETS = "__transaction_state", "__consumer_offsets"
"""Kafka's own topics."""

CLUSTER_NAME = "kafka-cluster"
"""Kafka's name of the only resource of the kind `CLUSTER`."""


class Operation(StrEnum):
    """What a right allows, as Kafka names it."""

    ALTER = "Alter"
    ALTER_CONFIGS = "AlterConfigs"
    CREATE = "Create"
    DELETE = "Delete"
    DESCRIBE = "Describe"
    DESCRIBE_CONFIGS = "DescribeConfigs"
    IDEMPOTENT_WRITE = "IdempotentWrite"
    READ = "Read"
    WRITE = "Write"


class Component(StrEnum):
    """A kind of process that has rights of its own."""

    WORKER = "worker"
    APPLICATION = "application"
    READER = "reader"
    OPERATOR = "operator"
    LINK = "link"
    PUBLISH = "publish"
    INDEXER = "indexer"
    AUDIT = "audit"
    CONSOLE = "console"


class LinkSide(StrEnum):
    """The cluster of a link on which the rights are."""

    SOURCE = "source"
    TARGET = "target"


class Resource(NamedTuple):
    """A resource, or with `prefixed` all resources whose names begin with the name."""

    kind: ResourceKind
    name: str
    prefixed: bool = False

    def __str__(self) -> str:
        return f"{self.kind.value.replace('-', ' ')} {self.name}{'*' if self.prefixed else ''}"


class Right(NamedTuple):
    """Operations on a resource.

    Attributes:
        resource: the resource.
        operations: the operations, ascending.
        purpose: what the process does with the right, for people.
    """

    resource: Resource
    operations: tuple[Operation, ...]
    purpose: str

    @property
    def entries(self) -> Iterator[tuple[Resource, Operation]]:
        """A pair for each operation; each is one entry of Kafka's list."""
        return ((self.resource, one) for one in self.operations)


@dataclass(frozen=True)
class Names:
    """The names that a cluster's users choose.

    Attributes:
        topics: data topics; a name that ends in `*` means all topics with that beginning.
        groups: consumer groups of applications, in the same way.
        own_prefix: beginning of the names of Stilltide's own groups and transactional ids (C15).
        source: name of the cluster from which a link copies.
        target: name of the cluster to which a link copies, or the topic to which `topics` are
            published, with `*` as in `topics`.
        side: the cluster of the link on which the rights are.
        replicated: whether the worker carries the positions of the groups to other clusters (I).
    """

    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    own_prefix: str = PREFIX
    source: str = ""
    target: str = ""
    side: LinkSide = LinkSide.SOURCE
    replicated: bool = False


NEEDS: Mapping[Component, tuple[str, ...]] = MappingProxyType(
    {
        Component.WORKER: ("topics",),
        Component.APPLICATION: ("topics",),
        Component.READER: ("topics", "groups"),
        Component.OPERATOR: ("topics",),
        Component.LINK: ("topics", "source", "target"),
        Component.PUBLISH: ("topics", "target"),
        Component.INDEXER: ("topics",),
        Component.AUDIT: ("topics",),
        Component.CONSOLE: ("topics",),
    }
)
"""The names without which a component's rights are not known."""

_ALTER, _CREATE, _DELETE = Operation.ALTER, Operation.CREATE, Operation.DELETE
_ALTER_CONFIGS = Operation.ALTER_CONFIGS
_DESCRIBE, _DESCRIBE_CONFIGS = Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS
_READ, _WRITE = Operation.READ, Operation.WRITE


def rights(component: Component, names: Names) -> list[Right]:
    """The least rights of a component: nothing works without one of them, all works with them."""
    return list(_RIGHTS[component](names))


def entries(rights: Iterable[Right]) -> list[tuple[Resource, Operation]]:
    """Every single operation of some rights, each once."""
    return list(dict.fromkeys(entry for right in rights for entry in right.entries))


def _topic(name: str, *operations: Operation, purpose: str) -> Right:
    return Right(Resource(ResourceKind.TOPIC, name), operations, purpose)


def _chosen(
    kind: ResourceKind, names: Iterable[str], *operations: Operation, purpose: str
) -> Iterator[Right]:
    for name in names:
        resource = Resource(kind, name.removesuffix("*"), name.endswith("*"))
        yield Right(resource, operations, purpose)


def _own(kind: ResourceKind, name: str, *operations: Operation, purpose: str) -> Right:
    return Right(Resource(kind, name, prefixed=True), operations, purpose)


def _worker(names: Names) -> Iterator[Right]:
    yield Right(
        Resource(ResourceKind.TOPIC, PREFIX, prefixed=True),
        (_ALTER, _CREATE, _DELETE, _DESCRIBE_CONFIGS, _READ, _WRITE),
        "system topics: makes and checks them, adds coordinators, serves, trims",
    )
    prefix = names.own_prefix
    yield _own(ResourceKind.GROUP, prefix, _READ, purpose="the group of the workers")
    yield _own(ResourceKind.TRANSACTIONAL_ID, prefix, _WRITE, purpose="snapshots and indexes")
    if names.replicated:
        purpose = "end offsets, policies, and records that replicated groups have read"
        operations = (_DESCRIBE_CONFIGS, _READ)
        yield from _chosen(ResourceKind.TOPIC, names.topics, *operations, purpose=purpose)
        purpose = "claims, and positions of replicated groups"
        yield from _chosen(ResourceKind.GROUP, names.groups, _READ, purpose=purpose)
        return
    purpose = "end offsets of transactions, and policies (C18)"
    operations = (_DESCRIBE, _DESCRIBE_CONFIGS)
    yield from _chosen(ResourceKind.TOPIC, names.topics, *operations, purpose=purpose)
    purpose = "members of groups that acknowledge"
    yield from _chosen(ResourceKind.GROUP, names.groups, _DESCRIBE, purpose=purpose)


def _application(names: Names) -> Iterator[Right]:
    yield _topic(TXN_REQUESTS, _WRITE, purpose="opens and ends transactions")
    yield _topic(TXN_RESPONSES, _READ, purpose="answers")
    yield from _chosen(ResourceKind.TOPIC, names.topics, _WRITE, purpose="records of transactions")


def _reader(names: Names) -> Iterator[Right]:
    yield _topic(TXN_MARKERS, _READ, purpose="outcomes of transactions")
    yield _topic(TXN_SNAPSHOTS, _READ, purpose="outcomes of old transactions")
    yield _topic(REPLICATION_MARKERS, _READ, purpose="what its group read elsewhere")
    yield _topic(SNAPSHOT_REQUESTS, _WRITE, purpose="asks at an undecided record")
    yield _topic(ACK_REQUESTS, _WRITE, purpose="acknowledgements in transactions")
    yield _topic(TXN_RESPONSES, _READ, purpose="answers")
    yield from _chosen(ResourceKind.TOPIC, names.topics, _READ, purpose="records")
    yield from _chosen(ResourceKind.GROUP, names.groups, _READ, purpose="its group")


def _operator(names: Names) -> Iterator[Right]:
    system = Resource(ResourceKind.TOPIC, PREFIX, prefixed=True)
    yield Right(system, (_DESCRIBE, _DESCRIBE_CONFIGS), "topics check, and what there is")
    purpose = "lists and aborts transactions"
    yield _topic(OPERATOR_REQUESTS, _WRITE, purpose=purpose)
    yield _topic(OPERATOR_ACK_REQUESTS, _WRITE, purpose="acknowledgements in transactions")
    yield _topic(SNAPSHOT_REQUESTS, _WRITE, purpose="snapshot take")
    yield _topic(GROUP_REQUESTS, _WRITE, purpose="group reset, sync-now and snapshot-now")
    yield _topic(TXN_RESPONSES, _READ, purpose="answers")
    yield _topic(TXN_MARKERS, _READ, purpose="snapshot verify")
    yield _topic(TXN_SNAPSHOTS, _READ, purpose="snapshot list, show and verify")
    yield _topic(SETTINGS, _READ, _WRITE, purpose="coordinator batching, group enable")
    purpose = "native hanging, topics check"
    yield _topic(KAFKA_TRANSACTIONS, _DESCRIBE, _DESCRIBE_CONFIGS, purpose=purpose)
    yield _topic(KAFKA_OFFSETS, _DESCRIBE, _DESCRIBE_CONFIGS, purpose="topics check")
    yield from _state(names)
    purpose = "status: members and positions of groups; group reset: commits for a group"
    yield from _chosen(ResourceKind.GROUP, names.groups, _READ, purpose=purpose)
    purpose = "snapshot verify, native hanging, topics check"
    operations = (_DESCRIBE_CONFIGS, _READ)
    yield from _chosen(ResourceKind.TOPIC, names.topics, *operations, purpose=purpose)


def _link(names: Names) -> Iterator[Right]:
    yield from _link_source(names) if names.side is LinkSide.SOURCE else _link_target(names)


def _link_source(names: Names) -> Iterator[Right]:
    for name, purpose in (
        (TXN_MARKERS, "outcomes of transactions"),
        (TXN_SNAPSHOTS, "outcomes of old transactions"),
        (REPLICATION_MARKERS, "signals of groups"),
        (REPLICATION_POSITIONS, "what other links have copied here"),
    ):
        yield _topic(name, _DESCRIBE_CONFIGS, _READ, purpose=purpose)
    yield from _chosen(
        ResourceKind.TOPIC,
        names.topics,
        _DESCRIBE_CONFIGS,
        _READ,
        purpose="records, configs for the copy",
    )


def _link_target(names: Names) -> Iterator[Right]:
    for name in (TXN_MARKERS, TXN_SNAPSHOTS):
        purpose = "checks that the topic is as it should be"
        yield _topic(name, _DESCRIBE, _DESCRIBE_CONFIGS, purpose=purpose)
    for name, purpose in (
        (REPLICATION_MARKERS, "signals of groups"),
        (REPLICATION_POSITIONS, "what is copied"),
    ):
        yield _topic(name, _DESCRIBE_CONFIGS, _READ, _WRITE, purpose=purpose)
    yield from _chosen(
        ResourceKind.TOPIC,
        names.topics,
        _ALTER,
        _ALTER_CONFIGS,
        _CREATE,
        _READ,
        _WRITE,
        purpose="makes the topic, adds partitions, copies, follows configs, looks for what hangs",
    )
    yield _topic(KAFKA_TRANSACTIONS, _DESCRIBE, purpose="native transactions that are open")
    own = f"{names.own_prefix}link-{names.source}-{names.target}-"
    yield _own(ResourceKind.TRANSACTIONAL_ID, own, _WRITE, purpose="copies in native transactions")


def _publish(names: Names) -> Iterator[Right]:
    for name, purpose in (
        (TXN_MARKERS, "outcomes of transactions"),
        (TXN_SNAPSHOTS, "outcomes of old transactions"),
        (REPLICATION_MARKERS, "checks that the topic is as it should be"),
    ):
        yield _topic(name, _DESCRIBE_CONFIGS, _READ, purpose=purpose)
    purpose = "what is copied, by this publish and by others"
    yield _topic(REPLICATION_POSITIONS, _DESCRIBE_CONFIGS, _READ, _WRITE, purpose=purpose)
    purpose = "records, configs for the topic of the copies"
    yield from _chosen(ResourceKind.TOPIC, names.topics, _DESCRIBE_CONFIGS, _READ, purpose=purpose)
    yield from _chosen(
        ResourceKind.TOPIC,
        [names.target],
        _ALTER,
        _CREATE,
        _DESCRIBE_CONFIGS,
        _READ,
        _WRITE,
        purpose="makes the topic, adds partitions, copies, looks for what hangs",
    )
    yield _topic(KAFKA_TRANSACTIONS, _DESCRIBE, purpose="native transactions that are open")
    for topic in names.topics:
        end = "" if topic.endswith("*") else f":{names.target.removesuffix('*')}"
        own = f"{names.own_prefix}link-publish:{topic.removesuffix('*')}{end}"
        purpose = "copies in native transactions"
        yield _own(ResourceKind.TRANSACTIONAL_ID, own, _WRITE, purpose=purpose)


def _indexer(names: Names) -> Iterator[Right]:
    yield _topic(ABORTED_INDEX, _CREATE, _DESCRIBE_CONFIGS, _READ, _WRITE, purpose="the index")
    own = f"{names.own_prefix}aborted-index-"
    yield _own(ResourceKind.TRANSACTIONAL_ID, own, _WRITE, purpose="writes the index")
    yield from _chosen(
        ResourceKind.TOPIC, names.topics, _READ, purpose="records of native transactions"
    )


def _audit(names: Names) -> Iterator[Right]:
    yield _topic(TXN_MARKERS, _READ, purpose="outcomes of transactions")
    purpose = "outcomes of old transactions"
    yield _topic(TXN_SNAPSHOTS, _DESCRIBE_CONFIGS, _READ, purpose=purpose)
    yield _topic(ABORTED_INDEX, _READ, purpose="outcomes of native transactions")
    yield _topic(KAFKA_TRANSACTIONS, _DESCRIBE, purpose="native transactions that are open")
    purpose = "records, and configs of compacted topics"
    yield from _chosen(ResourceKind.TOPIC, names.topics, _DESCRIBE_CONFIGS, _READ, purpose=purpose)


def _console(names: Names) -> Iterator[Right]:
    system = Resource(ResourceKind.TOPIC, PREFIX, prefixed=True)
    yield Right(system, (_DESCRIBE,), "system topics: what there is")
    yield _topic(OPERATOR_REQUESTS, _WRITE, purpose="asks coordinators")
    yield _topic(OPERATOR_ACK_REQUESTS, _WRITE, purpose="asks pending-ack stores")
    yield _topic(TXN_RESPONSES, _READ, purpose="answers")
    yield _topic(TXN_MARKERS, _READ, purpose="outcomes of transactions")
    yield _topic(TXN_SNAPSHOTS, _DESCRIBE_CONFIGS, _READ, purpose="outcomes of old transactions")
    yield _topic(SETTINGS, _READ, purpose="which groups are replicated")
    yield _topic(KAFKA_TRANSACTIONS, _DESCRIBE, purpose="native transactions that are open")
    yield from _state(names)
    purpose = "status: members and positions of groups"
    yield from _chosen(ResourceKind.GROUP, names.groups, _DESCRIBE, purpose=purpose)
    purpose = "where readers wait, records, producers, configs"
    yield from _chosen(ResourceKind.TOPIC, names.topics, _DESCRIBE_CONFIGS, _READ, purpose=purpose)
    yield Right(Resource(ResourceKind.CLUSTER, CLUSTER_NAME), (_DESCRIBE,), "sizes of topics")


def _state(names: Names) -> Iterator[Right]:
    """What `stilltide status` reads in addition to what other commands of an operator read."""
    yield _topic(REPLICATION_MARKERS, _READ, purpose="status: signals of groups")
    yield _topic(REPLICATION_POSITIONS, _READ, purpose="status: what links have copied")
    yield _topic(ABORTED_INDEX, _READ, purpose="status: the index of native transactions")
    own = names.own_prefix
    yield _own(ResourceKind.GROUP, own, _DESCRIBE, purpose="status: members of the workers' group")


_RIGHTS = MappingProxyType(
    {
        Component.WORKER: _worker,
        Component.APPLICATION: _application,
        Component.READER: _reader,
        Component.OPERATOR: _operator,
        Component.LINK: _link,
        Component.PUBLISH: _publish,
        Component.INDEXER: _indexer,
        Component.AUDIT: _audit,
        Component.CONSOLE: _console,
    }
)
