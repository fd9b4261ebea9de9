"""Which brokers get further replicas."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from stilltide.pipeline.core.replicas import reassignment
from stilltide.schemas.topics import Broker, PartitionReplicas

BROKERS = [Broker(1), Broker(2), Broker(3)]


def on(*replicas: int) -> PartitionReplicas:
    """A partition on these brokers, all in sync."""
    return PartitionReplicas(replicas, replicas)


def test_a_topic_of_one_broker_is_spread_over_three():
    """Replicas and preferred leaders are balanced, and every present replica is kept."""
    plan = reassignment({"t": [on(1)] * 3, "u": [on(1)] * 3}, 3, BROKERS)
    assert plan["version"] == 1
    assert {(one["topic"], one["partition"]) for one in plan["partitions"]} == {
        (topic, number) for topic in "tu" for number in range(3)
    }
    assert all(sorted(one["replicas"]) == [1, 2, 3] for one in plan["partitions"])
    leaders = Counter(one["replicas"][0] for one in plan["partitions"])
    assert leaders == {1: 2, 2: 2, 3: 2}


def test_enough_replicas_are_left_alone():
    """A partition with as many replicas, or more, is not in the plan; nor is any if all have."""
    plan = reassignment({"t": [on(1, 2), on(3)]}, 2, BROKERS)
    assert [one["partition"] for one in plan["partitions"]] == [1]
    assert reassignment({"t": [on(1, 2, 3)]}, 2, BROKERS)["partitions"] == []


def test_replicas_go_to_other_racks_first():
    """Brokers of one rack fail together."""
    brokers = [Broker(1, "a"), Broker(2, "a"), Broker(3, "b")]
    (one,) = reassignment({"t": [on(1)]}, 2, brokers)["partitions"]
    assert sorted(one["replicas"]) == [1, 3]


placements = st.lists(
    st.lists(st.integers(1, 5), min_size=1, max_size=4, unique=True), min_size=1, max_size=12
)


@given(held=placements, factor=st.integers(1, 4), count=st.integers(1, 6))
def test_every_plan_is_legal_and_balanced(held: list[list[int]], factor: int, count: int):
    """No broker twice, none that is down gains, none lost; new replicas differ by one at most."""
    brokers = [Broker(number + 1) for number in range(count)]
    before = [on(*replicas) for replicas in held]
    plan = reassignment({"t": before}, factor, brokers)
    gained: Counter[int] = Counter()
    planned = {one["partition"]: one["replicas"] for one in plan["partitions"]}
    for number, placement in enumerate(before):
        replicas = planned.get(number, [*placement.replicas])
        up = {broker.id for broker in brokers}
        possible = len(up | {*placement.replicas})
        assert len(replicas) == len({*replicas}) >= min(factor, possible)
        assert {*placement.replicas} <= {*replicas}
        new = {*replicas} - {*placement.replicas}
        assert new <= up
        gained.update(new)
        assert (number in planned) == bool(new)
    if all(placement.replicas == before[0].replicas for placement in before):
        kept = {*before[0].replicas}
        counts = [gained[broker.id] for broker in brokers if broker.id not in kept]
        assert max(counts, default=0) - min(counts, default=0) <= 1


def test_the_same_input_gives_the_same_plan():
    """The order of topics and brokers does not matter."""
    topics = {"t": [on(1)] * 2, "u": [on(2)] * 2}
    other = dict(reversed(topics.items()))
    assert reassignment(topics, 3, BROKERS) == reassignment(other, 3, BROKERS[::-1])
