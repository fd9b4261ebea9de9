"""A load over the three clusters of the compose file, while its services are killed.

Transactions write orders on cluster a. An application on cluster b writes an invoice for each
copied order, and acknowledges the order in the same transaction. Links copy orders and invoices to
every cluster.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.schemas.values import TopicPartition
from tests.support.processes.child import Child
from tests.support.processes.containers import INDEXED, Compose
from tests.support.processes.worker_process import PARTITIONS, Load, create_topics

LOGGER = logging.getLogger(__name__)
"""Progress; pytest shows it with `--log-cli-level=INFO`."""

ORDERS = INDEXED
"""Topics written on cluster a."""

INVOICES = "invoices-sent"
"""Topic written on cluster b, from the first topic of `ORDERS`."""

STEP = 200
"""Smallest number of transactions between two kills."""

CONCURRENCY = 8
SETTLED_S = 300.0


class Tour:
    """One load on the compose project, and the check of its result.

    Args:
        compose: the healthy project.
        victims: services to kill, one after the other.
        duration_s: shortest time over which the kills are spread.

    Attributes:
        load: the transactions, and the outcomes that the client reported.
    """

    def __init__(self, compose: Compose, victims: Sequence[str], duration_s: float) -> None:
        self.load = Load(ORDERS, 1_000_000, CONCURRENCY)
        self._compose = compose
        self._victims = victims
        self._pause_s = duration_s / len(victims)
        self._moved = asyncio.Event()

    async def run(self) -> None:
        """Writes and kills; returns when every cluster has each record exactly once."""
        compose = self._compose
        await create_topics(compose.bootstrap("a"), *ORDERS)
        await create_topics(compose.bootstrap("b"), INVOICES)
        enable = (
            "run",
            "--rm",
            "-T",
            "cli",
            "subscription",
            "enable",
            ORDERS[0],
            _group("a", ORDERS),
        )
        await asyncio.to_thread(compose, *enable)
        invoicing = asyncio.create_task(self._invoice())
        connector = KafkaConnector(KafkaConfig(compose.bootstrap("a"), delivery_timeout_s=300))
        async with TransactionClient(
            connector=connector, resend_s=0.5, transaction_timeout_s=60
        ) as client:
            writing = asyncio.create_task(self.load.run(client, lambda _: self._moved.set()))
            for victim in self._victims:
                await self._until(self._committed + STEP)
                LOGGER.info("%d committed, killing %s", self._committed, victim)
                await asyncio.to_thread(compose.crash, victim)
                LOGGER.info("%d committed, %s is healthy", self._committed, victim)
                done, _ = await asyncio.wait([writing, invoicing], timeout=self._pause_s)
                assert not done, done
            await self._until(self._committed + STEP)
            self.load.stop()
            await writing
        LOGGER.info("%d committed, reading them", self._committed)
        await self._check()
        invoicing.cancel()
        await asyncio.gather(invoicing, return_exceptions=True)

    @property
    def _committed(self) -> int:
        return len(self.load.outcomes.committed)

    async def _until(self, committed: int) -> None:
        async with asyncio.timeout(540):
            while self._committed < committed:
                self._moved.clear()
                await self._moved.wait()

    async def _invoice(self) -> None:
        """Runs the application on b, and restarts it after each end, as a restart policy does."""
        arguments = (self._compose.bootstrap("b"), ORDERS[0], INVOICES, "invoicing")
        while True:
            module = "tests.support.pending_ack.transformer"
            async with Child.of_module(module, *arguments) as process:
                await process.ended(None)

    async def _check(self) -> None:
        outcomes, per_topic = self.load.outcomes, self.load.per_topic
        written = await self._read("a", ORDERS, dict.fromkeys(outcomes.committed, 2 * per_topic))
        assert outcomes.committed <= written.keys() <= outcomes.committed | outcomes.unknown
        assert set(written.values()) == {2 * per_topic}
        invoiced = Counter(dict.fromkeys(written, per_topic))
        for cluster in "bc":
            assert await self._read(cluster, ORDERS, written) == written, cluster
            assert await self._read(cluster, [INVOICES], invoiced) == invoiced, cluster
            LOGGER.info("%s has all of them", cluster)

    async def _read(
        self, cluster: str, topics: Sequence[str], awaited: Mapping[int, int]
    ) -> Counter[int]:
        """Waits until each number is visible as often as awaited; returns how often it is."""
        connector = KafkaConnector(KafkaConfig(self._compose.bootstrap(cluster)))
        group, missing = _group(cluster, topics), Counter(awaited)
        seen: Counter[int] = Counter()
        async with Subscription(topics, group=group, connector=connector) as records:
            async with asyncio.timeout(SETTLED_S):
                while missing:
                    number = int((await anext(records)).value or b"-1")
                    seen[number] += 1
                    missing[number] -= 1
                    if missing[number] <= 0:
                        del missing[number]
            admin = connector.admin()
            data = [TopicPartition(topic, it) for topic in topics for it in range(PARTITIONS)]
            ends = await admin.end_offsets(data, committed=True)
            await admin.close()
            seen.update([int(it.value or b"-1") async for it in records.read_to(ends)])
        return seen


def _group(cluster: str, topics: Sequence[str]) -> str:
    """The name of the group that reads these topics on a cluster at the end."""
    return f"check-{cluster}-{topics[0]}"
