"""What an operator asks of coordinators on the memory broker."""

from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.errors import FatalError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.coordinator.transactions import (
    Abort,
    CoordinatorStats,
    DescribeCoordinator,
    End,
    Listed,
    ListTransactions,
    Open,
    Opened,
    Registered,
    Written,
)
from stilltide.schemas.service.envelopes import Done
from stilltide.schemas.topics import TXN_LOG, TXN_MARKERS, TopicSpec
from stilltide.schemas.values import EndOffset, Offset, TopicPartition
from tests.support.coordinator.asker import AskingCoordinators
from tests.support.coordinator.worker_memory import PARTITIONS, WAIT_S, MemoryWorker, until

pytestmark = pytest.mark.topics(TopicSpec("orders", 1))

ORDERS = Registered(TopicPartition("orders", 0), EndOffset(0), b"\x01" * 16)
SOON_S = 0.5
"""A time-out that is meant to run out."""


@pytest.fixture
async def worker(broker: MemoryBroker) -> AsyncIterator[MemoryWorker]:
    """A worker with three coordinators."""
    async with MemoryWorker(MemoryConnector(broker), coordinators=3) as made:
        yield made


@pytest.fixture
async def coordinators(broker: MemoryBroker, worker: MemoryWorker) -> AsyncIterator[Coordinators]:
    """Who asks them."""
    async with AskingCoordinators(
        MemoryConnector(broker), request_timeout_s=WAIT_S, partitions=PARTITIONS
    ) as made:
        yield made


async def stats(coordinators: Coordinators, coordinator: int = 0) -> CoordinatorStats:
    """One coordinator's figures."""
    answer = await coordinators.ask(coordinator, DescribeCoordinator())
    assert isinstance(answer, CoordinatorStats)
    return answer


async def opened(coordinators: Coordinators, coordinator: int = 0) -> int:
    """The sequence of a new transaction that may write to a partition."""
    answer = await coordinators.ask(coordinator, Open(30_000, 1, (ORDERS,)))
    assert isinstance(answer, Opened)
    return answer.first_sequence


async def test_each_coordinator_answers_for_itself(coordinators: Coordinators):
    """What is open at one of them is listed by that one alone."""
    await opened(coordinators, 1)
    answers = await coordinators.ask_each(ListTransactions())
    assert [
        (it, len(one.transactions)) for it, one in answers.items() if isinstance(one, Listed)
    ] == [
        (0, 0),
        (1, 1),
        (2, 0),
    ]


async def test_all_pages_of_a_list_are_shown(coordinators: Coordinators):
    """C16: more transactions than a page holds; each coordinator's come by sequence."""
    for _ in range(3):
        await coordinators.ask(1, Open(30_000, 500, ()))
    shown = await coordinators.transactions_of_each()
    assert [len(found or ()) for found in shown.values()] == [0, 1500, 0]
    assert [it.sequence for it in shown[1] or ()] == list(range(1500))


async def test_one_that_does_not_answer_is_named(broker: MemoryBroker, worker: MemoryWorker):
    """The others' answers are there, and its place says that it gave none."""
    await worker.owners.coordinators.assign([0, 2])
    async with Coordinators(MemoryConnector(broker), request_timeout_s=SOON_S) as coordinators:
        answers = await coordinators.ask_each(ListTransactions())
    assert [it for it, answer in answers.items() if answer is None] == [1]


@pytest.mark.parametrize("coordinator", [3, -1])
async def test_a_coordinator_that_does_not_exist_is_refused(
    coordinators: Coordinators, coordinator: int
):
    """A number out of range is told at once, with those there are."""
    with pytest.raises(RefusedError, match=f"no coordinator {coordinator}") as caught:
        await coordinators.ask(coordinator, ListTransactions())
    assert "has 3" in caught.value.detail


async def test_a_transaction_is_aborted_by_who_only_asked_before(
    broker: MemoryBroker, coordinators: Coordinators
):
    """C1b: questions are not in the log, and who asked some is not taken for one forgotten."""
    sequence = await opened(coordinators)
    async with Coordinators(MemoryConnector(broker), request_timeout_s=WAIT_S) as other:
        await other.ask_each(ListTransactions())
        assert await other.ask(0, Abort(sequence)) == Done()
    commit = End(sequence, committed=True, written=(), wait_visible=False)
    with pytest.raises(RefusedError):
        await coordinators.ask(0, commit)


