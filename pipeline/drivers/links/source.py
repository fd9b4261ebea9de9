"""Reads the records that a link may copy: committed, decided, in order, a bounded number ahead.

*Source*: docs/protocols D1, D2, D3, D4, D7 (rules in `core.read_committed`), H1, H4 (passed
records).

*Invariants*: between two calls of `assign`, the records of a data partition are handed out once and
in order; each batch has the end offset below which every other record was passed.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from stilltide.connectors.ports.copying import Columns
from stilltide.connectors.ports.readers import EndReached
from stilltide.pipeline.core.links.copying import SourceRecord
from stilltide.pipeline.core.links.progress import LinkProgress
from stilltide.pipeline.core.read_committed.machine import Deliver, Withheld
from stilltide.pipeline.drivers.links.sides import Side, TopicNames
from stilltide.pipeline.drivers.read_committed.decided import DecidedPartitions, SnapshotAsker
from stilltide.pipeline.drivers.read_committed.outcome_tails import OutcomeLogs
from stilltide.pipeline.drivers.shared.log_scan import Pauses
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.tasks import cancelled
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.headers import Headers
from stilltide.schemas.replication.origins import origin_of
from stilltide.schemas.topics import TXN_MARKERS, TXN_SNAPSHOTS
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

READY_RECORDS_MAX = 16_000
READY_BYTES_MAX = 16 * 1024 * 1024
"""Decided records, and bytes of their values, to hold ahead; one more read may come on top. Enough
to have the next transaction ready when one has committed."""

_UNDECIDED_RECORDS_MAX = 10_000
_ASK_AFTER_S = 5.0

_log = get_logger(__name__)

Payload = tuple[Headers | None, bytes | None, bytes | None, int]
"""Headers, key, value and milliseconds since 1970 of a record."""

_Copyable = SourceRecord[Payload]
_PAYLOAD: Callable[[_Copyable], Payload] = itemgetter(2)
_VALUE: Callable[[Payload], bytes | None] = itemgetter(2)


class Ready(NamedTuple):
    """The next visible records of a data partition, up to `until`.

    Attributes:
        data: the data partition, under its name on the target.
        records: visible records.
        until: end offset of the batch; every other record below it is hidden for good.
        size_bytes: bytes of the records' values.
    """

    data: TopicPartition
    records: Sequence[SourceRecord[Payload]]
    until: EndOffset
    size_bytes: int


class DecidedSource:
    """The data partitions of one link driver.

    Args:
        side: the source cluster.
        client_id: prefix of the clients' names at the brokers.
        outages: repeats reads of markers and snapshots while the cluster is away.
        changed: set when more records are ready.
        names: names of the data partitions on both sides.
        progress: counts the records that are withheld.
    """

    def __init__(
        self,
        side: Side,
        client_id: str,
        outages: OutageGuard,
        changed: asyncio.Event,
        names: TopicNames,
        *,
        progress: LinkProgress,
    ) -> None:
        self._side = side
        self._names = names
        self._changed = changed
        self._reader = side.connector.column_reader(client_id)
        self._pauses = Pauses(self._reader)
        self._progress = progress
        logs = OutcomeLogs(
            side.connector,
            side.admin,
            outages,
            client_id,
            marker_partitions=side.counts[TXN_MARKERS],
            snapshot_partitions=side.counts[TXN_SNAPSHOTS],
        )
        waiting_max = _UNDECIDED_RECORDS_MAX
        self._decided = DecidedPartitions[_Copyable](logs, self, waiting_max=waiting_max)
        self._ready: deque[Ready] = deque()
        self._ready_count = self._ready_bytes = 0
        self._room = asyncio.Event()
        self._assigned = asyncio.Event()
        self._tailing: asyncio.Task[None] | None = None
        self._held: set[TopicPartition] = set()  # under their names on the source
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def assign(self, positions: Mapping[TopicPartition, EndOffset]) -> None:
        """Reads exactly these partitions, named as on the target, from these positions on."""
        positions = {self._names.on_source(data): at for data, at in positions.items()}
        await self._stop_evidence()
        self._decided.remove(list(self._decided.partitions))
        self._decided.add(positions)
        self._ready.clear()
        self._ready_count = self._ready_bytes = 0
        await self._reader.assign({data: Offset(at) for data, at in positions.items()})
        self._pauses.forget_all()
        self._tailing = asyncio.create_task(self._tail())
        self._assigned.set()
        self._room.set()

    def next_ready(self) -> Ready | None:
        """The next batch, which stays until `take`; None: no batch is ready."""
        return self._ready[0] if self._ready else None

    def take(self) -> Ready:
        """Removes and returns the batch that `next_ready` has returned."""
        ready = self._ready.popleft()
        self._ready_count -= max(1, len(ready.records))
        self._ready_bytes -= ready.size_bytes
        self._room.set()
        return ready

    def hold(self, data: TopicPartition) -> None:
        """Reads no more of this partition, named as on the target; what is ready stays."""
        self._held.add(self._names.on_source(data))
        self.evidence_read()

    async def run(self) -> None:
        """Reads until cancelled; raises the errors of reading."""
        asker = SnapshotAsker(self._decided, after_s=_ASK_AFTER_S)
        tasks = [asyncio.ensure_future(it) for it in (self._read(), asker.run())]
        try:
            await asyncio.gather(*tasks, self._failed)
        finally:
            await cancelled(*tasks)
            await self._stop_evidence()

    async def close(self) -> None:
        """Releases connections."""
        await self._stop_evidence()
        await self._reader.close()

    async def _tail(self) -> None:
        try:
            await self._decided.run()
        except Exception as error:  # noqa: BLE001 - raised by `run`
            if not self._failed.done():
                self._failed.set_exception(error)

    async def _stop_evidence(self) -> None:
        tailing, self._tailing = self._tailing, None
        await cancelled(tailing)

    async def _read(self) -> None:
        await self._assigned.wait()
        while True:
            while self._ready_count >= READY_RECORDS_MAX or self._ready_bytes >= READY_BYTES_MAX:
                self._room.clear()
                await self._room.wait()
            for item in await self._reader.read():
                if isinstance(item, EndReached):
                    self._decided.end_reached(item.data, item.end_offset)
                else:
                    payloads = _payloads(item, may_be_copies=self._names.publish is None)
                    self._decided.records_read(item.data, item.offsets, item.headers, payloads)
            self.evidence_read()

    def evidence_read(self) -> None:
        """Pauses the partitions that hold enough, and no others."""
        full = self._decided.full
        self._pauses.apply(full | self._held if self._held else full)

    def delivered(self, data: TopicPartition, batch: Deliver[_Copyable]) -> None:
        """Makes a batch of visible records."""
        payloads, position = batch.payloads, batch.position
        size_bytes = sum(map(len, filter(None, map(_VALUE, map(_PAYLOAD, payloads)))))
        self._ready.append(Ready(self._names.on_target(data), payloads, position, size_bytes))
        self._ready_count += max(1, len(payloads))
        self._ready_bytes += size_bytes
        self._changed.set()

    def withheld(self, data: TopicPartition, withheld: Withheld) -> None:
        """Counts a record that is not copied, and logs the first one of its partition."""
        if not self._progress.withholds(self._names.on_target(data), withheld.offset):
            return
        _log.warning(
            "a record is not copied; more like it of this partition are counted, not logged",
            cluster=self._side.name,
            partition=str(data),
            offset=withheld.offset,
            reason=withheld.reason.value,
            txn=None if withheld.txn is None else str(withheld.txn),
        )

    def undecided_changed(self) -> None:
        """The asker looks at blocked partitions by itself."""


def _payloads(columns: Columns, *, may_be_copies: bool) -> list[SourceRecord[Payload]]:
    """The records in the form that the link's machine takes.

    A publish copies the copies of links, too: so no record has an origin that counts (H7).
    """
    _, offsets, headers, keys, values, timestamps_ms = columns
    payloads = zip(headers, keys, values, timestamps_ms, strict=True)
    have_origins = may_be_copies and any(headers)
    origins = map(origin_of, headers) if have_origins else [None] * len(headers)
    return list(zip(offsets, origins, payloads, strict=True))
