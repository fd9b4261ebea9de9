"""Plans which brokers get further replicas, as input of kafka-reassign-partitions.sh.

*Source*: Kafka's `ReassignPartitionsCommand`: a JSON object with `version` 1 and `partitions`; the
first replica of a partition is its preferred leader.

*Invariants*: a partition keeps its replicas and gets as many further ones as it lacks, each on
another broker; the plan is a function of its arguments.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stilltide.schemas.topics import Broker, PartitionReplicas

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
    held = Counter(one for each in topics.values() for it in each for one in it.replicas)
    led = Counter(it.replicas[0] for each in topics.values() for it in each if it.replicas)
    planned: list[dict[str, Any]] = []
    for topic in sorted(topics):
        for number, placement in enumerate(topics[topic]):
            replicas = list(placement.replicas)
            added = _added(replicas, factor, racks, held)
            if not added:
                continue
            held.update(added)
            replicas += added
            if placement.replicas:
                led[placement.replicas[0]] -= 1
            leader = min(replicas, key=lambda one: (led[one], replicas.index(one)))
            led[leader] += 1
            replicas.remove(leader)
            planned.append({"topic": topic, "partition": number, "replicas": [leader, *replicas]})
    return {"version": _VERSION, "partitions": planned}


def _added(
    replicas: Iterable[int], factor: int, racks: Mapping[int, str | None], held: Counter[int]
) -> list[int]:
    """The brokers that get replicas of a partition with these `replicas`."""
    taken, added = list(replicas), list[int]()
    while len(taken) < factor:
        free = [one for one in racks if one not in taken]
        if not free:
            break
        used = {racks.get(one) for one in taken} - {None}
        best = min(free, key=lambda one: (racks[one] in used, held[one], one))
        taken.append(best)
        added.append(best)
    return added
