"""How many replicas new topics get, and what an operator can do about a topic with fewer.

*Source*: docs/protocols E10; Kafka's `default.replication.factor` and `min.insync.replicas`. Every
writer waits for all in-sync replicas, so with two of them in sync the loss of one broker loses no
record. A plan for `kafka-reassign-partitions.sh` is a JSON object with `version` 1 and
`partitions`; the first replica of a partition is its preferred leader.

*Invariants*: by a plan a partition keeps its replicas and gets as many further ones as it lacks,
each on another broker; the plan is a function of its arguments.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from stilltide.pipeline.errors import ConfigError
from stilltide.schemas.topics import (
    MIN_INSYNC_REPLICAS,
    Broker,
    BrokerFigures,
    PartitionReplicas,
    Replicas,
)

Automatic = Literal["auto"]
AUTO: Automatic = "auto"

_SAFE_FACTOR = 3
"""What Kafka's documentation advises: one broker may fail while another one is maintained."""

_SAFE_IN_SYNC = 2
"""The replicas in sync with which the loss of one broker loses no acknowledged record."""


class WantedReplicas(NamedTuple):
    """The settings `replication_factor` and `min_insync_replicas`; `auto` follows the cluster."""

    replication_factor: int | Automatic = AUTO
    min_insync_replicas: int | Automatic = AUTO

    def check(self, factor: int | None = None) -> None:
        """Checks that topics of `factor` replicas could be written to.

        Without `factor` the setting `replication_factor` is checked, unless that is `auto`.

        Raises:
            ConfigError: `min_insync_replicas` is greater than the replication factor.
        """
        if factor is None and self.replication_factor != AUTO:
            factor = self.replication_factor
        least = self.min_insync_replicas
        if factor is not None and least != AUTO and least > factor:
            origin = " on this cluster" if self.replication_factor == AUTO else ""
            raise ConfigError(
                f"min_insync_replicas is {least}, but replication_factor is {factor}{origin}",
                detail="no record could ever be acknowledged",
                hint=f"set min_insync_replicas to {factor} at most, or raise replication_factor",
            )

    def on(self, cluster: BrokerFigures) -> Replicas:
        """The replicas of topics that are created on this cluster.

        Raises:
            ConfigError: `min_insync_replicas` is greater than the replication factor.
        """
        factor = self.replication_factor
        if factor == AUTO:
            default = cluster.default_replicas
            factor = default if default > 1 else min(_SAFE_FACTOR, _expected_brokers(cluster))
        self.check(factor)
        least = self.min_insync_replicas
        if least == AUTO:
            least = _SAFE_IN_SYNC if factor >= _SAFE_FACTOR else 1
        return Replicas(factor, least)


def complete(cluster: BrokerFigures) -> BrokerFigures:
    """The figures of the cluster once every broker that it knows is up."""
    return cluster._replace(brokers=max(cluster.brokers, cluster.registered))


def _expected_brokers(cluster: BrokerFigures) -> int:
    """The brokers that will hold replicas: also a broker that is down, if it can be spared now.

    The controller gives replicas to brokers that are down. Two that are up are as many as must be
    in sync of three.
    """
    spare = cluster.brokers >= _SAFE_IN_SYNC
    return complete(cluster).brokers if spare else cluster.brokers


AUTOMATIC = WantedReplicas()
"""The default of both settings."""


def next_step(topic: str, present: Replicas, wanted: Replicas) -> str | None:
    """The commands that give an existing topic enough replicas; None when it has enough.

    Args:
        topic: name of the topic.
        present: the topic's replicas now.
        wanted: the least that the topic should have.
    """
    steps: list[str] = []
    if present.factor < wanted.factor:
        steps.append(
            f"assign {wanted.factor} replicas to each partition: "
            "kafka-reassign-partitions.sh --execute --reassignment-json-file FILE"
        )
    if present.min_insync < wanted.min_insync:
        steps.append(
            f"kafka-configs.sh --alter --topic {topic} "
            f"--add-config {MIN_INSYNC_REPLICAS}={wanted.min_insync}"
        )
    return "; then ".join(steps) or None


_VERSION = 1


def reassignment(
    topics: Mapping[str, Sequence[PartitionReplicas]], factor: int, brokers: Sequence[Broker]
) -> dict[str, Any]:
    """The plan that gives each partition at least `factor` replicas; empty if all have them.

    New replicas go to racks that have none of the partition, then to the brokers with the fewest
    replicas of these topics. Of a partition in the plan, the broker that leads the fewest becomes
    the preferred leader.

    Args:
        topics: placements by topic and number of the partition; all of them count for the balance.
        factor: replicas of a partition; fewer if there are fewer brokers.
        brokers: the brokers that may get replicas.
    """
    racks = {one.id: one.rack for one in brokers}
    loads = Counter(one for each in topics.values() for it in each for one in it.replicas)
    led = Counter(it.replicas[0] for each in topics.values() for it in each if it.replicas)
    planned: list[dict[str, Any]] = []
    for topic in sorted(topics):
        for number, placement in enumerate(topics[topic]):
            replicas = list(placement.replicas)
            added = _added(replicas, factor, racks, loads)
            if not added:
                continue
            loads.update(added)
            replicas += added
            if placement.replicas:
                led[placement.replicas[0]] -= 1
            leader = min(replicas, key=lambda one: (led[one], replicas.index(one)))
            led[leader] += 1
            replicas.remove(leader)
            planned.append({"topic": topic, "partition": number, "replicas": [leader, *replicas]})
    return {"version": _VERSION, "partitions": planned}


def _added(
    replicas: Iterable[int], factor: int, racks: Mapping[int, str | None], loads: Counter[int]
) -> list[int]:
    """The brokers that get replicas of a partition with these `replicas`."""
    taken, added = list(replicas), list[int]()
    while len(taken) < factor:
        free = [one for one in racks if one not in taken]
        if not free:
            break
        used = {racks.get(one) for one in taken} - {None}
        best = min(free, key=lambda one: (racks[one] in used, loads[one], one))
        taken.append(best)
        added.append(best)
    return added
