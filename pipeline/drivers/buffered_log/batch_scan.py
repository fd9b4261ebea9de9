"""Finds the entries of a log that hold batches, which a program without batching cannot read.

*Source*: docs/protocols A7 (bare and framed entries), B3, B6.
*Invariants*: every entry from the log start to the end as of the call was looked at; a batch of one
record counts, and so does a batch that is a foreign entry (B6), since a program unpacks an entry
before it checks the stamp. An entry that was trimmed during the scan is not reported.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stilltide.connectors.errors import FatalError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector, closing
from stilltide.connectors.ports.readers import EndReached, Fetching, LogReader
from stilltide.pipeline.drivers.shared.named_partitions import require_topics
from stilltide.schemas.framing import is_framed
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

RANGES_MAX = 1000
"""Ranges kept for one log; batches after them are only counted."""


@dataclass(slots=True)
class BatchScan:
    """The batches of one log in `[start_offset, end_offset)`.

    Attributes:
        log: the partition of the log.
        start_offset: offset of the first entry to look at.
        end_offset: end offset of the scan.
        batch_count: number of entries that hold batches.
        ranges: offsets of those entries as ranges `[first, end)`, up to `RANGES_MAX` ranges.
        next_offset: offset of the next entry to look at.
    """

    log: TopicPartition
    start_offset: Offset
    end_offset: EndOffset
    batch_count: int = 0
    ranges: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    next_offset: int = field(init=False)

    def __post_init__(self) -> None:
        self.next_offset = self.start_offset

    @property
    def done(self) -> bool:
        """Whether every entry was looked at."""
        return self.next_offset >= self.end_offset

    def entry_read(self, offset: int, value: bytes | None) -> None:
        """Takes the next entry; one without a value is foreign and passed over (B6)."""
        if self.done:
            return
        self.next_offset = offset + 1
        if value is None or not is_framed(value):
            return
        self.batch_count += 1
        if self.ranges and self.ranges[-1][1] == offset:
            self.ranges[-1] = self.ranges[-1][0], offset + 1
        elif len(self.ranges) < RANGES_MAX:
            self.ranges.append((offset, offset + 1))


async def scan_for_batches(connector: Connector, topic: str) -> list[BatchScan]:
    """Reads every partition of a log topic from its start to its end as of the call.

    Raises:
        FatalError: the topic does not exist.
        RetriableError: the broker is away.
    """
    reader = connector.reader("batch-scan", committed=False, fetching=Fetching.SCANNING)
    async with closing(connector.admin()) as admin, closing(reader):
        described = await admin.describe_topics([topic])
        require_topics([topic], described)
        logs = [TopicPartition(topic, it) for it in range(described[topic].partition_count)]
        ends = await admin.end_offsets(logs)
        starts = await admin.start_offsets(logs)
        scans = {log: _scan(log, starts, ends[log]) for log in logs}
        while not all(scan.done for scan in scans.values()):
            try:
                await _read(reader, scans)
            except FatalError:
                if not await _begin_again(admin, scans):
                    raise
        return list(scans.values())


def _scan(
    log: TopicPartition, starts: Mapping[TopicPartition, Offset], end: EndOffset
) -> BatchScan:
    return BatchScan(log, Offset(min(starts[log], end)), end)


async def _read(reader: LogReader, scans: Mapping[TopicPartition, BatchScan]) -> None:
    left = {log: scan for log, scan in scans.items() if not scan.done}
    await reader.assign({log: Offset(scan.next_offset) for log, scan in left.items()})
    while left:
        for item in await reader.read():
            scan = scans[item.data]
            if isinstance(item, EndReached):
                scan.next_offset = max(scan.next_offset, item.end_offset)
            else:
                scan.entry_read(item.offset, item.value)
        ended = [log for log, scan in left.items() if scan.done]
        reader.pause(ended)
        for log in ended:
            del left[log]


async def _begin_again(admin: LogAdmin, scans: dict[TopicPartition, BatchScan]) -> bool:
    """Restarts the scan of each log that was trimmed past its position; whether there was one."""
    left = [log for log, scan in scans.items() if not scan.done]
    starts = await admin.start_offsets(left)
    overtaken = [log for log in left if starts[log] > scans[log].next_offset]
    for log in overtaken:
        scans[log] = _scan(log, starts, scans[log].end_offset)
    return bool(overtaken)
