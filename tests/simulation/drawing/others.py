"""Programs that are neither clients nor readers."""

import random

from tests.simulation.plan import FAULTS_END_S, TOPICS, Act, Link, Other, Reader


def draw_others(
    seed: int, clusters: tuple[str, ...], links: tuple[Link, ...], readers: tuple[Reader, ...]
) -> tuple[Other, ...]:
    """Other programs, at times: on the one cluster, or each on one of several."""
    is_plain = not links and not any(it.seeks for it in readers)
    others = [_natives(seed), _strangers(seed), _operators(seed, recreates=is_plain)]
    if len(clusters) > 1:
        chance = random.Random(f"others {seed}")
        others = [it._replace(cluster=chance.choice(clusters)) for it in others]
    return tuple(it for it in others if it.acts)


def _natives(seed: int) -> Other:
    chance = random.Random(f"native {seed}")
    count = chance.choice((0, 0, 4, 12))
    acts = [
        Act(
            chance.uniform(0.0, FAULTS_END_S - 3),
            chance.choice(("commit", "commit", "abort", "hang")),
            number,
            tuple(_place(chance) for _ in range(chance.choice((1, 2, 3)))),
            chance.choice((0.0, 0.1, 1.0)),
        )
        for number in range(count)
    ]
    hanging = [it._replace(for_s=it.for_s + 3) if it.kind == "hang" else it for it in sorted(acts)]
    return Other("native", "native", tuple(hanging))


_INTRUDED = (
    "stilltide.txn-log",
    "stilltide.txn-log",
    "stilltide.pending-ack-log",
    "stilltide.txn-markers",
    "stilltide.txn-requests",
    "stilltide.txn-responses",
    "stilltide.ack-requests",
)
"""Topics to which no stranger has to write; partition 0 is there in every world."""


def _strangers(seed: int) -> Other:
    chance = random.Random(f"stranger {seed}")
    acts: list[Act] = []
    for number in range(chance.choice((0, 0, 3, 8))):
        kind = chance.choice(("malformed", "foreign", "native"))
        place = _place(chance) if kind == "malformed" else (chance.choice(_INTRUDED), 0)
        acts.append(Act(chance.uniform(2.0, FAULTS_END_S), kind, number, (place,)))
    return Other("stranger", "stranger", tuple(sorted(acts)))


def _operators(seed: int, *, recreates: bool) -> Other:
    chance = random.Random(f"operator {seed}")
    kinds = ["abort", "abort", "clean", "batching", "retain", "retain", "retain"]
    acts: list[Act] = []
    for number in range(chance.choice((0, 4, 10))):
        kind = chance.choice(kinds)
        place = _place(chance)
        acts.append(Act(chance.uniform(2.0, FAULTS_END_S), kind, number, (place,)))
    for kind in ("coordinators", "partitions"):
        if chance.random() < 0.15:
            place = "payments", TOPICS["payments"]
            acts.append(Act(chance.uniform(2.0, FAULTS_END_S), kind, len(acts), (place,)))
    return Other(
        "operator", "operator", tuple(sorted((*acts, *_recreations(seed, recreates=recreates))))
    )


def _recreations(seed: int, *, recreates: bool) -> list[Act]:
    """A topic is deleted and made again, at times.

    It is away for longer than a member stays that does not notice: such a member would commit the
    position that it had in the former topic, which Kafka takes.
    """
    chance = random.Random(f"recreations {seed}")
    if not recreates or chance.random() > 0.3:
        return []
    place, for_s = _place(chance), chance.uniform(8.0, 9.0)
    return [Act(chance.uniform(2.0, FAULTS_END_S - 10), "recreate", 0, (place,), for_s)]


def _place(chance: random.Random) -> tuple[str, int]:
    topic = chance.choice(sorted(TOPICS))
    return topic, chance.randrange(TOPICS[topic])
