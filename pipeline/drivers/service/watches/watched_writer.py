"""A writer whose reports tell what hinders a worker.

*Source*: docs/protocols C17. Entries, markers, answers, requests and signals all pass here, so that
nothing that keeps them from their topics goes unseen.
"""

import asyncio
from collections.abc import Mapping
from functools import partial

from stilltide.connectors.errors import ConnectorError, FatalError, RetriableError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.topics import TopicAdmin
from stilltide.connectors.ports.writers import Delivered, LogWriter, NewHeaders
from stilltide.pipeline.drivers.service.hindrances import Explain, Hindrances, Work
from stilltide.schemas.topics import (
    MIN_INSYNC_REPLICAS,
    PENDING_ACK_LOG,
    REPLICATION_MARKERS,
    TXN_LOG,
    TXN_MARKERS,
    TXN_RESPONSES,
)
from stilltide.schemas.values import TopicPartition

WORKS: Mapping[str, str] = {
    TXN_LOG: "entries",
    PENDING_ACK_LOG: "entries",
    TXN_MARKERS: "markers",
    TXN_RESPONSES: "answers",
    REPLICATION_MARKERS: "group updates",
}
"""Kinds of work by topic; writes to any other topic are `requests`."""


class WatchedWriter:
    """A `LogWriter` that notes in `hindrances` what becomes of each record.

    Args:
        writer: appends the records.
        hindrances: what hinders the worker.

    Attributes:
        hindrances: as above.
    """

    def __init__(self, writer: LogWriter, hindrances: Hindrances) -> None:
        self._writer = writer
        self._append = writer.append
        self.hindrances = hindrances
        self._works: dict[TopicPartition, Work] = {}
        self._now_s = asyncio.get_running_loop().time

    def append(
        self,
        data: TopicPartition,
        value: bytes | None,
        delivered: Delivered,
        *,
        key: bytes | None = None,
        headers: NewHeaders | None = None,
    ) -> None:
        """Queues one record and returns at once; see `LogWriter.append`."""
        work = self._works.get(data) or self._work(data)
        report = partial(self._delivered, work, delivered)
        try:
            self._append(data, value, report, key=key, headers=headers)
        except FatalError as error:
            self.hindrances.failed_at(work, error)
            raise
        if work.under_way:  # as `begun`, which would cost more than all of the rest
            work.under_way += 1
        else:
            work.begun(self._now_s())

    async def room(self) -> None:
        """Returns when the local queue has room again."""
        await self._writer.room()

    def hurry(self) -> None:
        """Sends what is queued without lingering."""
        self._writer.hurry()

    async def flush(self, timeout_s: float) -> bool:
        """Waits for the outcome of every queued record."""
        return await self._writer.flush(timeout_s)

    async def close(self, timeout_s: float = 5.0) -> None:
        """Flushes, then reports `RetriableError` for records left."""
        await self._writer.close(timeout_s)

    def _work(self, data: TopicPartition) -> Work:
        name = WORKS.get(data.topic, "requests")
        work = self._works[data] = self.hindrances.work(name, str(data))
        return work

    def _delivered(
        self, work: Work, delivered: Delivered, error: ConnectorError | None, offset: int
    ) -> None:
        if error is None:
            work.succeeded(self._now_s())
        else:
            work.under_way -= 1
            self.hindrances.failed_at(work, error)
        delivered(error, offset)


def explained_by(topics: TopicAdmin, admin: LogAdmin) -> Explain:
    """Explains silence by the replicas that are in sync: a producer waits for them without a word.

    Args:
        topics: tells which replicas are in sync.
        admin: tells how many must be.
    """

    async def explain(place: str) -> ConnectorError | None:
        topic, _, number = place.rpartition("/")
        partitions = (await topics.placements([topic])).get(topic, ())
        if not number.isdigit() or int(number) >= len(partitions):
            return None
        configs = (await admin.topic_configs([topic])).get(topic, {})
        needed = int(configs.get(MIN_INSYNC_REPLICAS) or 1)
        replicas, in_sync = partitions[int(number)]
        if len(in_sync) >= needed:
            return None
        error = RetriableError(
            f"too few replicas: {len(in_sync)} of {len(replicas)} are in sync, and "
            f"{MIN_INSYNC_REPLICAS} of the topic is {needed}",
            hint=f"start the brokers that are away, or lower {MIN_INSYNC_REPLICAS}; "
            "`stilltide topics check` names the partitions",
        )
        error.reason = "NOT_ENOUGH_REPLICAS"
        return error

    return explain
