"""When the records of a client's transactions leave its producer."""

import asyncio

from stilltide.pipeline.client.gathering import Gathering


class _Case:
    """A gathering, and how often it flushed its producer."""

    def __init__(self) -> None:
        self.flushed = 0
        self.gathering = Gathering(self._flush_soon)

    def _flush_soon(self) -> None:
        self.flushed += 1

    async def looked(self) -> int:
        """How often by the end of this turn of the loop."""
        await asyncio.sleep(0)
        return self.flushed


async def test_a_lone_transaction_waits_for_nobody():
    """Its records leave as soon as it waits for them."""
    case = _Case()
    case.gathering.sends("a")
    assert await case.looked() == 0
    case.gathering.waits("a")
    assert await case.looked() == 1


async def test_those_woken_together_leave_together():
    """All that wait by the end of a turn of the loop make one request."""
    case = _Case()
    for txn in range(10):
        case.gathering.sends(txn)
        case.gathering.waits(txn)
    assert await case.looked() == 1


async def test_nobody_leaves_while_another_sends():
    """What is about to be sent comes along."""
    case = _Case()
    case.gathering.sends("a")
    case.gathering.sends("b")
    case.gathering.waits("a")
    assert await case.looked() == 0
    case.gathering.waits("b")
    assert await case.looked() == 1


async def test_one_that_idles_keeps_nobody():
    """Once its records are durable, without a wait for them, nobody waits for its next ones."""
    case = _Case()
    case.gathering.sends("idle")
    case.gathering.sends("a")
    case.gathering.durable("idle")
    case.gathering.waits("a")
    assert await case.looked() == 1


async def test_few_wait_while_more_commits_are_under_way():
    """Half of those who write must wait, so that no request is for a few of many."""
    case = _Case()
    for txn in range(5):
        case.gathering.sends(txn)
        case.gathering.waits(txn)
    assert await case.looked() == 1
    for txn in range(5):  # their commits are under way from now on
        case.gathering.durable(txn)
    for txn in (0, 1):
        case.gathering.ended(txn)
        case.gathering.sends(txn + 10)
        case.gathering.waits(txn + 10)
    assert await case.looked() == 1
    case.gathering.ended(2)
    case.gathering.sends(12)
    case.gathering.waits(12)
    assert await case.looked() == 2


async def test_what_lingering_has_sent_is_not_flushed():
    """Who got what it waited for meanwhile, or has ended, is not waiting any more."""
    case = _Case()
    for txn in ("a", "b", "c"):
        case.gathering.sends(txn)
    case.gathering.waits("a")
    case.gathering.waits("b")
    assert await case.looked() == 0  # c sends
    case.gathering.durable("a")
    case.gathering.ended("b")
    case.gathering.ended("c")
    assert await case.looked() == 0
    case.gathering.sends("d")
    case.gathering.waits("d")
    assert await case.looked() == 1
