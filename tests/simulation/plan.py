"""What a world does, drawn from its seed before the run: operations of programs, and faults.

*Invariants*: a plan is plain data, so a failing plan can be made smaller by leaving parts out.
"""

import random
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

End = Literal["commit", "abort", "leave", "raise", "late"]
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
        end: `late` commits when the transaction times out; `leave` goes on after that.
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
        stay_s: how long the member stays until it leaves and joins again; 0: for good.
        undecided_max: the limit of records behind an undecided one.
        deliveries_max: deliveries after which a message moves to the dead letters; 0: never.
        moves: when the member leaves its cluster, and for which other one.
    """

    name: str
    group: str
    topics: tuple[str, ...]
    mode: Mode
    cluster: str = CLUSTERS[0]
    stay_s: float = 0.0
    undecided_max: int = 10_000
    deliveries_max: int = 0
    moves: tuple[tuple[float, str], ...] = ()

    @property
    def dead_letters(self) -> tuple[str, ...]:
        """The topics of the dead letters of its group."""
        return tuple(f"{it}-{self.group}-DLQ" for it in self.topics if self.deliveries_max)


class Link(NamedTuple):
    """A program that copies: from cluster to cluster, or, with one cluster, a publish.

    Attributes:
        source, target: clusters; the same for a publish of `orders`.
    """

    name: str
    source: str
    target: str


class Act(NamedTuple):
    """One thing that another program does.

    Attributes:
        at_s: virtual time of its begin.
        kind: what; the modules of `workload` know the kinds.
        number: number among the acts of the program.
        writes: topics and partitions that are concerned.
        for_s: how long it lasts.
    """

    at_s: float
    kind: str
    number: int
    writes: tuple[tuple[str, int], ...] = ()
    for_s: float = 0.0


class Other(NamedTuple):
    """A program that is neither client nor reader."""

    name: str
    role: Literal["native", "stranger", "operator"]
    acts: tuple[Act, ...]
    cluster: str = CLUSTERS[0]


class Fault(NamedTuple):
    """Something that goes wrong.

    Attributes:
        at_s: virtual time of its begin.
        kind: `kill`, `freeze`, `cut`, `mute` (requests arrive, answers do not), `deaf` (the other
            way round), `slow`, `jump` (the wall clock of the process is two hours wrong), `down`
            (the brokers of a cluster), `lose` (a delivery report), `err` (a wrong assignment of
            workers), `rebalance`, `blind` (no record of `topic` arrives).
        target: a program; of `down`, `err` and `rebalance` a cluster; of `lose` a topic.
        cluster: the cluster of which a program is cut off, or in which a report is lost.
        for_s: how long; of a kill: until the program runs again.
        topic: the fault waits until a record of the program has been appended to this topic; of
            `blind`: see there.
    """

    at_s: float
    kind: str
    target: str
    for_s: float
    cluster: str = CLUSTERS[0]
    topic: str = ""


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
    others: tuple[Other, ...]
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
    clients = _late(_clients(chance, transactions, names), seed)
    readers = _readers(chance, names)
    readers = _limited((*readers, *_leaving(readers, seed)), seed)
    links = _links(chance, names)
    workers = chance.choice((1, 2, 2, 3)) if clusters == 1 else chance.choice((1, 1, 2))
    programs = {f"{name}-worker-{number}": {name} for name in names for number in range(workers)}
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
        others=_others(seed, links) if clusters == 1 else (),
        faults=tuple(sorted((*_faults(chance, programs, names), *_moments(programs, seed)))),
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


_MOMENTS = {
    "worker": ("stilltide.txn-log", "stilltide.txn-markers", "stilltide.pending-ack-log"),
    "client": ("stilltide.txn-requests", "orders"),
    "reader": ("stilltide.txn-requests", "stilltide.ack-requests", OUTPUT, "orders-group-0-DLQ"),
}
"""Topics to which programs append at the moments of which much depends on what they do next."""


def _moments(programs: dict[str, set[str]], seed: int) -> tuple[Fault, ...]:
    """Faults that befall a program right after it has appended to a topic, and blind owners."""
    chance = random.Random(f"moments {seed}")
    faults: list[Fault] = []
    for _ in range(chance.choice((0, 0, 2, 4, 8))):
        workers = [it for it in sorted(programs) if "worker" in it]
        target = chance.choice(workers if chance.random() < 0.6 else sorted(programs))
        topics = next((it for role, it in _MOMENTS.items() if role in target), None)
        if topics is None:
            continue
        cluster = chance.choice(sorted(programs[target]))
        at_s, topic = chance.uniform(0.0, FAULTS_END_S - 5), chance.choice(topics)
        for_s = chance.choice((0.05, 1.0, 5.0, 9.5))
        if "worker" in target and chance.random() < 0.3:
            faults += [
                Fault(at_s, "blind", target, for_s, cluster, topic),
                Fault(at_s, "err", cluster, 0.0, cluster),
            ]
        else:
            kind = chance.choice(("kill", "kill", "freeze", "mute", "cut", "deaf"))
            faults.append(Fault(at_s, kind, target, for_s, cluster, topic))
    return tuple(faults)


def _late(clients: tuple[Client, ...], seed: int) -> tuple[Client, ...]:
    """The clients, some of whose commits come when the coordinator times the transaction out."""
    chance = random.Random(f"late {seed}")

    def ended(operation: Operation) -> Operation:
        late = operation.end == "commit" and chance.random() < 0.05
        return operation._replace(end="late") if late else operation

    return tuple(it._replace(operations=tuple(map(ended, it.operations))) for it in clients)


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
            undecided_max=chance.choice((3, 10_000)), deliveries_max=deliveries.get(it.group, 0)
        )
        for it in readers
    )


def _others(seed: int, links: tuple[Link, ...]) -> tuple[Other, ...]:
    """Other programs of the first cluster, at times."""
    others = [_natives(seed), _strangers(seed), _operators(seed, is_copied=bool(links))]
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


def _operators(seed: int, *, is_copied: bool) -> Other:
    chance = random.Random(f"operator {seed}")
    kinds = ["abort", "abort", "clean", "batching", "retain", "retain", "retain"]
    if is_copied:
        kinds = kinds[:4]  # a copy may be behind what groups have read
    acts: list[Act] = []
    for number in range(chance.choice((0, 4, 10))):
        kind = chance.choice(kinds)
        place = _place(chance)
        acts.append(Act(chance.uniform(2.0, FAULTS_END_S), kind, number, (place,)))
    for kind in ("coordinators", "partitions"):
        if chance.random() < 0.15:
            place = "payments", TOPICS["payments"]
            acts.append(Act(chance.uniform(2.0, FAULTS_END_S), kind, len(acts), (place,)))
    return Other("operator", "operator", tuple(sorted(acts)))


def _place(chance: random.Random) -> tuple[str, int]:
    topic = chance.choice(sorted(TOPICS))
    return topic, chance.randrange(TOPICS[topic])
