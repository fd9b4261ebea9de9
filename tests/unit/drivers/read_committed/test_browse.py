"""D1, D2, D3, D4: records of a window, each with what readers of committed data do with it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.errors import FatalError
from stilltide.pipeline.core.read_committed.machine import RecordVerdict
from stilltide.pipeline.core.status.asks import BYTES_MAX
from stilltide.pipeline.drivers.read_committed.browse import WINDOW_OFFSETS, RecordBrowser
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.headers import TXN
from stilltide.schemas.values import TopicPartition, TxnId
from tests.support.snapshots.evidence_rig import FIRST, ORDERS, SECOND, EvidenceRig

ABORTED = TxnId(0, 7)
"""In the rig's snapshot."""


@pytest.fixture
def rig() -> EvidenceRig:
    """A topic with three plain records."""
    return EvidenceRig()


@pytest.fixture
async def browser(rig: EvidenceRig) -> AsyncIterator[RecordBrowser]:
    """Of the topic's only partition."""
    admin = rig.connector.admin()
    one = RecordBrowser(rig.connector, admin, ORDERS.topic)
    yield one
    await one.close()
    await admin.close()


async def verdicts(
    browser: RecordBrowser, start: int | None = None
) -> list[tuple[int, RecordVerdict]]:
    """Offset and verdict of each record."""
    async with asyncio.timeout(60):
        found = await browser.window(ORDERS.partition, start)
    return [(it.record.offset, it.verdict) for it in found.judged]


async def test_markers_and_snapshots_decide_each_record(rig: EvidenceRig, browser: RecordBrowser):
    """Also those behind an undecided record; a marker that comes later is read on."""
    rig.write(end=rig.end(max_read_position=5))
    assert rig.record(ABORTED) == 3
    rig.record(FIRST)
    rig.record(SECOND)
    rig.broker.append(ORDERS, None, b"v", [(TXN, b"short")])
    rig.record(ABORTED)
    assert await verdicts(browser, 2) == [
        (2, RecordVerdict.VISIBLE),
        (3, RecordVerdict.ABORTED),
        (4, RecordVerdict.VISIBLE),
        (5, RecordVerdict.UNDECIDED),
        (6, RecordVerdict.MALFORMED),
        (7, RecordVerdict.ABORTED),
    ]
    rig.mark(SECOND, committed=False)
    assert (await verdicts(browser, 5))[0] == (5, RecordVerdict.ABORTED)


async def test_a_cluster_where_no_worker_ever_ran(browser: RecordBrowser):
    """Plain records are visible; ends and window are those of the log."""
    found = await browser.window(ORDERS.partition, None)
    assert [it.verdict for it in found.judged] == [RecordVerdict.VISIBLE] * 3
    assert (found.log_start, found.last_stable, found.high_watermark) == (0, 3, 3)
    assert (found.start, found.end, found.max_read_position) == (0, 3, None)


@pytest.mark.parametrize(
    ("start", "first"), [(None, 500), (10**17, 500), (0, 0), (100, 100), (2499, 2499)]
)
async def test_what_is_read_is_bounded(
    rig: EvidenceRig, browser: RecordBrowser, start: int | None, first: int
):
    """An offset outside the log leads to its end; a window has so many offsets at most."""
    for _ in range(WINDOW_OFFSETS + 500 - 3):
        rig.broker.append(ORDERS, None, b"v", None)
    found = await verdicts(browser, start)
    assert found[0][0] == first
    assert len(found) == min(WINDOW_OFFSETS, WINDOW_OFFSETS + 500 - first)


async def test_large_records_end_a_window(rig: EvidenceRig, browser: RecordBrowser):
    """A viewer costs so many bytes at most."""
    for _ in range(12):
        rig.broker.append(ORDERS, None, bytes(1024 * 1024), None)
    found = await browser.window(ORDERS.partition, 0)
    assert (found.end, len(found.judged)) == (11, 11)
    assert (await browser.window(ORDERS.partition, 11)).judged[0].record.offset == 11


async def test_headers_count_and_values_are_cut(rig: EvidenceRig, browser: RecordBrowser):
    """What a window keeps is what is shown; a record may hold a megabyte of headers."""
    headers = [(f"h{number}", bytes(100_000)) for number in range(9)]
    for _ in range(12):
        rig.broker.append(ORDERS, b"k" * 1000, bytes(50_000), headers)
    found = await browser.window(ORDERS.partition, 3)
    assert found.end < 15
    records = [it.record for it in found.judged]
    assert {(len(it.key or b""), len(it.value or b"")) for it in records} == {
        (BYTES_MAX, BYTES_MAX)
    }
    assert {(it.key_bytes, it.value_bytes) for it in records} == {(1000, 50_000)}


async def test_an_empty_partition(rig: EvidenceRig, browser: RecordBrowser):
    """All records were deleted."""
    rig.broker.delete_records(ORDERS, 3)
    found = await browser.window(ORDERS.partition, 1)
    assert (found.start, found.end, found.judged) == (3, 3, ())


async def test_a_partition_or_topic_that_does_not_exist(rig: EvidenceRig):
    """Names of strangers are no failure of the program."""
    admin = rig.connector.admin()
    for data, error in (
        (TopicPartition("orders", 99), RefusedError),
        (TopicPartition("<script>", 0), FatalError),
    ):
        one = RecordBrowser(rig.connector, admin, data.topic)
        with pytest.raises(error):
            await one.window(data.partition, None)
        await one.close()
    await admin.close()
