"""A writer whose reports tell what hinders a worker.

*Source*: docs/protocols C17. Entries, markers, answers, requests and signals all pass here, so that
nothing that keeps them from their topics goes unseen.

*Invariants*: entries, markers, signals and requests are tried again by those that wait for them; an
answer is not. So an answer that is refused is followed by an empty record each second, which no
client takes for its own, until its topic takes records again.
"""

import asyncio
from collections.abc import Mapping
from functools import partial

from stilltide.connectors.errors import ConnectorError, FatalError, RetriableError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import TopicAdmin
from stilltide.connectors.ports.writers import Delivered, LogWriter, NewHeaders
from stilltide.pipeline.drivers.service.hindrances import ENTRIES, Explain, Hindrances, Work
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.topics import (
    MIN_INSYNC_REPLICAS,
    PENDING_ACK_LOG,
    REPLICATION_MARKERS,
    TXN_LOG,
    TXN_MARKERS,
    TXN_RESPONSES,
)
from stilltide.schemas.values import TopicPartition

log = get_logger(__name__)

PROBE_S = 1.0
"""Seconds from an answer that was refused to an empty record, and from that to the next one."""

PROBE_KEY = b"probe"
"""Key of the empty records; the key of an answer is longer."""

WORKS: Mapping[str, str] = {
    TXN_LOG: ENTRIES,
    PENDING_ACK_LOG: ENTRIES,
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
        self._answers: dict[Work, TopicPartition] = {}  # the works that are probed
        self._probes: dict[Work, asyncio.TimerHandle] = {}
        self._loop = asyncio.get_running_loop()
        self._now_s = self._loop.time
        self._closed = False

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
            self._failed(work, error)
            raise
        if work.under_way:  # as `begun`, which would cost more than all of the rest
            work.under_way += 1
        else:
            work.begun(self._now_s())

    async def room(self) -> None:
        """Returns when the local queue has room again."""
        await self._writer.room()

    def flush_soon(self) -> None:
        """Sends what is queued without lingering."""
        self._writer.flush_soon()

    async def flush(self, timeout_s: float) -> bool:
        """Waits for the outcome of every queued record."""
        return await self._writer.flush(timeout_s)

    async def close(self, timeout_s: float = 5.0) -> None:
        """Flushes, then reports `RetriableError` for records left."""
        self._closed = True
        for timer in self._probes.values():
            timer.cancel()
        await self._writer.close(timeout_s)

    def reached(self, data: TopicPartition) -> None:
        """What records of this partition are for was done by another way: they hinder nobody."""
        work = self._works.get(data)
        if work is not None and work.error is not None:
            work.done(self._now_s())

    def _work(self, data: TopicPartition) -> Work:
        name = WORKS.get(data.topic, "requests")
        work = self._works[data] = self.hindrances.work(name, str(data))
        if data.topic == TXN_RESPONSES:
            self._answers[work] = data
        return work

    def _delivered(
        self, work: Work, delivered: Delivered, error: ConnectorError | None, offset: int
    ) -> None:
        if error is None and work.error is None:  # as `succeeded`, at less cost
            work.under_way -= 1
            work.since_s = self._now_s()
        elif error is None:
            work.succeeded(self._now_s())
        else:
            work.under_way -= 1
            self._failed(work, error)
        delivered(error, offset)

    def _failed(self, work: Work, error: ConnectorError) -> None:
        self.hindrances.failed_at(work, error)
        if work in self._answers and work not in self._probes and not self._closed:
            self._probes[work] = self._loop.call_later(PROBE_S, self._probe, work)

    def _probe(self, work: Work) -> None:
        """Finds out whether a topic of answers takes records again."""
        del self._probes[work]
        if work.error is None or work.under_way:
            return  # the record under way finds it out
        try:
            self.append(self._answers[work], b"", _nobody_waits, key=PROBE_KEY)
        except ConnectorError as error:
            log.debug("not_probed", place=work.place, why=error.primary)


def _nobody_waits(_error: ConnectorError | None, _offset: int) -> None:
    """A probe is no answer."""


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
