import asyncio

import pytest

from stilltide.connectors.errors import FatalError, RetriableError
from stilltide.connectors.kafka.config import KafkaConfig, reader_options
from stilltide.connectors.kafka.consumer.inbox import BYTES_MAX, Inbox, PolledBatch
from stilltide.connectors.ports.readers import EndReached, Fetching
from stilltide.schemas.values import EndOffset


def _batch(generation: int, *offsets: int, value_bytes: int = 0) -> PolledBatch:
    return PolledBatch(
        generation, [EndReached("t", 0, EndOffset(it)) for it in offsets], value_bytes
    )


async def _offsets(inbox: Inbox) -> list[int]:
    return [it.end_offset for it in await inbox.take() if isinstance(it, EndReached)]


async def test_batches_of_an_older_generation_are_dropped():
    """Only the current generation's records are returned, and the rest is not counted for ever."""
    inbox = Inbox(records_max=2)
    inbox.generation = 1
    for batch in (_batch(0, 1, 2), _batch(1, 3)):
        inbox.count_in(batch)
        inbox.arrive(batch)
    assert await _offsets(inbox) == [3]
    assert inbox.wait_for_space(0)


async def test_failures_come_after_what_arrived_before_them():
    """Records first; then the failure, by every call until `clear`."""
    inbox = Inbox(records_max=10)
    inbox.arrive(_batch(0, 1))
    inbox.fail(0, FatalError("gone"))
    assert await _offsets(inbox) == [1]
    for _ in range(2):
        with pytest.raises(FatalError, match="gone"):
            await inbox.take()
    inbox.clear()
    inbox.arrive(_batch(0, 2))
    assert await _offsets(inbox) == [2]


async def test_a_failure_of_an_older_generation_is_dropped():
    """An assignment that was replaced cannot fail its successor."""
    inbox = Inbox(records_max=10)
    inbox.generation = 1
    inbox.fail(0, FatalError("stale"))
    inbox.arrive(_batch(1, 1))
    assert await _offsets(inbox) == [1]


async def test_an_outage_is_told_once_and_forgotten_when_records_come():
    """News of an outage that has ended is no news."""
    inbox = Inbox(records_max=10)
    inbox.away(RetriableError("away"))
    with pytest.raises(RetriableError):
        await inbox.take()
    inbox.away(RetriableError("away"))
    inbox.arrive(_batch(0, 1))
    assert await _offsets(inbox) == [1]
    waiting = asyncio.create_task(inbox.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    inbox.close(FatalError("closed"))
    with pytest.raises(FatalError, match="closed"):
        await waiting


@pytest.mark.parametrize("batch", [_batch(0, 1, 2, 3), _batch(0, 1, value_bytes=BYTES_MAX)])
async def test_space_ends_at_the_limit_and_returns_when_taken(batch: PolledBatch):
    """Both the number of records and their bytes are limited."""
    inbox = Inbox(records_max=3)
    assert inbox.wait_for_space(0)
    inbox.count_in(batch)
    assert not inbox.wait_for_space(0)
    inbox.arrive(batch)
    await inbox.take()
    assert inbox.wait_for_space(0)


async def test_a_reader_that_looks_up_little_has_less_space():
    """It reads ahead what its client does, however large the records are."""
    options = reader_options(
        KafkaConfig("localhost:1"), "scan", committed=False, fetching=Fetching.SCANNING
    )
    ahead_bytes = int(options["queued.max.messages.kbytes"]) * 1024
    assert ahead_bytes < BYTES_MAX
    inbox = Inbox(records_max=10, bytes_max=ahead_bytes)
    inbox.count_in(_batch(0, 1, value_bytes=ahead_bytes - 1))
    assert inbox.has_space()
    inbox.count_in(_batch(0, 2, value_bytes=1))
    assert not inbox.has_space()


async def test_clear_gives_the_space_back():
    """What is dropped no longer counts."""
    inbox = Inbox(records_max=1)
    batch = _batch(0, 1)
    inbox.count_in(batch)
    inbox.arrive(batch)
    inbox.clear()
    assert inbox.wait_for_space(0)


async def test_only_one_may_read():
    """A second reader at the same time is a mistake of ours."""
    inbox = Inbox(records_max=1)
    first = asyncio.create_task(inbox.take())
    await asyncio.sleep(0)
    with pytest.raises(AssertionError):
        await inbox.take()
    first.cancel()
