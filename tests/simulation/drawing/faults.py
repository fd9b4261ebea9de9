"""What goes wrong: at any time, or at the moments of which much depends."""

import random

from stilltide.schemas.topics import TXN_SNAPSHOTS
from tests.simulation.plan import FAULTS_END_S, OUTPUT, TOPICS, Fault, Reader


def draw_faults(
    chance: random.Random,
    programs: dict[str, set[str]],
    clusters: tuple[str, ...],
    readers: tuple[Reader, ...],
    seed: int,
) -> tuple[Fault, ...]:
    """All faults of a world, in order of time."""
    faults = [*_faults(chance, programs, clusters), *_moments(programs, seed)]
    faults += [*_delays(programs, seed), *_pairs(programs, seed)]
    faults += [*_dead_letters(readers, seed), *_late_acknowledgements(readers, seed)]
    faults += [*_late_snapshots(programs, seed), *_full_topics(clusters, seed)]
    faults += [*_away_members(readers, programs, seed), *_late_members(readers, seed)]
    return tuple(sorted(faults))


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


def _delays(programs: dict[str, set[str]], seed: int) -> tuple[Fault, ...]:
    """Requests of a program arrive when another one has taken its place, and before they are late.

    So a worker, or a member of a group, writes what it has decided before its successor began.
    """
    chance = random.Random(f"delays {seed}")
    faults: list[Fault] = []
    for _ in range(chance.choice((0, 1, 2, 4))):
        target = chance.choice([it for it in sorted(programs) if "worker" in it or "reader" in it])
        role = "worker" if "worker" in target else "reader"
        cluster = chance.choice(sorted(programs[target]))
        topic = chance.choice(("", _MOMENTS[role][0], *_MOMENTS[role]))
        at_s, for_s = chance.uniform(0.0, FAULTS_END_S - 12), chance.uniform(6.0, 7.9)
        faults.append(Fault(at_s, "deaf", target, for_s, cluster, topic))
    return tuple(faults)


def _pairs(programs: dict[str, set[str]], seed: int) -> tuple[Fault, ...]:
    """A worker dies before its answers arrive, and the clients sleep until its successor is done.

    The worker has said that it has taken the requests, so nobody takes them again by itself.
    """
    chance = random.Random(f"pairs {seed}")
    if chance.random() > 0.35:
        return ()
    cluster = chance.choice(sorted(set[str]().union(*programs.values())))
    here = [it for it in sorted(programs) if cluster in programs[it]]
    at_s, topic = chance.uniform(1.0, FAULTS_END_S - 18), chance.choice(_MOMENTS["worker"][:2])
    faults: list[Fault] = []
    for worker in (it for it in here if "worker" in it):  # those that own a coordinator
        faults += [
            Fault(at_s, "deaf", worker, 9.0, cluster, topic),
            Fault(at_s, "kill", worker, chance.choice((0.05, 1.0)), cluster, topic, "", 0.8),
            *(
                Fault(at_s, "freeze", it, 13.0, cluster, topic, worker)
                for it in here
                if "client" in it
            ),
        ]
    return tuple(faults)


def _dead_letters(readers: tuple[Reader, ...], seed: int) -> tuple[Fault, ...]:
    """Members die while a message becomes a dead letter, at any step."""
    chance = random.Random(f"dead letters {seed}")
    faults: list[Fault] = []
    for reader in readers:
        for topic in reader.dead_letters:
            for _ in range(chance.choice((0, 1, 2))):
                at_s, after_s = chance.uniform(0.0, FAULTS_END_S - 5), chance.uniform(0.0, 0.1)
                kind = chance.choice(("kill", "freeze"))
                fault = Fault(at_s, kind, reader.name, 7.0, reader.cluster, topic)
                faults.append(fault._replace(after_s=after_s))
    return tuple(faults)


