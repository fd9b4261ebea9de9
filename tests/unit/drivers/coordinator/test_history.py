"""The transactions that ended last, read once and then followed."""

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import TransactionClient
from stilltide.pipeline.drivers.coordinator import history
from stilltide.pipeline.drivers.coordinator.history import HistoryTail, ended_transactions
from stilltide.schemas.topics import TopicSpec
from tests.support.coordinator.worker_memory import MemoryWorker


async def end_some(connector: MemoryConnector, count: int) -> None:
    """Transactions that are committed and aborted by turns, each visible at once."""
    async with TransactionClient(connector=connector) as client:
        for number in range(count):
            async with client.transaction() as txn:
                await txn.send("orders", b"%d" % number, partition=number % 2)
                await txn.flush()
                if number % 2:
                    await txn.abort()
                else:
                    await txn.commit(wait_visible=True)


@pytest.mark.parametrize("followed_max", [0, 100])
async def test_a_tail_has_what_a_fresh_reader_finds(
    followed_max: int, monkeypatch: pytest.MonkeyPatch
):
    """Whether it reads on or, since there are too many markers, begins at the ends again."""
    monkeypatch.setattr(history, "FOLLOWED_MAX", followed_max)
    broker = MemoryBroker()
    broker.create_topic(TopicSpec("orders", 2))
    connector = MemoryConnector(broker)
    async with MemoryWorker(connector):
        tail = HistoryTail(connector, 4)
        assert (await tail.read()).transactions == []
        for count in (1, 2, 5):
            await end_some(connector, count)
            found = await tail.read()
            assert found == await ended_transactions(connector, 4)
            assert await tail.read() == found
        assert len(found.transactions) == 4
        await tail.close()
