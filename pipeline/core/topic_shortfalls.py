"""Compares topics with what they should be, and decides what a command may alter in them.

*Source*: docs/protocols C18, E10; `schemas.topics`.

*Invariants*: no alteration deletes a record, and `min.insync.replicas` rises only once there are as
many replicas as wanted: writes would stop as soon as one of fewer is away. Kafka forgets a topic's
eligible leader replicas (KIP-966) when the config changes; with so many in sync there are none.

Refuses: to alter `cleanup.policy` and numbers of partitions, to shorten `retention.ms`, and to
alter Kafka's own topics.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import NamedTuple

from stilltide.schemas.topics import (
    CLEANUP_POLICY,
    MIN_INSYNC_REPLICAS,
    PartitionReplicas,
    Replicas,
    TopicSpec,
    same_config,
    serves,
)

PARTITIONS = "partitions"
REPLICATION_FACTOR = "replication.factor"

KAFKAS_OWN = ("__consumer_offsets", "__transaction_state")
"""Kafka's topics that hold the offsets of groups and the state of native transactions: Stilltide's
consumers and writers work only as long as these do."""

_RETENTION_MS = "retention.ms"


class TopicState(NamedTuple):
    """An existing topic: the placement of each partition, by number, and all configs."""

    placements: tuple[PartitionReplicas, ...]
    configs: Mapping[str, str | None]


class Remedy(Enum):
    """Who can mend a shortfall, and how."""

    ALTER = "alter"
    """`stilltide topics check --apply` alters the config."""

    REASSIGN = "reassign"
    """An operator moves replicas with kafka-reassign-partitions.sh."""

    BY_HAND = "by hand"
    """Only an operator can decide."""


class Shortfall(NamedTuple):
    """One property of a topic that is not as it should be.

    Attributes:
        what: `partitions`, `replication.factor` or the name of a config.
        expected, actual: both values, as Kafka writes them.
        remedy: who can mend the shortfall.
        step: the next step of an operator, where the remedy alone does not name it.
    """

    what: str
    expected: str
    actual: str
    remedy: Remedy
    step: str = ""


def alter_command(topic: str, configs: Mapping[str, str]) -> str:
    """Kafka's own command that sets configs of a topic."""
    pairs = ",".join(f"{name}={_quoted(value)}" for name, value in configs.items())
    return f"kafka-configs.sh --alter --topic {topic} --add-config {pairs}"


def unwanted_configs(spec: TopicSpec, configs: Mapping[str, str | None]) -> dict[str, str]:
    """The wanted configs, with the wanted values, whose present values do not serve (E10)."""
    return {
        name: wanted
        for name, wanted in spec.wanted.items()
        if not serves(name, configs.get(name), wanted)
    }


def shortfalls(spec: TopicSpec, present: TopicState) -> list[Shortfall]:
    """All that falls short in an existing topic; `spec` has replicas."""
    assert spec.replicas is not None
    return [
        *_partitions(spec, present),
        *_factor(spec.replicas.factor, present),
        *_min_insync(spec.name, spec.replicas, present),
        *(
            _required(spec.name, name, required, present.configs.get(name))
            for name, required in spec.configs.items()
            if not same_config(present.configs.get(name), required)
        ),
        *(
            Shortfall(name, wanted, str(present.configs.get(name)), Remedy.ALTER)
            for name, wanted in unwanted_configs(spec, present.configs).items()
        ),
    ]


def compacting(topic: str, present: TopicState, seen_ms: int | None) -> Shortfall:
    """A topic compacts that holds records of coordinated transactions (C18).

    Args:
        topic: name of the topic.
        present: the topic.
        seen_ms: since when a worker has seen that, milliseconds since 1970; None: no one has.
    """
    since = "no worker that runs has seen it yet"
    if seen_ms is not None:
        moment = datetime.fromtimestamp(seen_ms / 1000, UTC)
        since = f"seen since {moment:%Y-%m-%d %H:%M:%S} UTC"
    step = (
        f"committed values are deleted ({since}): "
        f"{alter_command(topic, {CLEANUP_POLICY: 'delete'})}"
        ", and publish the topic to one that compacts"
    )
    actual = str(present.configs.get(CLEANUP_POLICY))
    return Shortfall(CLEANUP_POLICY, "delete", actual, Remedy.BY_HAND, step)


def alterations(shortfalls: Iterable[Shortfall]) -> dict[str, str]:
    """The configs that a command may set, with their values."""
    return {
        shortfall.what: shortfall.expected
        for shortfall in shortfalls
        if shortfall.remedy is Remedy.ALTER
    }


def _partitions(spec: TopicSpec, present: TopicState) -> list[Shortfall]:
    count = len(present.placements)
    if count == spec.partition_count:
        return []
    step = (
        f"configure {count} partitions: keys and transactions are placed by the number, "
        "which cannot be altered while the topic has records"
    )
    return [Shortfall(PARTITIONS, str(spec.partition_count), str(count), Remedy.BY_HAND, step)]


def _factor(factor: int, present: TopicState) -> list[Shortfall]:
    least = _least_replicas(present)
    if least >= factor:
        return []
    return [Shortfall(REPLICATION_FACTOR, str(factor), str(least), Remedy.REASSIGN)]


def _min_insync(topic: str, wanted: Replicas, present: TopicState) -> list[Shortfall]:
    least = wanted.min_insync
    actual = int(present.configs.get(MIN_INSYNC_REPLICAS) or 1)
    if actual >= least:
        return []
    short = Shortfall(MIN_INSYNC_REPLICAS, str(least), str(actual), Remedy.ALTER)
    if _least_replicas(present) < wanted.factor or _least_in_sync(present) < least:
        step = f"check again once {wanted.factor} replicas are in sync: writes would stop before"
    elif topic in KAFKAS_OWN:
        step = alter_command(topic, {MIN_INSYNC_REPLICAS: str(least)})
    else:
        return [short]
    return [short._replace(remedy=Remedy.BY_HAND, step=step)]


def _least_replicas(present: TopicState) -> int:
    return min(len(one.replicas) for one in present.placements)


def _least_in_sync(present: TopicState) -> int:
    return min(len(one.in_sync) for one in present.placements)


def _required(topic: str, name: str, required: str, actual: str | None) -> Shortfall:
    short = Shortfall(name, required, str(actual), Remedy.ALTER)
    command = alter_command(topic, {name: required})
    if name == CLEANUP_POLICY:
        step = f"records may be missing already; if that does not matter: {command}"
    elif name == _RETENTION_MS and not _is_longer(required, actual):
        step = f"deletes records older than {required} ms: {command}"
    else:
        return short
    return short._replace(remedy=Remedy.BY_HAND, step=step)


def _is_longer(retention_ms: str, than_ms: str | None) -> bool:
    return int(retention_ms) < 0 or 0 <= int(than_ms or -1) <= int(retention_ms)


def _quoted(value: str) -> str:
    return f"[{value}]" if "," in value else value
