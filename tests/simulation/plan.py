"""What a world does, drawn from its seed before the run: operations of programs, and faults.

*Invariants*: a plan is plain data, so a failing plan can be made smaller by leaving parts out.
"""

import random
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

End = Literal["commit", "abort", "leave", "raise"]
Mode = Literal["positions", "acknowledgements", "transactions"]

TOPICS = {"orders": 3, "payments": 2}
"""Topics that clients write to, with their partition counts; links copy them."""

CLUSTERS = ("a", "b", "c")
"""Names of clusters; a plan has the first of them."""

PUBLISHED = "orders-published"
"""Topic into which a publish copies `orders`."""

OUTPUT = "receipts"
"""Topic of the transactions of members."""


class Operation(NamedTuple):
    """One transaction, or plain writes, of a client.

    Attributes:
        number: number among the operations of the plan.
        writes: topic and partition of each write; None: the client chooses by key.
        pauses_s: virtual time before each write, and before the end.
        is_plain: whether the writes are no transaction.
    """

    number: int
    writes: tuple[tuple[str, int | None], ...]
    pauses_s: tuple[float, ...]
    end: End
    is_plain: bool = False


class Client(NamedTuple):
    """A program that writes: its operations, of which `width` are under way at a time."""

    name: str
    operations: tuple[Operation, ...]
    width: int
    timeout_s: float
    cluster: str = CLUSTERS[0]


class Reader(NamedTuple):
    """A member of a group.

    Attributes:
        mode: `positions` commits positions, `acknowledgements` acknowledges messages one by one or
            cumulatively, `transactions` acknowledges in transactions that also write.
    """

    name: str
    group: str
    topics: tuple[str, ...]
    mode: Mode
    cluster: str = CLUSTERS[0]


class Link(NamedTuple):
    """A program that copies: from cluster to cluster, or, with one cluster, a publish.

    Attributes:
        source, target: clusters; the same for a publish of `orders`.
    """

    name: str
    source: str
    target: str


class Fault(NamedTuple):
    """Something that goes wrong.

    Attributes:
        at_s: virtual time of its begin.
        kind: `kill`, `freeze`, `cut`, `mute` (requests arrive, answers do not), `deaf` (the other
            way round), `slow`, `jump` (the wall clock of the process is two hours wrong), `down`
            (the brokers of a cluster), `lose` (a delivery report), `err` (a wrong assignment of
            workers), `rebalance`.
        target: a program; of `down`, `err` and `rebalance` a cluster; of `lose` a topic.
        cluster: the cluster of which a program is cut off, or in which a report is lost.
        for_s: how long; of a kill: until the program runs again.
    """

    at_s: float
    kind: str
    target: str
    for_s: float
    cluster: str = CLUSTERS[0]


@dataclass(frozen=True)
class Plan:
    """One world.

    Attributes:
        workers: workers of each cluster.
    """

    seed: int
    clusters: tuple[str, ...]
    workers: int
    coordinators: int
    partitions: int
    clients: tuple[Client, ...]
    readers: tuple[Reader, ...]
    links: tuple[Link, ...]
    faults: tuple[Fault, ...]
    snapshot_changes_max: int
    snapshot_interval_ms: int
    marker_retention_ms: int

    def without(self, faults: tuple[Fault, ...]) -> "Plan":
        """The same world with these faults only."""
        return replace(self, faults=faults)


FAULTS_END_S = 20.0
"""Virtual time after which nothing goes wrong any more."""


def draw(seed: int, *, transactions: int = 60, clusters: int = 1) -> Plan:
    """The plan of a seed: the standard world, of one cluster or several."""
    chance = random.Random(seed)
    names = CLUSTERS[:clusters]
    clients = _clients(chance, transactions, names)
    readers = _readers(chance, names)
    links = _links(chance, names)
    workers = chance.choice((1, 2, 2, 3)) if clusters == 1 else chance.choice((1, 1, 2))
    programs = {f"{name}-worker-{number}": {name} for name in names for number in range(workers)}
    programs |= {program.name: {program.cluster} for program in (*clients, *readers)}
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
        faults=_faults(chance, programs, names),
        snapshot_changes_max=chance.choice((1, 2, 4, 10, 1000)),
        snapshot_interval_ms=chance.choice((1000, 1000, 10_000)),
        marker_retention_ms=chance.choice((0, 0, 0, 2000, 60_000)),
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


def _readers(chance: random.Random, clusters: tuple[str, ...]) -> tuple[Reader, ...]:
    modes: tuple[Mode, ...] = ("positions", "acknowledgements", "transactions")
    readers: list[Reader] = []
    for cluster in clusters:
        mode = chance.choice(modes)
        topics = chance.choice((("orders",), ("orders", "payments")))
        group = f"group-{cluster}"
        for number in range(2 if len(clusters) == 1 else 1):
            name = f"{cluster}-reader-{number}"
            readers.append(Reader(name, group, topics, mode, cluster))
    return tuple(readers)


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


_KINDS = (
    *("kill", "kill", "kill", "freeze", "freeze", "cut", "mute", "deaf", "slow"),
    *("down", "lose", "err", "jump", "rebalance"),
)
_OF_CLUSTERS = {"down", "err", "rebalance"}
_LOST_IN = (
    *TOPICS,
    "stilltide.txn-log",
    "stilltide.txn-markers",
    "stilltide.txn-requests",
    "stilltide.txn-responses",
    "stilltide.pending-ack-log",
    "stilltide.replication-positions",
    "stilltide.replication-markers",
)
"""Topics of which a delivery report may be lost."""


def _faults(
    chance: random.Random, programs: dict[str, set[str]], clusters: tuple[str, ...]
) -> tuple[Fault, ...]:
    """Faults of programs, each with the clusters it is connected to, and of clusters."""
    faults: list[Fault] = []
    for _ in range(chance.choice((0, 3, 8, 15, 25))):
        kind = chance.choice(_KINDS)
        cluster = chance.choice(clusters)
        target = cluster
        if kind == "lose":
            target = chance.choice(_LOST_IN)
        elif kind not in _OF_CLUSTERS:
            target = chance.choice(sorted(programs))
            cluster = chance.choice(sorted(programs[target]))
        at_s = chance.uniform(0.0, FAULTS_END_S)
        for_s = min(chance.expovariate(chance.choice((0.2, 1.0))), FAULTS_END_S - at_s)
        faults.append(Fault(at_s, kind, target, for_s, cluster))
    return tuple(sorted(faults))
