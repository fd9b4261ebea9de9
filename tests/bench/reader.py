"""A read-committed subscription against the plain confluent-kafka consumer, over the same topic.

Transactions of 10 records, as many open at once, one in a hundred aborted. A snapshot tells of all
but the last 1000 transactions of a partition, as old as a writer lets it become, and markers of the
rest. Records are the demo's events. Both sides do the same with each one they are given: decode its
JSON and add amounts up by type; `bare` only counts bytes. The plain consumer has the same options
and is given every record, also what aborted; both take batches, in an interpreter set up with
`tune`. Rates and processor time of client and broker are of records of the log, from the first one
given. No worker runs: a reader asks none.

Sizes: ROUNDS.
"""

import asyncio
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from confluent_kafka import Consumer, Message, Producer
from confluent_kafka import TopicPartition as ClientPartition

from stilltide.connectors.kafka.config import KafkaConfig, group_options
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.ports.connector import METADATA_MAX_AGE_S
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.client import Subscription
from stilltide.pipeline.demo.events import SAMPLE
from stilltide.pipeline.interpreter import tune
from stilltide.schemas.coordinator import markers
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.headers import TXN
from stilltide.schemas.snapshots.snapshots import SnapshotEnd, encode_end, end_key
from stilltide.schemas.topics import (
    TXN_MARKERS,
    TXN_SNAPSHOTS,
    TopicSpec,
    system_partition,
    system_topics,
)
from stilltide.schemas.values import EndOffset, TopicPartition, TxnId
from tests.bench.harness import Run, middle, report, rotated, size
from tests.bench.spent import Spent, cpu_rows

TOPIC = "bench"
PARTITIONS = 3
SYSTEM_PARTITIONS = 4
RECORDS = 150_000
"""Of each partition."""
RECORDS_PER_TXN = 10
OPEN_AT_ONCE = 10
ABORTED_EVERY = 100
TXNS_ABOVE = 1000
BATCH = 500

Process = Callable[[bytes], None]


class Totals:
    """What an application makes of the events: amounts by type."""

    def __init__(self) -> None:
        self.amounts: Counter[str] = Counter()

    def add(self, value: bytes) -> None:
        """Takes one record's value."""
        event = json.loads(value)
        self.amounts[event["type"]] += event.get("total_cents") or event.get("amount_cents") or 0

    def add_column(self, values: Sequence[bytes]) -> None:
        """Takes the values of many records, in one document."""
        for event in json.loads(b"[%b]" % b",".join(values)):
            amount = event.get("total_cents") or event.get("amount_cents") or 0
            self.amounts[event["type"]] += amount


class Bytes:
    """The least an application can do."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, value: bytes) -> None:
        """Takes one record's value."""
        self.count += len(value)

    def add_column(self, values: Sequence[bytes]) -> None:
        """Takes the values of many records."""
        self.count += sum(map(len, values))


COLUMNS = "columns"
WORK: dict[str, Callable[[], Totals | Bytes]] = {
    "committed": Totals,
    "bare": Bytes,
    f"committed, {COLUMNS}": Totals,
    f"bare, {COLUMNS}": Bytes,
}


