"""Members of groups, and their habits."""

import random

from tests.simulation.plan import FAULTS_END_S, Mode, Reader


def draw_readers(chance: random.Random, clusters: tuple[str, ...], seed: int) -> tuple[Reader, ...]:
    """All members of the groups of a world."""
    readers = _readers(chance, clusters)
    return _habits(_limited((*readers, *_leaving(readers, seed)), seed), seed)


def _readers(chance: random.Random, clusters: tuple[str, ...]) -> tuple[Reader, ...]:
    modes: tuple[Mode, ...] = ("positions", "acknowledgements", "transactions")
    mode = chance.choice(modes)
    topics = chance.choice((("orders",), ("orders", "payments")))
    cluster = chance.choice(clusters)
    moves: list[tuple[float, str]] = []
    if len(clusters) > 1:
        times_s = sorted(chance.uniform(0.0, FAULTS_END_S) for _ in range(chance.choice((1, 2, 4))))
        moves = [(at_s, chance.choice(clusters)) for at_s in times_s]
    return tuple(
        Reader(f"reader-{number}", "group-0", topics, mode, cluster, moves=tuple(moves))
        for number in range(2)
    )


def _leaving(readers: tuple[Reader, ...], seed: int) -> tuple[Reader, ...]:
    """Further members of the groups, that leave and join again, at times."""
    chance = random.Random(f"leaving {seed}")
    return tuple(
        reader._replace(name=f"{reader.cluster}-reader-leaving", stay_s=chance.uniform(0.5, 4.0))
        for reader in {it.group: it for it in readers}.values()
        if chance.random() < 0.4
    )


def _limited(readers: tuple[Reader, ...], seed: int) -> tuple[Reader, ...]:
    """The readers, some of which keep few records behind an undecided one, or give up messages."""
    chance = random.Random(f"limits {seed}")
    lone = all(it.cluster == readers[0].cluster and not it.moves for it in readers)
    deliveries = {
        it.group: chance.choice((0, 0, 2, 3)) for it in readers if lone and it.mode != "positions"
    }
    return tuple(
        it._replace(
            undecided_max=chance.choice((3, 10_000)),
            deliveries_max=deliveries.get(it.group, 0),
            timeout_s=chance.choice((2.0, 8.0)),
        )
        for it in readers
    )


def _habits(readers: tuple[Reader, ...], seed: int) -> tuple[Reader, ...]:
    """The readers, of which all of a group acknowledge cumulatively, or seek, at times."""
    chance = random.Random(f"habits {seed}")
    is_cumulative, seeks = chance.random() < 0.4, chance.random() < 0.3
    prepares = chance.random() < 0.4
    return tuple(
        it._replace(
            is_cumulative=is_cumulative and it.mode != "positions",
            seeks=seeks,
            prepares=prepares and it.mode == "transactions",
        )
        for it in readers
    )
