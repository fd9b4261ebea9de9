"""A load on a cluster whose brokers fail one by one, and what must hold after it.

*Source*: rules C (commits), D (reading), E (snapshots), F (index), G (acknowledgements), H (links).

The load: coordinated transactions, a group that commits, consume-transform-produce, a link to
another cluster, and Kafka's own transactions, whose producers are also the yardstick of gaps.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any, NamedTuple, Self

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.schemas.topics import Replicas, TopicSpec
from stilltide.schemas.values import EndOffset, Offset, TopicPartition
from tests.support.brokers.asking import Asking
from tests.support.brokers.copying import Copying
from tests.support.brokers.group import Group
from tests.support.brokers.native import NativeTransactions
from tests.support.brokers.progress import PROGRESS_S
from tests.support.brokers.transactions import ORDERS_EACH, PAYMENTS_EACH, Transactions
from tests.support.brokers.visible import Place, Seen, records, visible
from tests.support.links.link_process import LinkProcess
from tests.support.looks import between_looks
from tests.support.native.topics import read_index
from tests.support.processes.worker_process import PARTITIONS, await_all_ended
from tests.support.snapshots.seen import seen_by_snapshots

NATIVE = "native"
"""Topic of Kafka's own transactions, which workers index; all worlds of a cluster share it."""

STEPS = 20
"""Steps of each part of the load that show that the part works again."""


class Gaps(NamedTuple):
    """Seconds without a commit during a fault: of all callers, and of the worst single caller."""

    ours_s: float
    native_s: float
    our_caller_s: float
    native_caller_s: float


