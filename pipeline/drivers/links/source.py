"""Reads what a link may copy: committed, decided records, in order, a bounded number ahead.

*Source*: protocols.md D1-D5 (rules in `core.read_committed`), H1, H4 (what counts as passed).

*Invariants*: of a data partition nothing is handed out twice or out of order between two `assign`;
what is handed out is followed by the position up to which everything else was passed.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import structlog

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.copying import Columns
from stilltide.connectors.ports.records import EndReached
from stilltide.pipeline.core.links.copying import SourceRecord
from stilltide.pipeline.core.read_committed.effects import (
    Deliver,
    Effect,
    PauseFetching,
    ResumeFetching,
    Withheld,
)
from stilltide.pipeline.core.read_committed.machine import PartitionFilter
from stilltide.pipeline.drivers.links.sides import Side
from stilltide.pipeline.drivers.read_committed.evidence import OutcomeTail
from stilltide.pipeline.drivers.read_committed.snapshot_asker import Blocked, SnapshotAsker
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.txn_headers import txns_of_headers
from stilltide.schemas.headers import Headers
from stilltide.schemas.replication.origins import origin_of
from stilltide.schemas.topics import TXN_MARKERS, TXN_SNAPSHOTS
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

READY_RECORDS_MAX = 16_000
READY_BYTES_MAX = 16 * 1024 * 1024
"""Decided records, and their values, that are held ahead, more by one read at most: enough to have
the next transaction ready when one has committed."""

_UNDECIDED_RECORDS_MAX = 10_000
_ASK_AFTER_S = 5.0

_log = structlog.get_logger(__name__)

Payload = tuple[Headers | None, bytes | None, bytes | None, int]
"""Headers, key, value and milliseconds since 1970 of a record."""


class Ready(NamedTuple):
    """Everything of a data partition up to `until` that was not handed out before.

    Attributes:
        data: the partition.
        records: the visible ones.
        until: every other record below is hidden for good.
        size_bytes: of the values.
    """

    data: TopicPartition
    records: Sequence[SourceRecord[Payload]]
    until: EndOffset
    size_bytes: int


class DecidedSource:
    """The data partitions of one link driver.

    Args:
        side: the source.
        client_id: prefix of the names its clients bear.
        outages: for markers and snapshots.
        changed: called when more is ready.
    """

    def __init__(
        self, side: Side, client_id: str, outages: OutageGuard, changed: Callable[[], None]
    ) -> None:
        self._side = side
        self._client_id = client_id
        self._outages = outages
        self._changed = changed
        self._reader = side.connector.column_reader(client_id)
        self._machines: dict[TopicPartition, PartitionFilter[Any]] = {}
        self._since: dict[TopicPartition, tuple[Offset, float]] = {}
        self._ready: deque[Ready] = deque()
        self._ready_count = self._ready_bytes = 0
        self._room = asyncio.Event()
        self._assigned = asyncio.Event()
        self._evidence = self._new_evidence(side.admin)
        self._tailing: asyncio.Task[None] | None = None
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def assign(self, positions: Mapping[TopicPartition, EndOffset]) -> None:
        """Reads these partitions from these positions on, and no others."""
        await self._stop_evidence()
        self._evidence.remove(list(self._machines))
        self._machines = {
            data: PartitionFilter[Any](
                position=Offset(position), waiting_max=_UNDECIDED_RECORDS_MAX
            )
            for data, position in positions.items()
        }
        self._ready.clear()
        self._ready_count = self._ready_bytes = 0
        self._since.clear()
        self._evidence.add(positions)
        await self._reader.assign({data: Offset(at) for data, at in positions.items()})
        self._tailing = asyncio.create_task(self._tail())
        self._assigned.set()
        self._room.set()

    def next_ready(self) -> Ready | None:
        """What comes next, if there is anything; it stays until `take`."""
        return self._ready[0] if self._ready else None

    def take(self) -> Ready:
        """What `next_ready` has shown."""
        ready = self._ready.popleft()
        self._ready_count -= max(1, len(ready.records))
        self._ready_bytes -= ready.size_bytes
        self._room.set()
        return ready

    async def run(self) -> None:
        """Reads until cancelled; raises what reading raises."""
        asker = SnapshotAsker(
            self._side.connector,
            client_id=f"{self._client_id}-asks",
            after_s=_ASK_AFTER_S,
            blocked=self._blocked,
        )
        tasks = [asyncio.ensure_future(it) for it in (self._read(), asker.run())]
        try:
            await asyncio.gather(*tasks, self._failed)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._stop_evidence()

    async def close(self) -> None:
        """Releases connections."""
        await self._stop_evidence()
        await self._reader.close()

    def _new_evidence(self, admin: LogAdmin) -> OutcomeTail:
        return OutcomeTail(
            self._side.connector,
            admin,
            self._outages,
            client_id=self._client_id,
            marker_partitions=self._side.counts[TXN_MARKERS],
            snapshot_partitions=self._side.counts[TXN_SNAPSHOTS],
            machine_of=self._machine_of,
            decided=self._decided,
            batch_read=lambda: None,
        )

    def _machine_of(self, data: TopicPartition) -> PartitionFilter[Any] | None:
        return self._machines.get(data)

    async def _tail(self) -> None:
        try:
            await self._evidence.run()
        except Exception as error:  # noqa: BLE001 - raised by `run`
            if not self._failed.done():
                self._failed.set_exception(error)

    async def _stop_evidence(self) -> None:
        tailing, self._tailing = self._tailing, None
        if tailing is not None:
            tailing.cancel()
            await asyncio.gather(tailing, return_exceptions=True)

    async def _read(self) -> None:
        await self._assigned.wait()
        while True:
            while self._ready_count >= READY_RECORDS_MAX or self._ready_bytes >= READY_BYTES_MAX:
                self._room.clear()
                await self._room.wait()
            for item in await self._reader.read():
                self._item_read(item)

    def _item_read(self, item: Columns | EndReached) -> None:
        if isinstance(item, EndReached):
            data = item.data
            effects = self._machines[data].end_reached(item.end_offset)
        else:
            data = item.data
            offsets, txns = item.offsets, txns_of_headers(item.headers)
            effects = self._machines[data].records_read(offsets, txns, _payloads(item))
        self._decided(data, effects)

    def _decided(self, data: TopicPartition, effects: Iterable[Effect[Any]]) -> None:
        for effect in effects:
            match effect:
                case Deliver(payloads, position):
                    values = [value for _, _, (_, _, value, _) in payloads if value]
                    size_bytes = sum(map(len, values))
                    self._ready.append(Ready(data, payloads, position, size_bytes))
                    self._ready_count += max(1, len(payloads))
                    self._ready_bytes += size_bytes
                    self._changed()
                case PauseFetching():
                    self._reader.pause([data])
                case ResumeFetching():
                    self._reader.resume([data])
                case Withheld(offset, reason, txn):
                    _log.warning(
                        "a record is not copied",
                        cluster=self._side.name,
                        partition=str(data),
                        offset=offset,
                        reason=reason.value,
                        txn=None if txn is None else str(txn),
                    )

    def _blocked(self) -> dict[TopicPartition, Blocked]:
        """The partitions that stand at an undecided record."""
        now = asyncio.get_running_loop().time()
        blocked: dict[TopicPartition, Blocked] = {}
        for data, machine in self._machines.items():
            undecided, caught_up_at = machine.undecided, self._evidence.caught_up_at(data)
            if undecided is None:
                self._since.pop(data, None)
                continue
            offset, since = self._since.get(data, (undecided.offset, now))
            if offset != undecided.offset:
                since = now
            self._since[data] = undecided.offset, since
            waited_s = 0.0 if caught_up_at is None else now - max(since, caught_up_at)
            blocked[data] = Blocked(data, undecided.offset, undecided.txn, waited_s)
        return blocked


def _payloads(columns: Columns) -> list[SourceRecord[Payload]]:
    """Records as the link takes them."""
    _, offsets, headers, keys, values, timestamps_ms = columns
    payloads = zip(headers, keys, values, timestamps_ms, strict=True)
    origins = map(origin_of, headers) if any(headers) else [None] * len(headers)
    return list(zip(offsets, origins, payloads, strict=True))
