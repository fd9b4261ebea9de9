"""Owners of assigned partitions: how they begin, fail, wait and end (B4, B8)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from stilltide.connectors.chance import SystemChance
from stilltide.connectors.errors import FatalError, FencedError, RetriableError
from stilltide.pipeline.drivers.service.ended import OwnerEnd
from stilltide.pipeline.drivers.shared.passed_over import PassedOver
from stilltide.pipeline.drivers.worker import runtime as owners
from stilltide.pipeline.drivers.worker.placement import COORDINATORS
from stilltide.pipeline.drivers.worker.runtime import Runtime
from stilltide.schemas.errors import DecodeError, StilltideError
from stilltide.schemas.retry import Retry
from stilltide.schemas.topics import OPERATOR_REQUESTS, TXN_REQUESTS
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.coordinator.worker_memory import until

FENCED = FencedError("another owner has taken over")
DAMAGE = DecodeError("not a batch", topic="t", partition=2, offset=7)
LATER = Retry(3600)
SOON = Retry(0.001)

Step = BaseException | None
"""What an ownership ends with; None: it returns."""


class Scripted:
    """An owner whose ownerships end as the script says; after its end they last.

    Attributes:
        served: how many ownerships began.
        taken: the requests that it got, and whether each came from operators.
        refused: the requests that were refused.
    """

    def __init__(self, script: list[Step]) -> None:
        self.serving = False
        self.served = 0
        self.judged: list[StilltideError] = []
        self.taken: list[tuple[bytes | None, bool]] = []
        self.refused: list[bytes | None] = []
        self._script = script

    async def run(self) -> None:
        """One ownership."""
        self.served += 1
        self.serving = True
        try:
            if not self._script:
                await asyncio.get_running_loop().create_future()
            await asyncio.sleep(0)
            if (end := self._script.pop(0)) is not None:
                raise end
        finally:
            self.serving = False

    def passes(self, error: StilltideError) -> bool:
        """As those of most owners."""
        self.judged.append(error)
        return isinstance(error, FencedError | RetriableError)

    def requests_received(self, value: bytes | None, *, operator: bool = False) -> None:
        """Notes the request."""
        self.taken.append((value, operator))

    def refuse(self, value: bytes | None, end: OwnerEnd) -> None:
        """Notes the request."""
        assert end.error is DAMAGE
        self.refused.append(value)


class Kind:
    """Owners of one kind, all of which follow one script."""

    def __init__(self, *script: Step, retry: Retry = LATER) -> None:
        self.script = list(script)
        self.made: list[Scripted] = []
        self.ended = 0
        self.inside: list[int] = []
        self.runtime: Runtime[int, Scripted] = Runtime(
            COORDINATORS,
            self._make,
            self._ended,
            chance=SystemChance(),
            retry=retry,
            around=self._around,
            undecodable=PassedOver("requests_passed_over"),
        )

    @property
    def served(self) -> int:
        """How many ownerships began."""
        return sum(owner.served for owner in self.made)

    def _make(self, _number: int) -> Scripted:
        self.made.append(Scripted(self.script))
        return self.made[-1]

    def _ended(self) -> None:
        self.ended += 1

    @asynccontextmanager
    async def _around(self, number: int) -> AsyncIterator[None]:
        self.inside.append(number)
        try:
            yield
        finally:
            self.inside.remove(number)


@pytest.fixture(autouse=True)
def begins_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next ownership after a fence begins within a moment."""
    monkeypatch.setattr(owners, "OWNERSHIP", Retry(0.001, jitter=1))


@asynccontextmanager
async def assigned(kind: Kind, partitions: Iterable[int] = (0,)) -> AsyncIterator[Kind]:
    """Partitions that are this worker's for the length of the block."""
    await kind.runtime.assign(partitions)
    try:
        yield kind
    finally:
        await kind.runtime.stop()
    assert not kind.runtime.owners


@pytest.mark.parametrize("failure", [FENCED, RetriableError("away")])
async def test_a_failure_that_passes_is_followed_by_the_next_ownership(failure: StilltideError):
    """B4: the fence may be the late one of a dead process; the owner keeps what it holds."""
    async with assigned(Kind(failure, failure)) as kind:
        await until(lambda: kind.served == 3)
        assert len(kind.made) == 1
        assert kind.made[0].judged == [failure, failure]
        assert not kind.ended
        assert not kind.runtime.ends


