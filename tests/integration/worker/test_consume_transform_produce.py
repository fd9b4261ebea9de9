"""Exactly once from topic to topic, with every process killed in the middle of its work."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.schemas.values import TopicPartition
from tests.support.processes.child import Child
from tests.support.processes.worker_process import PARTITIONS, WorkerProcess, create_topics

COUNT = 3000
WAIT_S = 360.0


@asynccontextmanager
async def transformer(
    bootstrap: str, source: str, target: str, log_path: Path
) -> AsyncIterator[Child]:
    """A process that copies, killed at the end if it was not before."""
    arguments = (bootstrap, source, target, f"group-{source}")
    module = "tests.support.pending_ack.transformer"
    async with Child.of_module(module, *arguments, log_path=log_path) as process:
        yield process
        assert process.exit_code in (None, -signal.SIGKILL), process.said


class Output:
    """What readers of the target topic have seen so far."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self.seen: Counter[bytes | None] = Counter()

    async def until(self, count: int) -> None:
        """Reads until so many different messages have come; none may come twice."""
        async with asyncio.timeout(WAIT_S):
            while len(self.seen) < count:
                message = await anext(self._subscription)
                self.seen[message.value] += 1
                assert self.seen[message.value] == 1, message


async def write(bootstrap: str, topic: str) -> None:
    """The messages to be copied, written in a transaction."""
    async with TransactionClient(bootstrap) as client, client.transaction() as txn:
        for number in range(COUNT):
            await txn.send(topic, b"%d" % number, key=b"%d" % number)


async def visible(bootstrap: str, topic: str) -> Counter[bytes | None]:
    """All that a reader sees of a topic, to its present ends."""
    connector = KafkaConnector(KafkaConfig(bootstrap))
    admin = connector.admin()
    ends = await admin.end_offsets([TopicPartition(topic, it) for it in range(PARTITIONS)])
    await admin.close()
    async with Subscription([topic], group=f"all-{topic}", connector=connector) as subscription:
        return Counter([it.value async for it in subscription.read_to(ends)])


@pytest.mark.slow
async def test_each_message_once_whatever_is_killed(bootstrap: str, tmp_path: Path):
    """SIGKILL of the application in mid-transaction and of the worker: no copy lost or doubled."""
    name = uuid4().hex[:8]
    source, target, log_path = f"orders-{name}", f"invoices-{name}", tmp_path / "copy.log"
    await create_topics(bootstrap, source, target)
    options = ("--instance-id", f"worker-{name}")
    async with WorkerProcess(bootstrap, tmp_path / "worker.log", *options) as worker:
        await worker.serving()
        await write(bootstrap, source)
        async with Subscription(
            [target], group=f"watch-{name}", bootstrap_servers=bootstrap
        ) as subscription:
            output = Output(subscription)
            async with transformer(bootstrap, source, target, log_path) as process:
                await output.until(COUNT // 4)
                await process.kill()
            async with transformer(bootstrap, source, target, log_path):
                await output.until(COUNT // 2)
                await worker.kill()
                async with WorkerProcess(
                    bootstrap, tmp_path / "worker-2.log", *options
                ) as successor:
                    await successor.serving()
                    await output.until(COUNT)
                    everything = await visible(bootstrap, target)
    assert everything == Counter(b"%d" % number for number in range(COUNT))
