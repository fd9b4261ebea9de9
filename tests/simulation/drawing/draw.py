"""The plan of a world: clients and links, and what the other modules draw."""

import random

from tests.simulation.drawing.faults import draw_faults
from tests.simulation.drawing.others import draw_others
from tests.simulation.drawing.prepared import (
    draw_deciding,
    draw_deciding_faults,
    draw_preparations,
)
from tests.simulation.drawing.readers import draw_readers
from tests.simulation.plan import CLUSTERS, TOPICS, Client, End, Link, Operation, Plan


def draw(seed: int, *, transactions: int = 60, clusters: int = 1) -> Plan:
    """The plan of a seed: the standard world, of one cluster or several."""
    chance = random.Random(seed)
    names = CLUSTERS[:clusters]
    clients = _by_line(_late(_clients(chance, transactions, names), seed), seed)
    clients = draw_preparations(clients, seed)
    readers = draw_readers(chance, names, seed)
    deciding = draw_deciding(clients, readers, seed)
    links = _shared(_links(chance, names), seed)
    workers = chance.choice((1, 2, 2, 3)) if clusters == 1 else chance.choice((1, 1, 2))
    programs = {
        f"{name}-worker-{number}": {
            name,
            *(it.source for it in links if it.shared and it.target == name),
        }
        for name in names
        for number in range(workers)
    }
    programs |= {client.name: {client.cluster} for client in clients}
    programs |= {reader.name: set(names) for reader in readers}
    programs |= {link.name: {link.source, link.target} for link in links}
    return Plan(
        seed,
        names,
        workers,
        coordinators=chance.choice((1, 2)),
        partitions=chance.choice((1, 2)),
        clients=clients,
        readers=readers,
        links=links,
        others=draw_others(seed, names, links, readers),
        faults=tuple(
            sorted(
                (
                    *draw_faults(chance, programs, names, readers, seed),
                    *draw_deciding_faults(clients, deciding, seed),
                )
            )
        ),
        snapshot_changes_max=chance.choice((1, 2, 4, 10, 1000)),
        snapshot_interval_ms=chance.choice((1000, 1000, 10_000)),
        marker_retention_ms=chance.choice((0, 0, 0, 2000, 60_000)),
        deciding=deciding,
    )


def _clients(
    chance: random.Random, transactions: int, clusters: tuple[str, ...]
) -> tuple[Client, ...]:
    count = 3
    numbers = iter(range(transactions))
    return tuple(
        Client(
            f"client-{client}",
            tuple(_operation(chance, next(numbers)) for _ in range(transactions // count)),
            width=chance.choice((1, 2, 4)),
            timeout_s=chance.choice((3.0, 8.0, 20.0)),
            cluster=clusters[client % len(clusters)],
        )
        for client in range(count)
    )


def _operation(chance: random.Random, number: int) -> Operation:
    count = chance.choice((1, 1, 2, 3, 5))
    writes = tuple(_write(chance) for _ in range(count))
    pauses_s = tuple(
        chance.choice((0.0, 0.0, chance.expovariate(5), chance.expovariate(0.5)))
        for _ in range(count + 1)
    )
    ends: tuple[End, ...] = ("commit", "commit", "commit", "commit", "abort", "raise", "leave")
    return Operation(number, writes, pauses_s, chance.choice(ends), chance.random() < 0.1)


def _write(chance: random.Random) -> tuple[str, int | None]:
    topic = chance.choice(sorted(TOPICS))
    return topic, chance.choice((None, chance.randrange(TOPICS[topic])))


def _links(chance: random.Random, clusters: tuple[str, ...]) -> tuple[Link, ...]:
    """Links in both directions, twice at times: of two, one is fenced. And a publish, at times."""
    ends = [
        (source, target)
        for source in clusters
        for target in clusters
        if source != target or chance.random() < 0.3
    ]
    counts = [chance.choice((1, 1, 2)) for _ in ends]
    return tuple(
        Link(f"{source}-{target}-link-{number}", source, target)
        for (source, target), count in zip(ends, counts, strict=True)
        for number in range(count)
    )


def _shared(links: tuple[Link, ...], seed: int) -> tuple[Link, ...]:
    """The links, some of which the workers of their target share."""
    chance = random.Random(f"shared {seed}")
    ends = sorted({(it.source, it.target) for it in links if it.source != it.target})
    shared = [it for it in ends if chance.random() < 0.4]
    return tuple(it._replace(shared=(it.source, it.target) in shared) for it in links)


def _late(clients: tuple[Client, ...], seed: int) -> tuple[Client, ...]:
    """The clients, some of whose commits come when the coordinator times the transaction out."""
    chance = random.Random(f"late {seed}")

    def ended(operation: Operation) -> Operation:
        late = operation.end == "commit" and chance.random() < 0.05
        return operation._replace(end="late") if late else operation

    return tuple(it._replace(operations=tuple(map(ended, it.operations))) for it in clients)


def _by_line(clients: tuple[Client, ...], seed: int) -> tuple[Client, ...]:
    """The clients, some of which ask coordinators by direct lines."""
    chance = random.Random(f"lines {seed}")
    return tuple(it._replace(direct_line=chance.random() < 0.4) for it in clients)
