"""What clients prepare, who decides, and what goes wrong with that; in some worlds only."""

import random

from tests.simulation.plan import (
    DATABASE,
    FAULTS_END_S,
    Client,
    Deciding,
    Decision,
    Fault,
    Operation,
    Preparation,
    Reader,
)

PREPARES = 0.4
"""Part of the worlds in which clients prepare."""

PREPARED = 0.25
"""Part of the transactions of such a world that are prepared."""


def draw_preparations(clients: tuple[Client, ...], seed: int) -> tuple[Client, ...]:
    """The clients, some of whose transactions are prepared, in some worlds."""
    chance = random.Random(f"prepared {seed}")
    if chance.random() > PREPARES:
        return clients

    def prepared(operation: Operation) -> Operation:
        if operation.is_plain or operation.end == "late" or chance.random() > PREPARED:
            return operation
        return operation._replace(preparation=_preparation(chance))

    return tuple(it._replace(operations=tuple(map(prepared, it.operations))) for it in clients)


def _preparation(chance: random.Random) -> Preparation:
    held_s = chance.choice((0.0, 0.0, 0.3, 2.0, 6.0))
    is_late = chance.random() < 0.1
    if chance.random() < 0.4:
        row = chance.choice(("commit", "commit", "commit", "commit", "raise", "rollback"))
        return Preparation(held_s, is_late=is_late, row=row)
    decisions: tuple[Decision, ...] = ("commit", "commit", "abort")
    first = chance.choice(decisions)
    holders = (first, first if chance.random() < 0.7 else chance.choice(decisions))
    ends = chance.choice((first, first, chance.choice(decisions), ""))
    holders = holders[: chance.choice((0, 1, 2, 2))]
    return Preparation(held_s, ends, holders, is_late)


def draw_deciding(
    clients: tuple[Client, ...], readers: tuple[Reader, ...], seed: int
) -> tuple[Deciding, ...]:
    """The programs that decide what others have prepared, on each cluster where some have."""
    chance = random.Random(f"deciding {seed}")
    programs: list[Deciding] = []
    members_prepare = any(it.prepares for it in readers)
    for cluster in sorted({it.cluster for it in (*clients, *readers)}):
        of_cluster = [
            operation.preparation
            for client in clients
            if client.cluster == cluster
            for operation in client.operations
            if operation.preparation is not None
        ]
        if members_prepare or any(not it.row for it in of_cluster):
            programs.append(Deciding("operator", cluster, 0, chance.choice((3.0, 8.0, 12.0))))
        holders = max((len(it.holders) for it in of_cluster), default=0)
        programs += [Deciding("holder", cluster, number, 0.0) for number in range(holders)]
        if members_prepare or any(it.row for it in of_cluster):
            programs += [
                Deciding("resolver", cluster, number, chance.choice((0.2, 1.0, 5.0)))
                for number in range(chance.choice((1, 2, 2)))
            ]
    return tuple(programs)


_AT = {
    "client": (("begin", DATABASE), ("insert", DATABASE), ("commit", DATABASE)),
    "resolver": (("decide", DATABASE), ("read", DATABASE), ("delete", DATABASE)),
    "holder": (("stilltide.txn-requests", ""),),
    "operator": (),
}
"""Moments at which much depends on what programs do next, by role: topics, or statements."""


def draw_deciding_faults(
    clients: tuple[Client, ...], deciding: tuple[Deciding, ...], seed: int
) -> tuple[Fault, ...]:
    """Faults of the database, and of programs that prepare or decide, mostly at such moments."""
    chance = random.Random(f"deciding faults {seed}")
    if not deciding:
        return ()
    names = [(it.name, "client", it.cluster) for it in clients]
    names += [(it.name, it.role, it.cluster) for it in deciding]
    faults: list[Fault] = []
    for _ in range(chance.choice((0, 3, 6, 10))):
        name, role, cluster = chance.choice(names)
        at_s, for_s = chance.uniform(0.0, FAULTS_END_S - 5), chance.choice((0.05, 1.0, 4.0))
        kind = chance.choice(("kill", "kill", "freeze", "mute", "cut", "deaf"))
        fault = Fault(at_s, kind, name, for_s, cluster)
        if moments := _AT[role]:
            topic, where = chance.choice(moments)
            fault = fault._replace(topic=topic, cluster=where or cluster)
            fault = fault._replace(after_s=chance.choice((0.0, 0.0, 0.01, 0.3)))
        faults.append(fault)
    if not any(it.role == "resolver" for it in deciding):
        return tuple(it for it in faults if it.cluster != DATABASE)
    faults += _orphans(names, chance)
    faults += _slow_clients(clients, seed)
    for _ in range(chance.choice((0, 0, 1, 2))):
        at_s, for_s = chance.uniform(0.0, FAULTS_END_S - 5), chance.choice((0.1, 1.0, 4.0))
        of = chance.choice([it for it in names if it[1] in {"client", "resolver"}])
        topic = chance.choice(_AT[of[1]])[0] if chance.random() < 0.7 else ""
        faults.append(Fault(at_s, "crash", DATABASE, for_s, DATABASE, topic, of[0]))
    return tuple(faults)


def _slow_clients(clients: tuple[Client, ...], seed: int) -> list[Fault]:
    """Clients stop within `enlist` for so long that a resolver decides what they have prepared."""
    chance = random.Random(f"slow clients {seed}")
    return [
        Fault(at_s, "freeze", it.name, 3.0, DATABASE, "enlist", after_s=chance.uniform(0.0, 0.2))
        for it in clients
        for at_s in range(0, round(FAULTS_END_S) - 5, 5)
    ]


def _orphans(names: list[tuple[str, str, str]], chance: random.Random) -> list[Fault]:
    """Clients die when their database has committed, and resolvers at their next steps."""
    faults: list[Fault] = []
    for name, role, _ in names:
        if role not in {"client", "resolver"} or chance.random() < 0.4:
            continue
        topic = "commit" if role == "client" else chance.choice(("decide", "delete", "delete"))
        faults += [  # a fault waits four seconds for its moment
            Fault(at_s, "kill", name, 1.0, DATABASE, topic)
            for at_s in range(0, round(FAULTS_END_S) - 4, 4)
        ]
    return faults
