"""Reads the visible records of data partitions once, as of now, without a consumer group.

*Source*: docs/protocols D1, D2 (rules in `core.read_committed`).

*Invariants*:
- A partition ends at its decided end: the last stable offset when the scan began, or the first
  record below that is undecided by all markers and snapshots that were written by then.
- Records are returned in offset order for each partition; memory does not grow with the log.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector, closing
from stilltide.connectors.ports.readers import EndReached, Fetching, LogReader, Record
from stilltide.pipeline.core.read_committed.machine import Deliver, Withheld
from stilltide.pipeline.drivers.read_committed.decided import DecidedPartitions
from stilltide.pipeline.drivers.read_committed.outcome_tails import OutcomeLogs
from stilltide.pipeline.drivers.shared.log_scan import Pauses
from stilltide.pipeline.drivers.shared.named_partitions import require_topics
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.tasks import cancelled
from stilltide.schemas.topics import TXN_MARKERS, TXN_SNAPSHOTS
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

WAITING_MAX = 10_000
"""Records of a partition held behind an undecided one before fetching it pauses."""

_SYSTEM_TOPICS = (TXN_MARKERS, TXN_SNAPSHOTS)


class Found(NamedTuple):
    """The next visible records of a partition, and the decided offset behind them.

    Attributes:
        data: the partition.
        records: visible records, perhaps none.
        position: every record below was returned, or is hidden.
        over: whether `position` is the decided end.
    """

    data: TopicPartition
    records: list[Record]
    position: EndOffset
    over: bool


class VisibleScan:
    """One scan; made by `visible_scan`."""

    def __init__(self, reader: LogReader, logs: OutcomeLogs) -> None:
        self._reader = reader
        self._pauses = Pauses(reader)
        self._admin, self._outages = logs.admin, logs.outages
        self._found: dict[TopicPartition, list[Record]] = {}
        self._read_to: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, EndOffset] = {}
        self._evidence_ends: dict[TopicPartition, EndOffset] = {}
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._left: set[TopicPartition] = set()
        self._decided = DecidedPartitions[Record](logs, self, waiting_max=WAITING_MAX)

    async def run(self, positions: Mapping[TopicPartition, Offset]) -> AsyncGenerator[Found, None]:
        """The visible records from these positions to the decided ends; `over` once for each.

        Raises:
            OffsetOutOfRangeError: a position is below its log start, or has left the log meanwhile.
            UnavailableError: the cluster stayed away.
            Errors of `DecidedPartitions.run`.
        """
        if not positions:
            return
        await self._begin(positions)
        evidence = asyncio.create_task(self._decided.run())
        reading = asyncio.create_task(self._read(positions))
        try:
            self._left = set(positions)
            shown: dict[TopicPartition, EndOffset] = {}
            while self._left:
                self._changed.clear()
                for data in sorted(self._left):
                    part = self._take(data)
                    if part.over:
                        self.leave(data)
                    if part.over or shown.get(data) != part.position:
                        shown[data] = part.position
                        yield part
                self._taken.set()
                if self._left:
                    await self._wait(evidence, reading)
        finally:
            await cancelled(evidence, reading)

    def leave(self, data: TopicPartition) -> None:
        """Reads no more of a partition: the caller has seen enough."""
        self._left.discard(data)
        self._found.pop(data, None)
        self._decided.remove([data])

    async def _begin(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """The ends are those of this moment: data first, then what decides it."""
        call, admin = self._outages.call, self._admin
        partitions = list(positions)
        self._ends = await call(admin.end_offsets, partitions, committed=True)
        self._decided.add(positions)
        self._read_to = dict(positions)
        sources = [self._decided.sources(data) for data in partitions]
        markers, snapshots = ([*{it[n] for it in sources}] for n in (0, 1))
        self._evidence_ends = {
            **await call(admin.end_offsets, markers),
            **await call(admin.end_offsets, snapshots, committed=True),
        }

    def _take(self, data: TopicPartition) -> Found:
        """What was delivered since the last call; the order of the checks matters."""
        machine = self._decided.machine(data)
        assert machine is not None
        end = self._ends.get(data, EndOffset(0))
        markers, snapshots = self._decided.sources(data)
        ends = self._evidence_ends.get(markers, 0), self._evidence_ends.get(snapshots, 0)
        knows_all = self._decided.was_read(data, EndOffset(ends[0]), EndOffset(ends[1]))
        # A partition that is full holds an undecided record, and all that decides it was read.
        read_all = self._read_to[data] >= end or data in self._decided.full
        over = machine.position >= end or (knows_all and read_all)
        records = [it for it in self._found.pop(data, ()) if it.offset < end]
        return Found(data, records, EndOffset(min(machine.position, end)), over)

    async def _wait(self, *tasks: asyncio.Task[None]) -> None:
        """Until something was read; raises what has ended a task."""
        changed = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait([changed, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        for task in tasks:
            if task.done():
                task.result()

    async def _read(self, positions: Mapping[TopicPartition, Offset]) -> None:
        await self._reader.assign(positions)
        while True:
            self._taken.clear()
            if self._found:  # the caller takes what was found before more is read
                await self._taken.wait()
            for item in await self._outages.read(self._reader.read):
                data = item.data
                if isinstance(item, EndReached):
                    self._read_to[data] = max(self._read_to[data], item.end_offset)
                    self._decided.end_reached(data, item.end_offset)
                else:
                    self._read_to[data] = item.offset + 1
                    self._decided.records_read(data, [item.offset], [item.headers], [item])
            self.evidence_read()

    def evidence_read(self) -> None:
        """Something was read: fetches what is still wanted, and wakes the caller."""
        ended = {
            data
            for data, read_to in self._read_to.items()
            if data not in self._left or read_to >= self._ends.get(data, 0)
        }
        self._pauses.apply(self._decided.full | ended)
        self._changed.set()

    def withheld(self, _data: TopicPartition, _withheld: Withheld) -> None:
        """A scan shows what is visible."""

    def undecided_changed(self) -> None:
        """A scan ends there."""

    def delivered(self, data: TopicPartition, batch: Deliver[Record]) -> None:
        """Keeps visible records until the caller takes them."""
        if batch.payloads and data in self._left:
            self._found.setdefault(data, []).extend(batch.payloads)


@asynccontextmanager
async def visible_scan(
    connector: Connector, admin: LogAdmin, *, client_id: str, timeout_s: float
) -> AsyncGenerator[VisibleScan, None]:
    """A scan of a cluster, with its connections, during the block.

    Args:
        connector: the cluster.
        admin: admin client of the same cluster; the caller closes it.
        client_id: prefix of the clients' names at the brokers.
        timeout_s: longest time that the cluster may be away.

    Raises:
        FatalError: the system topics do not exist.
        UnavailableError: the cluster cannot be reached.
    """
    outages = OutageGuard(admin, timeout_s=timeout_s)
    described = await outages.call(admin.describe_topics, _SYSTEM_TOPICS)
    require_topics(_SYSTEM_TOPICS, described)
    logs = OutcomeLogs.of(connector, admin, outages, client_id, topics=described)
    async with closing(connector.reader(f"{client_id}-data", fetching=Fetching.SCANNING)) as reader:
        yield VisibleScan(reader, logs)
