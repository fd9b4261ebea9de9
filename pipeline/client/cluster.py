"""Producers, coordinators and topic metadata that the transactions of one client share."""

import asyncio
from typing import NamedTuple

from stilltide.connectors.errors import FatalError, RetriableError
from stilltide.connectors.ports.admin import LogAdmin, TopicDescription
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.writers import LogWriter
from stilltide.pipeline.client.gathering import Gathering
from stilltide.pipeline.drivers.coordinator.pool import PoolDriver
from stilltide.pipeline.drivers.service.requests import (
    COORDINATOR_SERVICE,
    CoordinatorRequests,
    Requests,
)
from stilltide.pipeline.drivers.shared.system_topics import require_topics
from stilltide.pipeline.errors import RefusedError, system_topic
from stilltide.schemas import topics
from stilltide.schemas.coordinator.transactions import Answer, Refused, Registered, RequestBody
from stilltide.schemas.values import EndOffset, TopicPartition


class Writers(NamedTuple):
    """The two producers of one client: one for records, one for requests."""

    records: LogWriter
    requests: LogWriter


class ClientCluster:
    """One client's connections to one cluster; made by `connect`."""

    def __init__(
        self,
        admin: LogAdmin,
        writers: Writers,
        requests: CoordinatorRequests,
        open_transactions_max: int,
    ) -> None:
        self._writers = writers
        self.writer = writers.records
        self.gathering = Gathering(self.writer.hurry)
        self._slots = asyncio.Semaphore(open_transactions_max)
        self.known_ends: dict[TopicPartition, EndOffset] = {}
        self._admin = admin
        self._requests = requests
        self._topics: dict[str, TopicDescription] = {}
        self._lock = asyncio.Lock()
        self.pool = PoolDriver(requests, self.registration)

    @property
    def coordinator(self) -> int:
        """The number of the coordinator that opens this client's transactions."""
        return self._requests.home

    async def enter(self) -> None:
        """Counts one open transaction more; waits while there are `open_transactions_max`."""
        await self._slots.acquire()

    def leave(self) -> None:
        """Counts one open transaction less."""
        self._slots.release()

    def topic(self, name: str) -> TopicDescription | None:
        """The topic's description if `describe` has asked for it, without waiting."""
        return self._topics.get(name)

    async def describe(self, name: str) -> TopicDescription:
        """The topic's id and partition count; asks the cluster the first time.

        A topic has to be described before its partitions are registered or written to.

        Raises:
            SystemTopicError: the topic is one of Stilltide's own; the cluster was not asked.
            FatalError: the topic does not exist.
            RetriableError: the topic is being created or deleted, or the broker is away.
        """
        if topics.is_system_topic(name):  # a foreign record there ends workers
            raise system_topic(name, hint="write to a topic of another name")
        async with self._lock:
            if name in self._topics:
                return self._topics[name]
            found = (await self._admin.describe_topics([name])).get(name)
            if found is None:
                raise FatalError("the topic does not exist", hint="create it first", topic=name)
            partitions = [TopicPartition(name, number) for number in range(found.partition_count)]
            ends = await self._admin.end_offsets(partitions)
            if len(ends) < len(partitions):
                raise RetriableError("the topic is changing", hint="try again", topic=name)
            self.known_ends.update(ends)
            self._topics[name] = found
            return found

    async def end_offset(self, data: TopicPartition) -> EndOffset:
        """The partition's current end offset, as the broker answers now.

        Raises:
            FatalError: the partition does not exist any more.
        """
        ends = await self._admin.end_offsets([data])
        if data not in ends:
            raise FatalError("the partition has gone", topic=data.topic, partition=data.partition)
        return ends[data]

    def registration(self, data: TopicPartition) -> Registered:
        """The registration of a described partition, from the last known end offset (C2)."""
        return Registered(data, self.known_ends[data], self._topics[data.topic].topic_id)

    async def ask(self, coordinator: int, body: RequestBody) -> Answer:
        """Sends a request to a coordinator, and returns the answer.

        Raises:
            RefusedError: the request is illegal and changed nothing.
            RequestTimeoutError: no answer in time; the request may still be carried out.
        """
        answer = await self._requests.ask(coordinator, body)
        if isinstance(answer, Refused):
            raise RefusedError("the coordinator refused the request", detail=answer.reason)
        return answer

    async def close(self) -> None:
        """Closes the connections, and gives up the transactions that were opened ahead."""
        self.pool.close()
        await self._requests.close()
        await asyncio.gather(*(writer.close() for writer in self._writers))
        await self._admin.close()


async def connect(
    connector: Connector,
    *,
    name: str,
    request_timeout_s: float,
    resend_s: float,
    open_transactions_max: int,
    linger_ms: float,
) -> ClientCluster:
    """Connects a client; the arguments are those of `TransactionClient`.

    Raises:
        FatalError: the system topics do not exist.
        RetriableError: the cluster cannot be reached; the error names its address.
    """
    admin = connector.admin()
    needed = (topics.TXN_REQUESTS, topics.TXN_RESPONSES)
    try:
        found = await admin.describe_topics(needed)
        require_topics(needed, found)
    except BaseException:
        await admin.close()
        raise
    writers = Writers(
        records=connector.writer(name, linger_ms=linger_ms),
        # No linger: a caller waits for each request, and requests are batched before they get here.
        requests=connector.writer(f"{name}-requests"),
    )
    requests = Requests(
        COORDINATOR_SERVICE,
        connector,
        writers.requests,
        name=name,
        request_timeout_s=request_timeout_s,
        resend_s=resend_s,
    )
    cluster = ClientCluster(admin, writers, requests, open_transactions_max)
    try:
        await requests.open(
            partition_count=found[topics.TXN_REQUESTS].partition_count,
            response_partition_count=found[topics.TXN_RESPONSES].partition_count,
        )
    except BaseException:
        await cluster.close()
        raise
    return cluster
