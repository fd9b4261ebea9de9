"""A Kafka cluster with a worker in this process: `MemoryCluster`, for unit tests of applications.

*Source*: docs/services.md. The broker is the one that Stilltide's own unit tests run on, and passes
the contract tests that Kafka passes; the worker's coordinators are those of a real worker.
"""

import itertools
from collections.abc import Mapping
from typing import ClassVar, Self

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.names import check_topic_name
from stilltide.connectors.ports.admin import check_specs
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.client.subscription import Subscription
from stilltide.pipeline.client.sync.loop_thread import LoopCalls
from stilltide.pipeline.client.usage import check_place, check_record, require
from stilltide.pipeline.errors import UsageError
from stilltide.pipeline.testing.worker import MemoryWorker
from stilltide.schemas.headers import Headers
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


class MemoryCluster:
    """A cluster with a worker in this process, on the event loop that enters it.

        async with MemoryCluster({"orders": 3}) as cluster:
            async with TransactionClient(connector=cluster.connector) as client:
                ...
            assert [it.value for it in await cluster.committed("orders")] == [b"first"]

    Nothing is kept when the block ends. Each cluster is of its own, with an id of its own, so
    tests share nothing, and a transaction refuses messages of another cluster as on real ones.

    Args:
        topics: number of partitions by topic, created on entry.

    Attributes:
        broker: the broker; `down()` and `up()` make it unreachable and reachable.
        connector: what clients and subscriptions take as `connector`.
    """

    _numbers: ClassVar = itertools.count(1)

    def __init__(self, topics: Mapping[str, int] | None = None) -> None:
        if topics is not None:
            require(Mapping, topics=topics)
        self.broker = MemoryBroker(f"memory-{next(self._numbers)}")
        self.connector = MemoryConnector(self.broker)
        self._worker = MemoryWorker(self.connector)
        self._groups = itertools.count()
        self._entered = False
        for name, partitions in (topics or {}).items():
            self.create_topic(name, partitions)

    async def __aenter__(self) -> Self:
        if self._entered:
            raise UsageError("the cluster was entered before", hint="make another one")
        self._entered = True
        await self._worker.__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._worker.__aexit__(*raised)

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Creates a topic.

        Raises:
            FatalError: the topic exists, or would have no or too many partitions.
            InvalidTextError: no topic can have the name.
        """
        require(int, partitions=partitions)
        spec = TopicSpec(name, partitions)
        check_specs([spec])
        self.broker.create_topic(spec)

    def append(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int = 0,
    ) -> Offset:
        """Writes a record without a transaction, as other producers do; returns its offset.

        Raises:
            FatalError: the partition does not exist.
            ArgumentError: an argument is of another type.
        """
        check_place(topic, partition)
        require(int, partition=partition)
        check_record(topic, value, key, headers)
        return self.broker.append(TopicPartition(topic, partition), key, value, headers)

    async def committed(self, topic: str) -> list[Record]:
        """The records of a topic that readers see, by partition, in offset order.

        Raises:
            UndecidedError: a transaction of the topic stays open for longer than half a minute.
        """
        check_topic_name(topic)
        partitions = self.broker.partitions([topic])
        logs = {data: self.broker.log(data) for data in partitions}
        ends = {data: EndOffset(log.end) for data, log in logs.items() if log is not None}
        group = f"stilltide.committed-{next(self._groups)}"
        async with Subscription(topic, group=group, connector=self.connector) as subscription:
            subscription.tracing = None  # a look at the topic is no work of the application
            visible = [message async for message in subscription.read_to(ends)]
        return sorted(visible, key=lambda record: (record.partition, record.offset))


class SyncMemoryCluster:
    """As `MemoryCluster`, for tests of programs that use `stilltide.sync`; a context manager.

        with SyncMemoryCluster({"orders": 3}) as cluster:
            with TransactionClient(connector=cluster.connector) as client:
                ...
            assert [it.value for it in cluster.committed("orders")] == [b"first"]

    Args:
        topics: number of partitions by topic, created on entry.

    Attributes:
        connector: what clients and subscriptions of `stilltide.sync` take as `connector`.
    """

    def __init__(self, topics: Mapping[str, int] | None = None) -> None:
        self._cluster = MemoryCluster(topics)
        self.connector = self._cluster.connector
        self._calls = LoopCalls("cluster")

    def __enter__(self) -> Self:
        self._calls.run(self._cluster.__aenter__())
        return self

    def __exit__(self, *raised: object) -> None:
        self._calls.run(self._cluster.__aexit__(*raised))

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Creates a topic; raises as `MemoryCluster.create_topic`."""
        self._calls.call(self._cluster.create_topic, name, partitions)

    def append(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int = 0,
    ) -> Offset:
        """Writes a record without a transaction; as `MemoryCluster.append`."""
        return self._calls.call(
            lambda: self._cluster.append(
                topic, value, key=key, headers=headers, partition=partition
            )
        )

    def committed(self, topic: str) -> list[Record]:
        """The records of a topic that readers see; as `MemoryCluster.committed`."""
        return self._calls.run(self._cluster.committed(topic))

    def down(self) -> None:
        """Makes the broker unreachable."""
        self._calls.call(self._cluster.broker.down)

    def up(self) -> None:
        """Makes the broker reachable again, with all its records."""
        self._calls.call(self._cluster.broker.up)
