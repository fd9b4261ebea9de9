"""What befalls three brokers while a load works; each leaves the cluster in order."""

from collections.abc import Awaitable, Callable

from stilltide.schemas.topics import TXN_LOG, TXN_MARKERS
from stilltide.schemas.values import TopicPartition
from tests.support.brokers.faults import Brokers
from tests.support.brokers.world import World

QUIET_S = 3.0
"""Time without a commit that shows that commits wait."""

Scenario = Callable[[Brokers, World], Awaitable[None]]


async def rolling_restart(brokers: Brokers, world: World) -> None:
    """SIGTERM to one broker after the other, each of which starts again before the next ends."""
    for node in brokers.ids:
        await brokers.stop(node)
        await world.progress()
        await brokers.start()
        await world.progress()


async def each_killed(brokers: Brokers, world: World) -> None:
    """SIGKILL to one broker after the other; the load goes on before the broker is back."""
    for node in brokers.ids:
        await brokers.kill(node)
        await world.progress()
        await brokers.start()
        await world.progress()


async def one_killed(brokers: Brokers, world: World) -> None:
    """SIGKILL to a broker; the load goes on before the broker is back."""
    await brokers.kill(brokers.ids[0])
    await world.progress()
    await brokers.start()
    await world.progress()


async def controller_killed(brokers: Brokers, world: World) -> None:
    """SIGKILL to the broker that is the active controller."""
    await brokers.kill(await brokers.controller())
    await world.progress()
    await brokers.start()
    await world.progress()


async def two_killed(brokers: Brokers, world: World) -> None:
    """SIGKILL to two brokers at once: no commit until they are back, and then by itself."""
    await brokers.kill(*brokers.ids[:2])
    await world.transactions.progress.rest(QUIET_S)
    await brokers.start()
    await world.progress()


async def leaders_moved(brokers: Brokers, world: World) -> None:
    """The leader of every partition moves to the next broker, three times."""
    for _ in brokers.ids:
        await brokers.turn_leaders()
        await world.progress()


async def leaders_moved_then_killed(brokers: Brokers, world: World) -> None:
    """The leader of every partition moves, three times; then SIGKILL to a broker."""
    await leaders_moved(brokers, world)
    await one_killed(brokers, world)


async def partitions_reassigned(brokers: Brokers, world: World) -> None:
    """Partitions of the log, of the markers and of data move from broker to broker, and back."""
    await brokers.reassign(
        TopicPartition(TXN_LOG, 0), TopicPartition(TXN_MARKERS, 1), TopicPartition(world.orders, 2)
    )
    await world.progress()


SCENARIOS: list[Scenario] = [
    rolling_restart,
    each_killed,
    controller_killed,
    two_killed,
    leaders_moved,
    leaders_moved_then_killed,
    partitions_reassigned,
]
