"""Which entries hold batches: right for every kind of log there can be."""

import asyncio
from collections.abc import Sequence

import pytest

from stilltide.connectors.errors import FatalError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.drivers.buffered_log import batch_scan
from stilltide.pipeline.drivers.buffered_log.batch_scan import BatchScan, scan_for_batches
from stilltide.pipeline.drivers.coordinator.owner import CODEC
from stilltide.schemas.framing import encode_batch
from stilltide.schemas.log_frames import Fence, Noop
from stilltide.schemas.topics import TXN_LOG, TopicSpec
from stilltide.schemas.values import EndOffset, Offset, TopicPartition
from tests.support.coordinator.worker_memory import until

pytestmark = pytest.mark.topics(TopicSpec(TXN_LOG, 2))

LOG = TopicPartition(TXN_LOG, 0)
BARE = CODEC.encode(Noop(), 0)
FENCE = CODEC.encode(Fence(bytes(16)), 0)
BATCH = encode_batch([BARE, BARE])
BATCH_OF_ONE = encode_batch([BARE])
LATER_VERSION = b"\x0e\x01\x00\x02later"


async def scan(broker: MemoryBroker, *values: bytes | None) -> BatchScan:
    """What is found in partition 0 after these values were appended."""
    for value in values:
        broker.append(LOG, None, value, None)
    found = await scan_for_batches(MemoryConnector(broker), TXN_LOG)
    assert [it.log.partition for it in found] == [0, 1]
    assert found[1].batch_count == 0
    return found[0]


@pytest.mark.parametrize(
    ("values", "ranges"),
    [
        ([], []),
        ([FENCE], []),
        ([FENCE, BARE, BARE], []),
        ([FENCE, BATCH], [(1, 2)]),
        ([FENCE, BATCH_OF_ONE, BARE], [(1, 2)]),
        ([FENCE, LATER_VERSION], [(1, 2)]),
        ([BATCH, BATCH, BARE, BATCH, FENCE, BARE], [(0, 2), (3, 4)]),
    ],
    ids=["empty", "fence", "bare", "batch", "batch of one", "later version", "mixed"],
)
async def test_batches_are_found_wherever_they_lie(
    broker: MemoryBroker, values: Sequence[bytes], ranges: list[tuple[int, int]]
):
    """Every framed entry counts, also one of a single record; a bare one never does."""
    found = await scan(broker, *values)
    assert found.ranges == ranges
    assert found.batch_count == sum(end - first for first, end in ranges)
    assert (found.start_offset, found.end_offset) == (0, len(values))


async def test_what_was_trimmed_is_not_in_the_log(broker: MemoryBroker):
    """C8: batches below the log start are gone, those above it are not."""
    await scan(broker, BATCH, BARE, BATCH)
    broker.delete_records(LOG, Offset(1))
    assert (await scan(broker)).ranges == [(2, 3)]
    broker.delete_records(LOG, Offset(3))
    found = await scan(broker)
    assert (found.ranges, found.start_offset, found.end_offset) == ([], 3, 3)


async def test_a_trim_during_the_scan_is_overtaken(broker: MemoryBroker):
    """B3: it begins again at the new log start, and neither fails nor reports what has gone."""
    for _ in range(2000):
        broker.append(LOG, None, BATCH, None)
    broker.append(LOG, None, BARE, None)
    scanning = asyncio.create_task(scan(broker))
    await until(lambda: broker.watchers)
    broker.delete_records(LOG, Offset(1999))
    found = await scanning
    assert (found.start_offset, found.end_offset, found.ranges) == (1999, 2001, [(1999, 2000)])


async def test_entries_after_the_call_do_not_count(broker: MemoryBroker):
    """The end is that of the call: a busy log does not keep the scan from ending."""
    found = BatchScan(LOG, Offset(0), EndOffset(1))
    found.entry_read(0, BARE)
    found.entry_read(1, BATCH)
    assert (found.done, found.batch_count) == (True, 0)


async def test_ranges_are_bounded_and_counts_are_not(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
):
    """A log of a million scattered batches does not fill the memory."""
    monkeypatch.setattr(batch_scan, "RANGES_MAX", 2)
    found = await scan(broker, *[BATCH, BARE] * 4)
    assert (found.ranges, found.batch_count) == ([(0, 1), (2, 3)], 4)


async def test_foreign_entries_are_passed_over(broker: MemoryBroker):
    """B6: what no owner wrote ends no scan; only where it is framed does it count as a batch."""
    found = await scan(broker, b"x", FENCE, None, b"", BATCH, None)
    assert (found.ranges, found.done) == ([(4, 5)], True)


async def test_control_records_are_passed_over(broker: MemoryBroker):
    """B7: offsets without an entry, in the log and at its end, hold no batch."""
    for number in range(2):
        broker.transactions.append_open(str(number), LOG, None, BATCH, None)
        broker.transactions.end_open(str(number), committed=True)
    found = await scan(broker)
    assert (found.ranges, found.end_offset, found.done) == ([(0, 1), (2, 3)], 4, True)


async def test_an_open_native_transaction_hides_nothing(broker: MemoryBroker):
    """B7: what lies behind it is looked at, too."""
    broker.transactions.append_open("open", LOG, None, BARE, None)
    assert (await scan(broker, BATCH)).ranges == [(1, 2)]


async def test_without_the_log_nothing_is_called_safe():
    """A topic that does not exist is an error: it may be another cluster's."""
    with pytest.raises(FatalError, match="does not exist"):
        await scan_for_batches(MemoryConnector(MemoryBroker()), TXN_LOG)
