"""I15: groups that fit a pattern are carried over, on clusters in memory."""

import asyncio

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.clock import MemoryClock
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.drivers.groups.controller import LIST_MS, Replicated
from stilltide.schemas.values import Offset
from tests.support.groups.clusters import DATA, replicated

NUMBERS = [b"%d" % number for number in range(10)]
TAKEN_UP_S = 5.0


async def test_a_group_that_fits_is_taken_up_within_5_s():
    """One that a setting disables by name, or that fits nothing, is left alone."""
    async with replicated("ab") as sites:
        a, b = sites["a"], sites["b"]
        for site in (a, b):
            site.named = {("ord*", "bill*", True), (DATA.topic, "billing-test", False)}
        a.write(*NUMBERS)
        for group in ("billing-test", "audit", "billing"):
            a.commit(group, 6)
        async with asyncio.timeout(TAKEN_UP_S):
            await sites.until(lambda: b.committed("billing") == 6)
        a.commit("billing-late", 7)
        async with asyncio.timeout(TAKEN_UP_S):
            await sites.until(lambda: b.committed("billing-late") == 7)
        assert b.committed("billing-test") is None
        assert b.committed("audit") is None


async def test_while_brokers_are_away_the_last_list_counts():
    """Then groups are listed again, but not more often than every `LIST_MS`."""
    broker, clock = MemoryBroker(), MemoryClock(0)
    groups = MemoryConnector(broker).group_admin()
    named = [("ord*", "*", True)]
    choice = Replicated(lambda: named, clock)

    async def listed() -> set[str]:
        await choice.look(groups)
        return choice.groups(DATA.topic, ())

    broker.group("g").committed[DATA] = Committed(Offset(1), "")
    assert await listed() == {"g"}
    assert choice.topics() == {DATA.topic}
    broker.group("h").committed[DATA] = Committed(Offset(1), "")
    assert await listed() == {"g"}
    clock.advance(LIST_MS)
    broker.down()
    assert await listed() == {"g"}
    broker.up()
    assert await listed() == {"g", "h"}
    clock.set(0)  # as a wall clock may be
    broker.group("i").committed[DATA] = Committed(Offset(1), "")
    assert await listed() == {"g", "h"}
    clock.advance(LIST_MS)
    assert await listed() == {"g", "h", "i"}
    named.clear()
    assert await listed() == set()
    assert choice.topics() == set()
