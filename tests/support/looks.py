"""The pause between two looks at what another process does, and how long a fault lasts.

A loop without a pause takes the processor from the process that it waits for, and from those that
other tests wait for.
"""

import asyncio
import time

LOOK_EACH_S = 0.1


async def between_looks() -> None:
    """To be awaited before the next look; other tasks go on."""
    await asyncio.sleep(LOOK_EACH_S)


async def lasting(fault_s: float) -> None:
    """Returns when a fault has lasted so long: how long a fault lasts is the fault itself."""
    await asyncio.sleep(fault_s)


def block_between_looks() -> None:
    """The same in a thread without an event loop."""
    time.sleep(LOOK_EACH_S)
