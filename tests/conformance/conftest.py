"""A broker whose logs are known record by record: some were made by hand, some by producers."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from py4j.java_gateway import JavaGateway

from stilltide.connectors.local.cluster import LocalCluster
from stilltide.schemas.native.transactions import NO_PRODUCER_ID, Control
from stilltide.schemas.values import TopicPartition
from tests.conformance.clients import Client, Positions, Seen, java, java_consumer
from tests.support.native.batch_bytes import encode
from tests.support.native.log import NativeLog, Piece, grow

HISTORIES = 10
STEPS = 160
TURNS = 45
_WAIT_S = 240
_GENERATED = "generated"
_WRITTEN = "written"


@dataclass(frozen=True)
class World:
    """A running broker, and what a reader of committed data must see on it."""

    bootstrap: str
    log_dir: Path
    logs: dict[TopicPartition, NativeLog]
    """Made by hand, then recovered by the broker as after a crash."""
    written: dict[TopicPartition, dict[int, bool]]
    """By producers: offset to whether it committed."""
    ends: dict[TopicPartition, int]
    """Last stable offsets."""

    def starts(self, rng: random.Random) -> Positions:
        """Anywhere in every log."""
        return {
            data: rng.randint(self.logs[data].start if data in self.logs else 0, end)
            for data, end in self.ends.items()
        }

    def first(self) -> Positions:
        """The log starts."""
        return {data: self.logs[data].start if data in self.logs else 0 for data in self.ends}

    def expected(self, starts: Positions) -> Seen:
        """The committed offsets from there on."""
        return {
            data: self.logs[data].committed(start, self.ends[data])
            if data in self.logs
            else [it for it, committed in self.written[data].items() if committed and it >= start]
            for data, start in starts.items()
        }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The broker; started twice, because its logs are exchanged while it is down."""
    directory = tmp_path_factory.mktemp("conformance")
    logs = {TopicPartition(_GENERATED, n): history(n) for n in range(HISTORIES)}
    with LocalCluster("a", directory, fast_start=True) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        kept = {"retention.ms": "-1"}
        topics = [NewTopic(_GENERATED, HISTORIES, 1, config=kept), NewTopic(_WRITTEN, 1, 1)]
        for made in admin.create_topics(topics).values():
            made.result(_WAIT_S)
        written = write(cluster.bootstrap)
        cluster.stop()
        (log_dir,) = {path.parent for path in directory.rglob(f"{_GENERATED}-0")}
        for data, log in logs.items():
            replace(log_dir / f"{data.topic}-{data.partition}", log)
        crash(log_dir)
        cluster.start()
        ends = {data: log.stable for data, log in logs.items()}
        data = TopicPartition(_WRITTEN, 0)
        ends[data] = written.pop(-1)
        yield World(cluster.bootstrap, log_dir, logs, {data: written}, ends)


@pytest.fixture(scope="module")
def gateway() -> Iterator[JavaGateway]:
    """One JVM for all questions to Kafka's client for Java."""
    with java() as made:
        yield made


@pytest.fixture(scope="module")
def java_client(gateway: JavaGateway) -> Client:
    """The Java consumer."""
    return partial(java_consumer, gateway)


def history(number: int) -> NativeLog:
    """Raw, compacted, trimmed, or both; every other one ends with all transactions decided."""
    rng = random.Random(number)
    log = NativeLog()
    grow(log, rng.randrange, producers=1 + number % 5, steps=STEPS)
    if number % 2:
        for producer in list(log.open):
            log.mark(producer, rng.choice([Control.ABORT, Control.COMMIT]))
    if number >= HISTORIES // 3:
        # Histories 3, 4, ...: compacted; from 7 on some markers are left without their record.
        log.compact(rng.randrange, empty_markers=emptied(number))
        log.produce_outside(NO_PRODUCER_ID, 1)  # the cleaner never takes the end of a log
    if number % 3 == 2:
        log.trim(log.stable // 3)
    log.start = log.pieces[0].base
    return log


def emptied(number: int) -> bool:
    """Whether a history holds control batches without record."""
    return number >= HISTORIES * 2 // 3


def write(bootstrap: str) -> dict[int, bool]:
    """Four producers take turns: two transactional, one that fences another, one idempotent.

    Returns the fate of each record by offset, and under -1 the end offset.
    """
    rng = random.Random(1)
    offsets: dict[int, list[int]] = {}
    fates: dict[int, bool] = {}
    open_: dict[int, int] = {}
    producers = [_transactional(bootstrap, name) for name in ("a", "b")]
    plain = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})

    def produce(producer: Producer, txn: int) -> None:
        found = offsets.setdefault(txn, [])
        for _ in range(rng.randint(1, 3)):
            producer.produce(
                _WRITTEN, b"v", partition=0, callback=lambda _, it: found.append(it.offset())
            )
        assert producer.flush(_WAIT_S) == 0

    for step in range(TURNS):
        which = rng.randrange(3)
        if which == 2:
            produce(plain, -step)
            fates[-step] = True
        elif which not in open_:
            producers[which].begin_transaction()
            open_[which] = 1 + step
            produce(producers[which], open_[which])
        else:
            txn, ending = open_[which], rng.randrange(5)
            if ending < 2:
                produce(producers[which], txn)
                continue
            del open_[which]
            fates[txn] = ending == 2
            if ending == 2:
                producers[which].commit_transaction(_WAIT_S)
            elif ending == 3:
                producers[which].abort_transaction(_WAIT_S)
            else:
                # Its successor fences it: the broker aborts, with another epoch in the marker.
                producers[which] = _transactional(bootstrap, "ab"[which])
    for name in ("a", "b"):
        # What is open aborts; and it waits for every marker, which an answer to an end does not.
        _transactional(bootstrap, name)
    fates.update(dict.fromkeys(open_.values(), False))
    produce(plain, -1000)
    fates[-1000] = True
    found = {offset: fates[txn] for txn, known in offsets.items() for offset in known}
    return {**dict(sorted(found.items())), -1: max(found) + 1}


def _transactional(bootstrap: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(_WAIT_S)
    return producer


def replace(directory: Path, log: NativeLog) -> None:
    """Puts a history in the place of what lies in a partition's directory."""
    for path in directory.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    epochs = marker_epochs(log.pieces)
    data = b"".join(encode(piece, epoch=epochs[piece.base]) for piece in log.pieces)
    (directory / f"{log.pieces[0].base:020}.log").write_bytes(data)


def marker_epochs(pieces: list[Piece]) -> dict[int, int]:
    """By base offset: each marker raises its producer's epoch before it is written (KIP-890)."""
    current: dict[int, int] = {}
    found: dict[int, int] = {}
    for piece in pieces:
        if piece.control is not None:
            current[piece.producer] = current.get(piece.producer, 0) + 1
        found[piece.base] = current.get(piece.producer, 0)
    return found


def crash(log_dir: Path) -> None:
    """Has the broker recover its logs: it walks their batches and makes the indexes again."""
    (log_dir / ".kafka_cleanshutdown").unlink()
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
        (log_dir / name).unlink()
