"""What a link knows of the buckets on a cluster, as of its last reading."""

import asyncio

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.errors import RetriableError
from stilltide.connectors.memory.connector import MemoryAdmin
from stilltide.connectors.ports.copying import LinkConnector
from stilltide.pipeline.drivers.links.sides import PositionsView, Side
from stilltide.schemas.topics import REPLICATION_POSITIONS
from tests.support.links.memory_link import SYSTEM_PARTITIONS, WAIT_S, MemoryCluster, until


class CountingAdmin(MemoryAdmin):
    """Counts questions for ends; may fail instead."""

    asked = 0
    fails = False

    async def end_offsets(self, *arguments, **options):  # noqa: ANN002, ANN003 - as the port
        """Counted."""
        self.asked += 1
        await asyncio.sleep(0)
        if self.fails:
            raise RetriableError("away")
        return await super().end_offsets(*arguments, **options)


def view_of(cluster: MemoryCluster) -> tuple[PositionsView, CountingAdmin]:
    """A view that has read nothing yet, and its admin client."""
    admin = CountingAdmin(cluster.broker)
    connector: LinkConnector = cluster.connector
    counts = {REPLICATION_POSITIONS: SYSTEM_PARTITIONS}
    return PositionsView(Side(cluster.name, connector, admin, counts), "test", SystemClock()), admin


async def test_who_asks_at_once_shares_a_reading():
    """A link that meets a thousand partitions reads once for all of them, not a thousand times."""
    view, admin = view_of(MemoryCluster("a"))
    async with asyncio.timeout(WAIT_S):
        await view.catch_up()
        alone = admin.asked
        await asyncio.gather(*(view.catch_up() for _ in range(1000)))
        assert admin.asked <= 3 * alone
        begun = admin.asked
        asking = asyncio.create_task(view.catch_up())
        await until(lambda: admin.asked > begun)
        begun = admin.asked
        await view.catch_up()
        assert admin.asked > begun, "what has begun may miss what was written before the call"
        await asking
        await view.close()


async def test_an_error_is_that_of_all_who_asked():
    """And the next call reads again."""
    view, admin = view_of(MemoryCluster("a"))
    admin.fails = True
    async with asyncio.timeout(WAIT_S):
        failed = await asyncio.gather(*(view.catch_up() for _ in range(3)), return_exceptions=True)
        assert [type(error) for error in failed] == [RetriableError] * 3
        admin.fails = False
        await view.catch_up()
        await view.close()