async def test_a_return_is_followed_by_the_next_ownership_at_once():
    """What an ownership was about has changed; that is no failure."""
    async with assigned(Kind(None)) as kind:
        await until(lambda: kind.served == 2)
        assert not kind.made[0].judged


async def test_what_is_revoked_is_not_owned_again_before_the_next_assignment():
    """B4: a zombie that is fenced does not take its partition back."""
    kind = Kind(FENCED)
    async with assigned(kind):
        await until(lambda: kind.served == 1)
        kind.runtime.revoke()
        await until(lambda: not kind.made[0].serving)
        for _ in range(100):
            await asyncio.sleep(0)
        assert kind.served == 1
        await kind.runtime.assign([0])
        await until(lambda: kind.served == 2)
        assert len(kind.made) == 1


async def test_a_revoked_owner_serves_until_it_is_fenced():
    """Most partitions are assigned again at once."""
    async with assigned(Kind()) as kind:
        await until(lambda: kind.served == 1)
        kind.runtime.revoke()
        for _ in range(100):
            await asyncio.sleep(0)
        assert kind.made[0].serving


async def test_a_partition_that_moves_away_is_left():
    """Its owner is gone, with what surrounded it; its neighbour goes on."""
    async with assigned(Kind(), [0, 1]) as kind:
        await until(lambda: kind.served == 2)
        assert kind.inside == [0, 1]
        await kind.runtime.assign([1])
        assert list(kind.runtime.owners) == [1]
        assert kind.inside == [1]
        assert kind.served == 2
    assert not kind.inside


@pytest.mark.parametrize("error", [DAMAGE, FatalError("the topic is gone"), ValueError("a bug")])
async def test_any_other_error_ends_one_owner_which_is_tried_again(error: Exception):
    """B8: by another owner, after a wait; it is shown until that one serves."""
    kind = Kind(error, error, retry=SOON)
    with capture_logs() as lines:
        async with assigned(kind):
            await until(lambda: kind.served == 3)
            await until(lambda: not kind.runtime.ends)
    assert len(kind.made) == 3
    assert kind.ended == 2
    told = [line for line in lines if line["event"] == "owner_ended"]
    assert [line["number"] for line in told] == [0, 0]


async def test_an_end_is_told_with_its_first_moment():
    """The metric says for how long an owner has not served."""
    async with assigned(Kind(DAMAGE, DAMAGE)) as kind:
        await until(lambda: kind.ended == 1)
        first = kind.runtime.ends["0"]
        assert first.error is DAMAGE
        kind.runtime.retry_now()
        await until(lambda: kind.ended == 2)
        assert kind.runtime.ends["0"].ended_s == first.ended_s


@pytest.mark.parametrize("by_assignment", [True, False])
async def test_the_wait_of_an_owner_ends_at_an_assignment_or_when_the_cluster_is_back(
    *, by_assignment: bool
):
    """B8: so that it serves after a repair without a restart."""
    async with assigned(Kind(DAMAGE)) as kind:
        await until(lambda: kind.ended == 1)
        assert kind.runtime.all_ended
        if by_assignment:
            await kind.runtime.assign([0])
        else:
            kind.runtime.retry_now()
        await until(lambda: kind.runtime.owners[0].serving)
        assert not kind.runtime.ends
        assert not kind.runtime.all_ended


async def test_requests_reach_the_owner_of_their_partition():
    """Those of operators are marked (C15); those of nobody here are for the next owner."""
    async with assigned(Kind()) as kind:
        received: Callable[[TopicPartition, Offset, bytes | None], None] = kind.runtime.received
        received(TopicPartition(TXN_REQUESTS, 0), Offset(0), b"a")
        received(TopicPartition(OPERATOR_REQUESTS, 0), Offset(0), b"b")
        received(TopicPartition(TXN_REQUESTS, 1), Offset(0), b"c")
        assert kind.made[0].taken == [(b"a", False), (b"b", True)]


async def test_requests_to_an_owner_that_has_ended_are_refused():
    """B8: who only looks is told at once."""
    async with assigned(Kind(DAMAGE)) as kind:
        await until(lambda: kind.ended == 1)
        kind.runtime.received(TopicPartition(TXN_REQUESTS, 0), Offset(0), b"a")
        owner = kind.runtime.owners[0]
        assert (owner.refused, owner.taken) == ([b"a"], [])
