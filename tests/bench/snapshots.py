"""What a million aborted transactions of one partition cost the core of the snapshots, no broker.

Markers are folded from their bytes as a writer reads them; the first snapshot is composed, 1000
aborts more, the next one; then another writer recovers, and a reader. RSS is of a process of its
own that does nothing else.
"""

import multiprocessing
import os
import random
import time
from collections.abc import Iterable, Iterator
from typing import Any

from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.core.snapshots.buffer import DataPosition
from stilltide.pipeline.core.snapshots.effects import ReadPositions, WriterEffect, WriteSnapshots
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits, SnapshotWriter
from stilltide.schemas.coordinator import markers
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.snapshots.snapshots import PartKey, decode_key
from stilltide.schemas.values import EndOffset, Offset, TopicPartition, TxnId
from tests.bench.harness import report, rss_mib
from tests.support.snapshots.recovered import recover

ABORTED = 1_000_000
MORE = 1000
COORDINATORS = 4
BATCH = 1000
DATA = TopicPartition("bench", 0)
TOPIC_ID = bytes(16)
END = EndOffset(100_000_000)
LOOKUPS = 1_000_000
WRITE_S_MAX = 10.0
RECOVER_S_MAX = 5.0
RSS_MIB_MAX = 250.0
LOOKUP_US_MAX = 2.0

LogRecord = tuple[Offset, bytes | None, bytes | None]


def abort_markers(count: int, first: int) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of markers; one transaction in about a hundred aborts."""
    rng = random.Random(first)
    sequences = [first * 100] * COORDINATORS
    for _ in range(count):
        coordinator = rng.randrange(COORDINATORS)
        sequences[coordinator] += rng.randrange(1, 200)
        txn = TxnId(coordinator, sequences[coordinator])
        marker = Marker(DATA, txn, False, EndOffset(0), END, 0, TOPIC_ID)
        yield markers.encode_key(DATA, txn), markers.encode_value(marker)


def new_writer(log: Iterable[LogRecord], start: int) -> SnapshotWriter:
    """A writer that recovers from a snapshot log."""
    limits = SnapshotLimits(changes_max=10 * ABORTED)  # snapshots are taken when we say so
    table = recover(0, log)
    return SnapshotWriter(0, table, Offset(start), nonce=b"n", limits=limits, now_ms=0)


def fold(writer: SnapshotWriter, found: Iterable[tuple[bytes, bytes]]) -> None:
    """Reads markers in batches, from their bytes."""
    batch: list[tuple[Offset, Any]] = []
    offset = writer.position
    for key, value in found:
        batch.append((offset, markers.decode(key, value)))
        offset = Offset(offset + 1)
        if len(batch) == BATCH:
            writer.markers_read(batch, 0)
            batch.clear()
    writer.markers_read(batch, 0)


def take(writer: SnapshotWriter, log: list[LogRecord], end: EndOffset) -> int:
    """A snapshot without coordinators; how many parts it writes."""
    effects: list[WriterEffect] = writer.requested(1, DATA, 0)
    (read,) = effects
    assert isinstance(read, ReadPositions)
    found = {DATA: DataPosition(TOPIC_ID, EndOffset(0), end, end)}
    writer.positions_read(read.counter, found, {}, 0)
    (write,) = writer.marker_end_read(read.counter, EndOffset(writer.position), 0)
    assert isinstance(write, WriteSnapshots)
    log += [(Offset(len(log) + n), *record) for n, record in enumerate(write.records)]
    writer.snapshots_written(write.counter, 0)
    return sum(isinstance(decode_key(key), PartKey) for key, _ in write.records)


def timed(work: Any, *arguments: Any) -> tuple[Any, float]:
    """What a call returns, and its seconds."""
    began = time.perf_counter()
    result = work(*arguments)
    return result, time.perf_counter() - began


def lookup_us(log: list[LogRecord]) -> float:
    """One question to a reader's snapshot, half of them about aborted ones."""
    snapshot = recover(0, log).snapshot(DATA, TOPIC_ID)
    assert snapshot is not None
    ids = [(one, sequence) for part in recover(0, log).parts(DATA) for one, sequence in _ids(part)]
    asked = random.Random(1).choices(ids, k=LOOKUPS // 2)
    asked += [(coordinator, sequence + 1) for coordinator, sequence in asked]
    random.Random(2).shuffle(asked)
    visible = snapshot.visible
    began = time.perf_counter()
    for coordinator, sequence in asked:
        visible(5, coordinator, sequence)
    return (time.perf_counter() - began) / len(asked) * 1e6


def _ids(part: dict[int, list[int]]) -> Iterator[tuple[int, int]]:
    return ((one, sequence) for one, held in part.items() for sequence in held)


def hold(log: list[LogRecord], start: int, answer: Any) -> None:
    """In a process of its own: a writer recovers."""
    writer = new_writer(log, start)
    answer.send((rss_mib(os.getpid()), len(writer.buffers[DATA].aborted)))


def writer_rss_mib(log: list[LogRecord], start: int) -> float:
    """Memory of a process that holds a recovered writer."""
    context = multiprocessing.get_context("spawn")
    answer, other = context.Pipe(duplex=False)
    process = context.Process(target=hold, args=(log, start, other))
    process.start()
    held, count = answer.recv()
    process.join()
    assert count == ABORTED + MORE
    return held


async def run() -> None:
    """Measures, prints and writes the case."""
    log: list[LogRecord] = []
    writer = new_writer(log, 0)
    say(f"snapshots: {ABORTED} markers")
    first = list(abort_markers(ABORTED, 0))
    _, fold_s = timed(fold, writer, first)
    del first
    parts, compose_s = timed(take, writer, log, END)
    first_bytes = sum(len(value or b"") for _, _, value in log)
    fold(writer, abort_markers(MORE, ABORTED))
    more_parts, next_s = timed(take, writer, log, EndOffset(END + 1))
    position = writer.position
    del writer
    recovered, recover_s = timed(new_writer, log, position)
    assert len(recovered.buffers[DATA].aborted) == ABORTED + MORE
    rows = [
        _row("write", fold_s + compose_s, WRITE_S_MAX, "s"),
        _row("recover", recover_s, RECOVER_S_MAX, "s"),
        _row("rss", writer_rss_mib(log, position), RSS_MIB_MAX, "MiB"),
        _row("lookup", lookup_us(log), LOOKUP_US_MAX, "us"),
    ]
    more = {
        "parts": parts,
        "bytes": first_bytes,
        "compose_s": round(compose_s, 3),
        "next_parts": more_parts,
        "next_s": round(next_s, 4),
    }
    report("snapshots", rows, **more)
    say(f"snapshots: {more}")


def _row(setting: str, ours: float, limit: float, unit: str) -> dict[str, Any]:
    ratio = limit / ours
    return {"setting": setting, "ours": ours, "baseline": limit, "ratio": ratio, "unit": unit}
