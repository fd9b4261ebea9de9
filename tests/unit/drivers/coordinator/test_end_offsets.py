"""End offsets read for many askers at once, each after its question."""

import asyncio
from collections.abc import Sequence

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.drivers.coordinator.end_offsets import (
    BEYOND_MAX,
    EndOffsets,
    EndsRead,
    KnownEnds,
)
from stilltide.schemas.coordinator.transactions import Written
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import EndOffset, Offset, TopicPartition
from tests.support.coordinator.worker_memory import until

pytestmark = pytest.mark.topics(TopicSpec("orders", 2), TopicSpec("payments", 2))

ORDERS = TopicPartition("orders", 0)
PAYMENTS = TopicPartition("payments", 1)


async def test_end_offsets_asked_during_a_call_are_read_by_the_next(
    broker: MemoryBroker, connector: MemoryConnector
):
    """C3: an answer is never older than its question; questions of one moment share a call."""
    calls: list[Sequence[TopicPartition]] = []
    told: list[tuple[str, dict[TopicPartition, EndOffset] | None]] = []
    admin = connector.admin()

    class Watched:
        """The admin, with a question asked while it answers the first."""

        async def end_offsets(
            self, partitions: Sequence[TopicPartition]
        ) -> dict[TopicPartition, EndOffset]:
            calls.append(partitions)
            found = await admin.end_offsets(partitions)
            if len(calls) == 1:
                broker.append(ORDERS, None, b"record", None)
                ends.read([ORDERS], lambda it: told.append(("third", it)))
            return found

    ends = EndOffsets(Watched())  # type: ignore[arg-type]
    ends.read([ORDERS], lambda it: told.append(("first", it)))
    ends.read([ORDERS, PAYMENTS], lambda it: told.append(("second", it)))
    running = asyncio.create_task(ends.run())
    await until(lambda: len(told) == 3)
    running.cancel()
    assert calls == [[ORDERS, PAYMENTS], [ORDERS]]
    assert told == [
        ("first", {ORDERS: 0, PAYMENTS: 0}),
        ("second", {ORDERS: 0, PAYMENTS: 0}),
        ("third", {ORDERS: 1}),
    ]


async def test_end_offsets_that_cannot_be_read_are_told_as_such(
    broker: MemoryBroker, connector: MemoryConnector
):
    """A failed call fails those who asked, and the next is made as ever."""
    told: list[object] = []
    ends = EndOffsets(connector.admin())
    running = asyncio.create_task(ends.run())
    broker.down()
    ends.read([ORDERS], told.append)
    await until(lambda: told)
    broker.up()
    ends.read([ORDERS], told.append)
    await until(lambda: len(told) == 2)
    running.cancel()
    assert told == [None, {ORDERS: 0}]


def test_what_is_known_is_renewed_before_a_commit_has_to_wait():
    """C16: a partition that grows is read again at half the distance, once for many commits."""
    reads: list[Sequence[TopicPartition]] = []

    class Counted:
        """Reads that are answered by the test."""

        def read(self, partitions: Sequence[TopicPartition], done: EndsRead) -> None:
            reads.append(partitions)
            answers.append(done)

    answers: list[EndsRead] = []
    known = KnownEnds(Counted())  # type: ignore[arg-type]
    half = BEYOND_MAX // 2

    def unproved(end: int) -> bool:
        return known.unproved([Written(ORDERS, Offset(0), EndOffset(end), 1)])

    assert not unproved(half)
    assert reads == []
    assert not unproved(half + 1)
    assert not unproved(BEYOND_MAX)
    assert reads == [[ORDERS]]
    assert unproved(BEYOND_MAX + 1)
    answers[0]({ORDERS: EndOffset(BEYOND_MAX)})
    assert not unproved(BEYOND_MAX + half)
    assert reads == [[ORDERS]]
    assert not unproved(BEYOND_MAX + half + 1)
    answers[1](None)
    assert not unproved(2 * BEYOND_MAX)
    assert len(reads) == 3