def _late_acknowledgements(readers: tuple[Reader, ...], seed: int) -> tuple[Fault, ...]:
    """An acknowledgement arrives after its transaction has timed out, from a present member."""
    chance = random.Random(f"late acknowledgements {seed}")
    faults: list[Fault] = []
    for reader in (it for it in readers if it.mode == "transactions"):
        for _ in range(chance.choice((0, 1, 2))):
            at_s, for_s = chance.uniform(0.0, FAULTS_END_S - 10), reader.timeout_s + 1.5
            topic = "stilltide.txn-requests"
            faults.append(Fault(at_s, "deaf", reader.name, for_s, reader.cluster, topic))
    return tuple(faults)


def _late_snapshots(programs: dict[str, set[str]], seed: int) -> tuple[Fault, ...]:
    """A snapshot arrives after the worker that wrote it has died, and another one has written."""
    chance = random.Random(f"late snapshots {seed}")
    if chance.random() > 0.3:
        return ()
    worker = chance.choice([it for it in sorted(programs) if "worker" in it])
    cluster = worker.partition("-")[0]
    at_s, for_s = chance.uniform(0.0, FAULTS_END_S - 12), chance.uniform(6.5, 9.0)
    late = Fault(at_s, "deaf", worker, for_s, cluster, TXN_SNAPSHOTS)
    return late, late._replace(kind="kill", for_s=1.0)


def _full_topics(clusters: tuple[str, ...], seed: int) -> tuple[Fault, ...]:
    """Topics that take no records, mostly until writers have given them up."""
    chance = random.Random(f"full topics {seed}")
    faults: list[Fault] = []
    for _ in range(chance.choice((0, 0, 1, 2))):
        written = _LOST_IN if chance.random() < 0.5 else _MOMENTS["worker"]
        cluster, topic = chance.choice(clusters), chance.choice(written)
        at_s, for_s = chance.uniform(0.0, FAULTS_END_S - 12), chance.choice((1.0, 9.0, 12.0))
        faults.append(Fault(at_s, "full", topic, for_s, cluster))
    return tuple(faults)


def _away_members(
    readers: tuple[Reader, ...], programs: dict[str, set[str]], seed: int
) -> tuple[Fault, ...]:
    """The members of a group die before they commit what they have acknowledged.

    Before they are back, their stores write bases, and have other owners: only the bases know then.
    """
    chance = random.Random(f"away members {seed}")
    acknowledging = [it for it in readers if it.mode == "transactions"]
    if not acknowledging or chance.random() > 0.3:
        return ()
    reader = chance.choice(acknowledging)
    at_s, after_s = chance.uniform(1.0, FAULTS_END_S - 16), chance.choice((0.1, 0.3, 0.6))
    topic, cluster = "stilltide.ack-requests", reader.cluster
    of_group = [it.name for it in readers if (it.group, it.cluster) == (reader.group, cluster)]
    workers = [it for it in sorted(programs) if "worker" in it and cluster in programs[it]]
    return (
        *(Fault(at_s, "kill", it, 12.0, cluster, topic, reader.name, after_s) for it in of_group),
        *(Fault(at_s, "kill", it, 0.1, cluster, topic, reader.name, after_s + 7) for it in workers),
    )


def _late_members(readers: tuple[Reader, ...], seed: int) -> tuple[Fault, ...]:
    """What a member has asked for arrives when another member has done the same messages.

    Its transaction has not timed out by then.
    """
    chance = random.Random(f"late members {seed}")
    faults: list[Fault] = []
    for reader in (it for it in readers if it.mode == "transactions" and it.timeout_s >= 8):
        for _ in range(chance.choice((0, 2, 3))):
            at_s, for_s = chance.uniform(1.0, FAULTS_END_S - 12), chance.uniform(6.4, 7.8)
            topic = chance.choice(("stilltide.txn-requests", OUTPUT))
            faults.append(Fault(at_s, "deaf", reader.name, for_s, reader.cluster, topic))
    return tuple(faults)
