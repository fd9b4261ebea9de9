"""How many batches of a partition librdkafka has on their way, and what its thread does meanwhile.

A plain and an idempotent producer write the same records to one partition of librdkafka's own mock
broker, which answers after a fixed time, and flush. With several batches on their way the flush
takes about one answer. Batches of the size that a link writes, and larger ones.

Sizes: RECORDS, ANSWER_MS, ROUNDS.
"""

import os
import time
from collections.abc import Mapping
from statistics import median
from typing import Any

from confluent_kafka import Producer

from tests.bench.harness import report, size
from tests.bench.threads import thread_times

THREAD = "rdk:broker"
"""The thread that writes batches and reads answers."""

HEADERS: list[tuple[str, str | bytes | None]] = [("origin", bytes(17))]
PRODUCERS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"batch.size": 512 * 1024},
    "idempotent": {"batch.size": 512 * 1024, "enable.idempotence": True},
    "idempotent, 1 MB": {"batch.size": 1_000_000, "enable.idempotence": True},
}


async def run() -> None:
    """Measures and reports."""
    records, answer_ms = size("RECORDS", 20_000), size("ANSWER_MS", 100)
    rounds = size("ROUNDS", 3)
    rows = [
        {"producer": name, **_flushed(options, records, answer_ms, rounds)}
        for name, options in PRODUCERS.items()
    ]
    report("in_flight", rows)


def _flushed(
    options: Mapping[str, Any], records: int, answer_ms: int, rounds: int
) -> dict[str, float]:
    producer = Producer(
        {
            "bootstrap.servers": "mock",
            "test.mock.num.brokers": 1,
            "test.mock.broker.rtt": answer_ms,
            "log_level": 0,
            "linger.ms": 5,
            "queue.buffering.max.messages": 0,
            **options,
        }
    )
    _write(producer, 1)
    found = [_write(producer, records) for _ in range(rounds)]
    return {
        "flush_ms": median(flush_s for flush_s, _ in found) * 1000,
        "thread_ms": median(used_s for _, used_s in found) * 1000,
    }


def _write(producer: Producer, records: int) -> tuple[float, float]:
    """Seconds of a flush of so many records, and of the thread's processor time meanwhile."""
    for _ in range(records):
        producer.produce("log", bytes(100), None, 0, headers=HEADERS)
    began, used_before_s = time.perf_counter(), _used_s()
    assert producer.flush(60) == 0
    return time.perf_counter() - began, _used_s() - used_before_s


def _used_s() -> float:
    return thread_times({"client": os.getpid()}).get(("client", THREAD), 0.0)
