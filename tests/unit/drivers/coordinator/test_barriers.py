"""A coordinator on the memory broker, asked for barriers by a snapshot writer (E1)."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.schemas.coordinator import markers
from stilltide.schemas.coordinator.markers import UNASKED, Barrier, Probe
from stilltide.schemas.coordinator.transactions import End, Ended, Open, Registered, WriteBarrier
from stilltide.schemas.coordinator.txn_log import decode
from stilltide.schemas.framing import decode_value
from stilltide.schemas.log_frames import Noop
from stilltide.schemas.service.envelopes import Done, Refused
from stilltide.schemas.topics import TXN_LOG, TXN_MARKERS, TopicSpec, system_partition
from stilltide.schemas.values import EndOffset, TopicPartition
from tests.support.coordinator.asker import Asker
from tests.support.coordinator.worker_memory import PARTITIONS, MemoryWorker, until

pytestmark = pytest.mark.topics(TopicSpec("orders", 2), TopicSpec("payments", 2))

TIMEOUT_MS = 30_000
ORDERS = TopicPartition("orders", 0)
PAYMENTS = TopicPartition("payments", 1)
SERVING = system_partition(ORDERS, PARTITIONS)
PROBE = Probe(b"n" * 16, 1)


@pytest.fixture
async def asker(broker: MemoryBroker) -> AsyncIterator[Asker]:
    """A client of the only coordinator of a worker that runs."""
    connector = MemoryConnector(broker)
    async with MemoryWorker(connector):
        made = Asker(connector)
        await made.open(partition_count=1, response_partition_count=PARTITIONS)
        yield made
        await made.close()


def opening(**starts: int) -> Open:
    """A request to open one transaction on the first partitions of topics."""
    places = {"orders": ORDERS, "payments": PAYMENTS}
    registered = (
        Registered(places[it], EndOffset(start), bytes(16)) for it, start in starts.items()
    )
    return Open(TIMEOUT_MS, 1, tuple(registered))


def barriers_in(broker: MemoryBroker, *, asked: bool = True) -> list[Barrier]:
    """Barriers in the marker partition that serves the first partition of orders.

    Either those that answer a probe, or those that nobody asked for.
    """
    source = TopicPartition(TXN_MARKERS, SERVING)
    found = [markers.decode(it.key, it.value) for it in broker.records(source)]
    return [it for it in found if isinstance(it, Barrier) and (it.probe != UNASKED) is asked]


def last_logged(broker: MemoryBroker) -> type:
    """What the log holds last."""
    values = [it.value for it in broker.records(TopicPartition(TXN_LOG, 0))]
    return type(decode(decode_value(values[-1])[-1]).body)


async def test_a_barrier_names_what_has_not_ended(broker: MemoryBroker, asker: Asker):
    """E1: the lowest start offset on each partition that the marker partition serves."""
    for one in (opening(orders=7, payments=9), opening(orders=5), opening()):
        await asker.ask(0, one)
    assert await asker.ask(0, WriteBarrier(SERVING, PROBE)) == Done()
    (barrier,) = barriers_in(broker)
    assert (barrier.coordinator, barrier.probe, barrier.low_watermark) == (0, PROBE, 0)
    (orders,) = (it for it in barrier.open if it.data == ORDERS)
    assert (orders.start_offset, orders.sequence, orders.transaction_count) == (5, 1, 2)
    shown = {it.data for it in barrier.open}
    assert shown == {it for it in (ORDERS, PAYMENTS) if system_partition(it, PARTITIONS) == SERVING}


async def test_a_new_data_partition_makes_a_barrier(broker: MemoryBroker, asker: Asker):
    """E7: its snapshot writer hears of the first transaction there, and of no other."""
    await asker.ask(0, opening(orders=7))
    await until(lambda: barriers_in(broker, asked=False))
    await asker.ask(0, opening(orders=8))
    await asker.ask(0, WriteBarrier(SERVING, PROBE))
    (barrier,) = barriers_in(broker, asked=False)
    (orders,) = barrier.open
    assert (orders.data, orders.start_offset, orders.transaction_count) == (ORDERS, 7, 1)


async def test_a_barrier_lies_behind_the_markers_of_what_has_ended(
    broker: MemoryBroker, asker: Asker
):
    """E1: while its markers are on their way, an aborting transaction still counts as open."""
    await asker.ask(0, opening(orders=0))
    broker.hold(TXN_MARKERS)
    await asker.ask(0, End(0, committed=False, written=(), wait_visible=False))
    asked = asyncio.ensure_future(asker.ask(0, WriteBarrier(SERVING, PROBE)))
    await until(lambda: last_logged(broker) is Noop)
    assert not asked.done()
    broker.release()
    assert await asked == Done()
    assert [it.data for it in barriers_in(broker)[0].open] == [ORDERS]
    await until(lambda: last_logged(broker) is Ended)
    assert await asker.ask(0, WriteBarrier(SERVING, PROBE)) == Done()
    assert barriers_in(broker)[-1] == Barrier(0, PROBE, 1, ())


async def test_a_barrier_that_was_not_reported_is_asked_for_again(
    broker: MemoryBroker, asker: Asker
):
    """E1: an answer says that the barrier is durable, so there is none without a report."""
    broker.reports.lose(TXN_MARKERS)
    assert await asker.ask(0, WriteBarrier(SERVING, PROBE)) == Done()
    assert len(barriers_in(broker)) == 2


async def test_a_barrier_where_there_is_no_partition_is_refused(asker: Asker):
    """A snapshot writer that counts other partitions than the coordinator is told so."""
    answer = await asker.ask(0, WriteBarrier(PARTITIONS, PROBE))
    assert isinstance(answer, Refused)
    assert answer.reason == f"marker partition {PARTITIONS}; there are {PARTITIONS}"