def txn_at(offset: int) -> tuple[TxnId, int]:
    """Whose record lies there, and the end offset of that transaction."""
    group, within = divmod(offset, RECORDS_PER_TXN * OPEN_AT_ONCE)
    number = group * OPEN_AT_ONCE + within % OPEN_AT_ONCE
    end_offset = (group + 1) * RECORDS_PER_TXN * OPEN_AT_ONCE - OPEN_AT_ONCE
    return TxnId(number % 4, number // 4), end_offset + within % OPEN_AT_ONCE + 1


def aborts(txn: TxnId) -> bool:
    """One in a hundred."""
    return (txn.sequence * 4 + txn.coordinator) % ABORTED_EVERY == 0


def fill(bootstrap: str, topic_id: bytes) -> int:
    """Writes data, markers and snapshots; how many records are visible."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 0}
    )
    events = SAMPLE.read_bytes().splitlines()
    visible = 0
    for offset in range(RECORDS):
        txn, _ = txn_at(offset)
        value = events[offset % len(events)]
        visible += PARTITIONS * (not aborts(txn))
        for partition in range(PARTITIONS):
            producer.produce(
                TOPIC, value, b"%08d" % offset, partition, headers=[(TXN, txn.to_bytes())]
            )
        if offset % 10_000 == 0:
            producer.flush()
    position = EndOffset(RECORDS - TXNS_ABOVE * RECORDS_PER_TXN)
    for partition in range(PARTITIONS):
        data = TopicPartition(TOPIC, partition)
        ends = dict(txn_at(offset) for offset in range(RECORDS))
        aborted: dict[int, list[int]] = {}
        for txn, end_offset in ends.items():
            if end_offset > position:
                marker = Marker(
                    data, txn, not aborts(txn), EndOffset(0), EndOffset(end_offset), 10, topic_id
                )
                producer.produce(
                    TXN_MARKERS,
                    markers.encode_value(marker),
                    markers.encode_key(data, txn),
                    system_partition(data, SYSTEM_PARTITIONS),
                )
            elif aborts(txn):
                aborted.setdefault(txn.coordinator, []).append(txn.sequence)
        end = SnapshotEnd(topic_id, position, EndOffset(0), 1, (), aborted, {}, EndOffset(0), ())
        producer.produce(
            TXN_SNAPSHOTS, encode_end(end), end_key(data), system_partition(data, SYSTEM_PARTITIONS)
        )
    producer.flush()
    return visible


async def ours(
    connector: KafkaConnector, group: str, visible: int, setting: str, pids: Mapping[str, int]
) -> Run:
    """Reads all of it with a subscription, from its first record on."""
    work = WORK[setting]()
    add, columns = work.add, setting.endswith(COLUMNS)
    left = visible
    began, spent = 0.0, Spent(pids)
    async with Subscription([TOPIC], group=group, connector=connector) as subscription:
        async for batch in subscription.batches():
            if left == visible:
                began, spent = time.perf_counter(), Spent(pids)
            if columns:
                work.add_column(batch.values)
            else:
                for message in batch:
                    value = message.value
                    assert value is not None
                    add(value)
            left -= len(batch)
            if not left:
                break
        done = spent.by(_run(time.perf_counter() - began))
        assert sum(it.hidden for it in subscription.statistics().values())
    return done


def plain(config: KafkaConfig, group: str, setting: str, pids: Mapping[str, int]) -> Run:
    """Reads all of it with the plain consumer, from its first record on."""
    work = WORK[setting]()
    add, columns = work.add, setting.endswith(COLUMNS)
    consumer = Consumer(group_options(config, "plain", group, METADATA_MAX_AGE_S))
    consumer.assign([ClientPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    left = RECORDS * PARTITIONS
    began, spent = 0.0, Spent(pids)
    while left:
        messages = consumer.consume(BATCH, 0.1)
        if columns and not any(map(Message.error, messages)):
            if messages and not began:
                began, spent = time.perf_counter(), Spent(pids)
            work.add_column([value for value in map(Message.value, messages) if value is not None])
            left -= len(messages)
            continue
        for message in messages:
            if message.error() is not None:
                continue
            if not began:
                began, spent = time.perf_counter(), Spent(pids)
            value = message.value()
            assert value is not None
            add(value)
            left -= 1
    done = spent.by(_run(time.perf_counter() - began))
    consumer.close()
    return done


def _run(elapsed_s: float) -> Run:
    records = RECORDS * PARTITIONS
    return Run(records / elapsed_s, elapsed_s * 1000, elapsed_s * 1000, records, {})


async def run() -> None:
    """Measures, prints and writes the case."""
    runs: dict[tuple[str, str], list[Run]] = {}
    rounds = size("ROUNDS", 5)
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(LocalCluster("a", directory / "a", heap="512m"))
        config = KafkaConfig(bootstrap_servers=cluster.bootstrap)
        connector = KafkaConnector(config)
        admin = connector.admin()
        specs = system_topics(coordinators=4, partitions=SYSTEM_PARTITIONS)
        await admin.ensure_topics([*specs, TopicSpec(TOPIC, PARTITIONS)])
        topic_id = (await admin.describe_topics([TOPIC]))[TOPIC].topic_id
        await admin.close()
        tune()
        pids = {"client": os.getpid(), "broker": cluster.pid}
        say(f"reader: writing {RECORDS * PARTITIONS} records")
        visible = await asyncio.to_thread(fill, cluster.bootstrap, topic_id)
        for number in range(rounds + 1):
            for setting in WORK:
                for side in rotated(["ours", "plain"], number):
                    group = f"{side}-{setting}-{number}"
                    if side == "ours":
                        done = await ours(connector, group, visible, setting, pids)
                    else:
                        done = await asyncio.to_thread(plain, config, group, setting, pids)
                    if number:  # the first round warms up
                        runs.setdefault((side, setting), []).append(done)
            say(f"reader: round {number} of {rounds}")
    cpu = [
        row
        for setting in WORK
        for row in cpu_rows(
            setting, {"ours": runs["ours", setting]}, {"plain": runs["plain", setting]}
        )
    ]
    report("reader", [_row(runs, setting) for setting in WORK], cpu)


def _row(runs: dict[tuple[str, str], list[Run]], setting: str) -> dict[str, object]:
    mine, baseline = (middle(runs[side, setting], "per_s") for side in ("ours", "plain"))
    return {
        "setting": setting,
        "ours": mine,
        "baseline": baseline,
        "ratio": mine / baseline,
        "unit": "records/s",
    }
