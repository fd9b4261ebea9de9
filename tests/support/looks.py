"""The pause between two looks at what another process does.

A loop without a pause takes the processor from the process that it waits for, and from those that
other tests wait for.
"""

import asyncio
import time

LOOK_EACH_S = 0.1


async def between_looks() -> None:
    """To be awaited before the next look; other tasks go on."""
    await asyncio.sleep(LOOK_EACH_S)


def block_between_looks() -> None:
    """The same in a thread without an event loop."""
    time.sleep(LOOK_EACH_S)
