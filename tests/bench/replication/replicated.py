"""Replicated groups as they run in earnest: workers and links; and what lies in the logs."""

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError
from confluent_kafka import TopicPartition as Place

from stilltide.connectors.clock import SystemClock
from stilltide.pipeline.drivers.shared.dynamic_settings import write_setting
from stilltide.schemas.settings import subscription_setting
from tests.bench.replication.copiers import WAIT_S, Pair, link_command, running
from tests.support.processes.local import commit
from tests.support.processes.worker_process import WorkerProcess

AT_ONCE = 10_000


class VisibleLog:
    """The numbers that lie in partition 0 of a topic, in offset order; reads all of it and blocks.

    Attributes:
        offsets: of visible records.
        numbers: what they bear.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.offsets, self.numbers = array("q"), array("q")
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "bench-log",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.queue.backoff.ms": 10,
            }
        )
        consumer.assign([Place(topic, 0, OFFSET_BEGINNING)])
        ended = False
        while not ended:
            for message in consumer.consume(AT_ONCE, 0.2):
                error = message.error()
                if error is None:
                    self.offsets.append(message.offset())
                    self.numbers.append(int(message.value()))
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    ended = True
        consumer.close()

    def count_below(self, offset: int) -> int:
        """How many records lie below an offset."""
        return bisect_left(self.offsets, offset)

    def offset_leaving(self, left: int) -> int:
        """The offset at or above which so many records lie."""
        at = len(self.offsets) - left
        return self.offsets[at] if left else self.offsets[-1] + 1


class Committed:
    """Asks for the offset of a group, over one connection; blocks.

    Args:
        bootstrap: of the cluster.
        topic: its partition 0.
        group: any group; it need not have members.
    """

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
        self._place = Place(topic, 0)

    def now(self) -> int:
        """Negative: none."""
        (found,) = self._consumer.committed([self._place], WAIT_S)
        return found.offset

    def close(self) -> None:
        """Releases the connection."""
        self._consumer.close()


@asynccontextmanager
async def replicated(pair: Pair, links: Mapping[str, Sequence[str]]) -> AsyncIterator[None]:
    """A worker on each cluster and these links, from entry to exit.

    Args:
        pair: of clusters.
        links: topics, by the names of source and target.
    """
    async with AsyncExitStack() as stack:
        workers = [
            WorkerProcess(
                one.bootstrap,
                pair.directory / f"worker-{one.name}.log",
                *("--cluster", one.name),
                clusters=pair.named,
            )
            for one in (pair.a, pair.b)
        ]
        for worker in workers:
            await stack.enter_async_context(worker)
        await asyncio.gather(*(worker.serving() for worker in workers))
        for ends, topics in links.items():
            command = link_command(pair, *topics, ends=ends)
            stack.enter_context(running(command, pair.directory / f"link-{ends}.log"))
        yield


async def enable(pair: Pair, topic: str, *groups: str) -> None:
    """Has groups replicated."""
    at_ms = SystemClock().now_ms()
    for connector in pair.connectors.values():
        for group in groups:
            setting = subscription_setting(topic, group)
            await write_setting(connector, setting, value=True, at_ms=at_ms)


async def commit_on_a(pair: Pair, topic: str, group: str, offset: int) -> None:
    """As any consumer of `a` does."""
    await asyncio.to_thread(commit, pair.a.bootstrap, topic, group, offset)
