"""Acknowledgements in transactions: the store with its buffered writer on, against off.

Off is one awaited Kafka record for each acknowledgement, with the producer's own linger of 0, 1 and
5 ms; the best of the three counts. Both sides decode, append, read back, validate and answer; every
transaction settles after 50 acknowledgements. Requests are encoded beforehand, by whom they come
from.
"""

import asyncio
import tempfile
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.agents.apps import BufferedWriter, writer_app
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.config.loading import load_settings
from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits
from stilltide.pipeline.core.pending_ack.machine import AckReply, PendingAckStore
from stilltide.pipeline.drivers.buffered_log.owned_log import OwnedLog
from stilltide.pipeline.drivers.pending_ack.owner import CODEC
from stilltide.pipeline.interpreter import tune
from stilltide.schemas.framing import encode_request_record
from stilltide.schemas.pending_ack import codec as pending_ack
from stilltide.schemas.pending_ack.acknowledgements import (
    AckAnswer,
    AckBody,
    Acknowledge,
    AckQuestion,
    Attach,
    PendingAckRecord,
    Settle,
)
from stilltide.schemas.service.envelopes import Done, Request
from stilltide.schemas.topics import PENDING_ACK_LOG, system_topics
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition, TxnId
from tests.bench.harness import Run, closed_loop, middle, report, rotated
from tests.support.buffered_log.owner import Listener

CALLERS = (1, 16, 64, 256)
ROUNDS = 20
SECONDS = 0.4
WARM_UP_SECONDS = 12.0
ACKNOWLEDGEMENTS_PER_TRANSACTION = 50
PREPARED = 100_000
"""Requests before each loop, more than it sends."""

READ = SubscriptionId(TopicPartition("orders", 0), "billing")
MEMBER = bytes(16)

SETTINGS: dict[str, tuple[BatchLimits, float]] = {
    "buffered": (BatchLimits(), 0.0),
    "linger 0": (BatchLimits(batching=False), 0.0),
    "linger 1": (BatchLimits(batching=False), 1.0),
    "linger 5": (BatchLimits(batching=False), 5.0),
}
UNBUFFERED = ("linger 0", "linger 1", "linger 5")


class Store(Listener):
    """A store and its callers in one process: answers come back without a second topic."""

    def __init__(self) -> None:
        super().__init__()
        self.log: OwnedLog
        self._loop = asyncio.get_running_loop()
        self._machine = PendingAckStore()
        self.made = 0
        self._offsets = count()
        self._requests: deque[bytes] = deque()
        self._futures: dict[int, asyncio.Future[AckAnswer]] = {}

    async def begin(self) -> None:
        """Attaches the member that acknowledges."""
        assert self.log.epoch is not None
        self._machine.serve(self.log.epoch, 0)
        self._encode(Attach(MEMBER, EndOffset(0), ()))
        await self._ask()

    def prepare(self, ahead: int) -> None:
        """Encodes requests for the next loop."""
        while len(self._requests) < ahead:
            txn = TxnId(0, self.made // ACKNOWLEDGEMENTS_PER_TRANSACTION)
            if self.made % ACKNOWLEDGEMENTS_PER_TRANSACTION == 0 and txn.sequence > 0:
                ended = TxnId(0, txn.sequence - 1)
                self._encode(Settle(ended, committed=True, low_watermark=ended.sequence))
            else:
                self._encode(Acknowledge(txn, MEMBER, (Offset(next(self._offsets)),)))

    async def acknowledge(self) -> None:
        """One record, in the transaction of the moment; answered as a client is."""
        assert isinstance(await self._ask(), Done)

    def applied(self, offset: Offset | None, records: Sequence[Any], *, own: bool) -> None:
        """Validates and answers, as the driver does."""
        assert offset is not None
        for effect in self._machine.applied(offset, records, own=own, now_ms=0):
            assert isinstance(effect, AckReply)
            self._futures.pop(effect.request.number).set_result(effect.answer)

    def _encode(self, body: AckBody) -> None:
        self.made += 1
        request = Request(bytes(22), self.made, 0, 0, AckQuestion(READ, body))
        self._requests.append(pending_ack.encode_request(request))

    async def _ask(self) -> AckAnswer:
        if not self._requests:
            self.prepare(PREPARED)
        data = self._requests.popleft()
        request = pending_ack.decode_request(data)
        future = self._futures[request.number] = self._loop.create_future()
        self.log.append(encode_request_record(data, 0), None, PendingAckRecord(request, 0))
        return await future


async def run() -> None:
    """Measures, prints and writes the case."""
    runs: dict[tuple[str, int], list[Run]] = {}
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(LocalCluster("a", directory / "a", heap="512m"))
        connector = KafkaConnector(KafkaConfig(bootstrap_servers=cluster.bootstrap))
        admin = connector.admin()
        await admin.ensure_topics(system_topics(coordinators=1, partitions=len(SETTINGS)))
        app = writer_app(load_settings(), directory)
        agent = BufferedWriter(app)
        app.finalize()
        await app.start()
        pump = asyncio.create_task(agent.run())
        stores = {name: await _open(stack, connector, agent, name) for name in SETTINGS}
        for store in stores.values():  # the broker compiles its code; nobody shall pay for it alone
            for callers in (1, 64):
                await closed_loop(store.acknowledge, callers, WARM_UP_SECONDS / len(stores))
        tune()
        for number in range(ROUNDS):
            for callers in CALLERS:
                for name in rotated(list(SETTINGS), number + callers):
                    store, data = stores[name], stores[name].log.partition
                    before = (await admin.end_offsets([data]))[data]
                    store.prepare(PREPARED)
                    made = store.made
                    done = await closed_loop(store.acknowledge, callers, SECONDS)
                    assert store.made == made, "the loop made requests itself: prepare more"
                    entries = (await admin.end_offsets([data]))[data] - before
                    done.extra["per_entry"] = done.operations / entries
                    runs.setdefault((name, callers), []).append(done)
            say(f"acknowledgements: round {number + 1} of {ROUNDS}")
        pump.cancel()
        await app.stop()
    report("acknowledgements", [_row(runs, callers) for callers in CALLERS])


async def _open(
    stack: AsyncExitStack, connector: KafkaConnector, agent: BufferedWriter, name: str
) -> Store:
    partition = list(SETTINGS).index(name)
    limits, linger_ms = SETTINGS[name]
    store = Store()
    store.log = OwnedLog(
        connector,
        TopicPartition(PENDING_ACK_LOG, partition),
        CODEC,
        limits,
        writer=connector.writer(f"bench-{partition}", linger_ms=linger_ms),
        entries=agent,
        listener=store,
    )
    task = asyncio.create_task(store.log.run())
    stack.callback(task.cancel)
    await store.serving.wait()
    await store.begin()
    return store


def _row(runs: dict[tuple[str, int], list[Run]], callers: int) -> dict[str, Any]:
    rates = {name: middle(runs[name, callers], "per_s") for name in SETTINGS}
    best = max(UNBUFFERED, key=rates.__getitem__)
    ours, others = runs["buffered", callers], runs[best, callers]
    return {
        "setting": callers,
        "ours": rates["buffered"],
        "baseline": rates[best],
        "ratio": rates["buffered"] / rates[best],
        "unit": "acknowledgements/s",
        "best_unbuffered": best,
        "ours_p99_ms": middle(ours, "p99_ms"),
        "baseline_p99_ms": middle(others, "p99_ms"),
        "entries_fewer": middle(ours, "per_entry") / middle(others, "per_entry"),
    }