async def test_an_ended_transaction_is_not_aborted(coordinators: Coordinators):
    """What has ended the one way is refused the other way, as an error with the reason."""
    sequence = await opened(coordinators)
    end = End(sequence, committed=True, written=(), wait_visible=True)
    assert await coordinators.ask(0, end) == Done()
    with pytest.raises(RefusedError) as caught:
        await coordinators.ask(0, end._replace(committed=False))
    reason = f"transaction {sequence} has ended"
    assert caught.value.primary == (
        f"coordinator 0 refused to abort transaction 0:{sequence}: {reason}"
    )


async def test_without_system_topics_the_next_step_is_named():
    """A cluster that no worker has served is told from one that is silent."""
    with pytest.raises(FatalError, match="does not exist") as caught:
        async with Coordinators(MemoryConnector(MemoryBroker()), request_timeout_s=SOON_S):
            raise AssertionError("entered")
    assert "stilltide worker" in caught.value.hint


async def test_figures_of_an_idle_coordinator(coordinators: Coordinators):
    """B1: its epoch is its fence; asking for the figures is no service."""
    idle = await stats(coordinators)
    assert (idle.log.epoch, idle.next_sequence, idle.low_watermark) == (0, 0, 0)
    assert (idle.has_served, idle.log.records_written, idle.client_count) == (False, 1, 0)
    assert (await stats(coordinators)).has_served is False


async def test_figures_follow_the_transactions(broker: MemoryBroker, coordinators: Coordinators):
    """C7: counts by state, the watermark, markers on their way, and what is remembered (C1b)."""
    first, second, _ = [await opened(coordinators) for _ in range(3)]
    broker.hold(TXN_MARKERS)
    wrote = (Written(ORDERS.data, Offset(0), EndOffset(1), 1),)
    for sequence, written in ((first, wrote), (second, ())):
        end = End(sequence, committed=bool(written), written=written, wait_visible=False)
        await coordinators.ask(0, end)
    busy = await stats(coordinators)
    assert (busy.open_count, busy.committing_count, busy.aborting_count) == (1, 1, 1)
    assert (busy.next_sequence, busy.low_watermark) == (3, 0)
    assert (busy.markers_pending, busy.has_served, busy.client_count) == (2, True, 1)
    assert busy.liveness is not None
    assert sum(it.live.bit_count() for it in busy.liveness.entries) == busy.liveness.live_records
    assert busy.liveness.live_records == 5
    broker.release()
    await until(lambda: broker.records(TopicPartition(TXN_MARKERS, 0)))
    while (await stats(coordinators)).low_watermark < 2:
        pass
    done = await stats(coordinators)
    assert (done.open_count, done.committing_count, done.aborting_count) == (1, 0, 0)
    assert (done.low_watermark, done.markers_pending) == (2, 0)


async def test_log_bounds_are_those_of_the_logs(broker: MemoryBroker, coordinators: Coordinators):
    """Start and end of each log, as the broker has them."""
    await opened(coordinators, 2)
    bounds = await coordinators.log_bounds()
    ends = [len(broker.records(TopicPartition(TXN_LOG, number))) for number in range(3)]
    assert dict(bounds) == {number: (0, end) for number, end in enumerate(ends)}


async def test_batching_in_force_is_reported(worker: MemoryWorker, coordinators: Coordinators):
    """A7: figures tell the thresholds the owner goes by now, not those it began with."""
    assert (await stats(coordinators)).log.batching_enabled is True
    for driver in worker.coordinators:
        driver.limits_changed(BatchLimits(batching=False, delay_ms_max=2.5))
    changed = await stats(coordinators)
    assert (changed.log.batching_enabled, changed.log.batch_delay_us_max) == (False, 2500)


async def test_metrics_count_what_the_coordinator_did(
    worker: MemoryWorker, coordinators: Coordinators
):
    """Requests, answers and entries of a coordinator; a fence counts when it is met."""
    await opened(coordinators)
    value = worker.metrics.registry.get_sample_value
    labels = {"cluster": "test", "coordinator": "0"}
    assert value("stilltide_coordinator_requests_total", labels) == 1
    assert value("stilltide_coordinator_answers_total", labels) == 1
    assert value("stilltide_txn_log_entry_records_count", labels) == 1
    assert value("stilltide_coordinator_fenced_total", labels) == 0
    worker.revoke()
    async with MemoryWorker(worker._connector, coordinators=3):
        await until(lambda: not worker.coordinators[0].serving)
    assert value("stilltide_coordinator_fenced_total", labels) == 1