class World:
    """Starts the load on entry; `settle` ends it, `check` says whether everything held.

    Args:
        bootstrap: the cluster `a` whose brokers fail.
        other: the cluster `b` that a link copies to.
        directory: of logs.
        name: suffix of the world's own topics and groups.
        replicas: of data topics.
    """

    def __init__(
        self, bootstrap: str, other: str, directory: Path, name: str, replicas: Replicas
    ) -> None:
        self.connector = KafkaConnector(KafkaConfig(bootstrap))
        self.other = KafkaConnector(KafkaConfig(other))
        self.orders, self.payments, self.invoices = (
            f"{topic}-{name}" for topic in ("orders", "payments", "invoices")
        )
        self.transactions = Transactions(bootstrap, self.orders, self.payments)
        self.group = Group(self.connector, self.orders, f"readers-{name}")
        self.copying = Copying(self.connector, self.payments, self.invoices, f"billing-{name}")
        self.native = NativeTransactions(bootstrap, NATIVE, f"native-{name}")
        self.asking = Asking(bootstrap)
        self.link = LinkProcess(
            {"a": bootstrap, "b": other},
            "a",
            "b",
            directory / f"link-{name}.log",
            "--topics",
            self.orders,
        )
        self._bootstrap, self._name, self._replicas = bootstrap, name, replicas
        self._running: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        admin = self.connector.admin()
        await admin.ensure_topics(
            [
                TopicSpec(topic, PARTITIONS, replicas=self._replicas)
                for topic in (self.orders, self.payments, self.invoices, NATIVE)
            ]
        )
        await admin.close()
        await self.link.spawn()
        await self.link.serving()
        self._running = [asyncio.create_task(part.run()) for part in self._parts]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._running:
            task.cancel()
        self.native.stop()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self.link.kill()

    async def progress(self, steps: int = STEPS) -> None:
        """Waits until every part of the load has done so many more steps.

        Raises:
            Exception: what ended a part of the load, if one has ended.
        """
        waiting = asyncio.gather(*(part.progress.more(steps) for part in self._parts))
        await asyncio.wait([waiting, *self._running], return_when=asyncio.FIRST_COMPLETED)
        self._require_running()
        await waiting
        self._require_running()

    def gaps(self, since_s: float) -> Gaps:
        """The longest times without a commit since a moment of `time.monotonic`."""
        until_s = time.monotonic()
        ours, native = self.transactions.progress, self.native.progress
        return Gaps(
            ours.gap_s(since_s, until_s),
            native.gap_s(since_s, until_s),
            ours.stall_s(since_s, until_s),
            native.stall_s(since_s, until_s),
        )

    async def settle(self) -> None:
        """Ends what writes, lets what reads come to the end, and ends that, too."""
        transactions, group, copying, native, asking = self._running
        self.transactions.stop()
        self.native.stop()
        self.asking.stop()
        async with asyncio.timeout(PROGRESS_S):
            await asyncio.gather(transactions, native, asking)
            async with TransactionClient(connector=self.connector, resend_s=0.5) as client:
                await await_all_ended(client)
            orders = await visible(self.connector, self.orders, f"check-{self._name}")
            payments = await visible(self.connector, self.payments, f"check-{self._name}")
            await _while_running(group, self.group.has_committed({it.place for it in orders}))
            await _while_running(copying, self._copied({it.place for it in payments}))
            self.group.stop()
            self.copying.stop()
            await asyncio.gather(group, copying)
            async with TransactionClient(connector=self.connector, resend_s=0.5) as client:
                await await_all_ended(client)

    async def check(self) -> None:
        """Nothing was lost, doubled or leaked; link, index and snapshots agree with readers."""
        orders = await visible(self.connector, self.orders, f"check-again-{self._name}")
        payments = await visible(self.connector, self.payments, f"check-again-{self._name}")
        self._check_outcomes(orders, payments)
        await self._check_group({it.place for it in orders})
        await self._check_copies(payments)
        await self._check_link(orders)
        await self._check_index()
        await self._check_snapshots([*orders, *payments])

    async def _copied(self, messages: set[Place]) -> None:
        """Waits until every message has a copy that readers see."""
        missing = set(messages)
        async with Subscription(
            [self.invoices], group=f"wait-{self._name}", connector=self.connector
        ) as copies:
            while missing:
                copy = await anext(copies)
                missing.discard(_origin(copy.key or b""))

    def _check_outcomes(self, orders: list[Seen], payments: list[Seen]) -> None:
        outcomes = self.transactions.outcomes
        seen = Counter(int(it.value) for it in orders)
        assert set(seen.values()) == {ORDERS_EACH}, "a transaction is visible in part"
        paid = Counter(int(it.value) for it in payments)
        assert set(paid.values()) == {PAYMENTS_EACH}, "a transaction is visible in part"
        assert seen.keys() == paid.keys(), "a transaction is visible in one topic only"
        assert outcomes.committed <= seen.keys(), "a committed transaction is not visible"
        assert not outcomes.aborted & seen.keys(), "an aborted transaction is visible"
        assert seen.keys() <= outcomes.committed | outcomes.unknown, "nobody committed that"

    async def _check_group(self, orders: set[Place]) -> None:
        assert self.group.seen.keys() == orders, "the group has seen something else"
        rest = await visible(self.connector, self.orders, f"readers-{self._name}")
        assert not rest, f"{len(rest)} messages lie beyond the group's position"

    async def _check_copies(self, payments: list[Seen]) -> None:
        copies = await visible(self.connector, self.invoices, f"check-again-{self._name}")
        found = Counter((_origin(it.key), it.value) for it in copies)
        assert found == Counter((it.place, it.value) for it in payments)
        assert self.copying.committed <= {it.place for it in payments}
        group = f"billing-{self._name}"
        rest = await visible(self.connector, self.payments, group, acknowledgements=True)
        assert not rest, f"{len(rest)} messages were copied and not acknowledged"

    async def _check_link(self, orders: list[Seen]) -> None:
        wanted = _by_partition((it.place, it.value) for it in orders)
        async with asyncio.timeout(PROGRESS_S):
            while True:
                copies = await records(self.other, self.orders, committed=True)
                if len(copies) >= len(orders):
                    break
                await between_looks()
        found = _by_partition(((it.partition, it.offset), it.value or b"") for it in copies)
        assert found == wanted, "the link's copy differs from its source"
        assert self.link.running, self.link.said

    async def _check_index(self) -> None:
        written = await records(self.connector, NATIVE, committed=False)
        committed = {_place(it) for it in await records(self.connector, NATIVE, committed=True)}
        for partition in range(PARTITIONS):
            data = TopicPartition(NATIVE, partition)
            offsets = [it.offset for it in written if it.partition == partition]
            async with asyncio.timeout(PROGRESS_S):
                while True:
                    index = await read_index(self._bootstrap, data)
                    if index is not None and index.covers(Offset(0), EndOffset(offsets[-1] + 1)):
                        break
                    await between_looks()
            told = {(partition, it) for it in offsets if it not in index.ranges}
            assert told == {it for it in committed if it[0] == partition}, f"index of {data}"

    async def _check_snapshots(self, seen: list[Seen]) -> None:
        told = await seen_by_snapshots(self.connector, [self.orders, self.payments], PARTITIONS)
        assert told == Counter(it.value.decode() for it in seen), "snapshots differ from markers"

    @property
    def _parts(self) -> tuple[Transactions, Group, Copying, NativeTransactions, Asking]:
        return self.transactions, self.group, self.copying, self.native, self.asking

    def _require_running(self) -> None:
        for task in self._running:
            if task.done():
                task.result()
        assert self.link.running, self.link.said


async def _while_running(part: asyncio.Task[None], wait: Coroutine[Any, Any, None]) -> None:
    """Waits as long as a part of the load runs; raises what has ended the part, if it ends."""
    waiting = asyncio.create_task(wait)
    try:
        await asyncio.wait([part, waiting], return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            part.result()
            raise AssertionError(f"{part} has ended")
        waiting.result()
    finally:
        waiting.cancel()


def _origin(key: bytes) -> Place:
    partition, offset = map(int, key.split())
    return partition, offset


def _place(record: Record) -> Place:
    return record.partition, record.offset


def _by_partition(values: Iterable[tuple[Place, bytes]]) -> dict[int, list[bytes]]:
    found: defaultdict[int, list[bytes]] = defaultdict(list)
    for (partition, _), value in sorted(values):
        found[partition].append(value)
    return found
