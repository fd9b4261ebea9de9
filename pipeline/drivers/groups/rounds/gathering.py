"""Lets requests gather between two rounds that answer all that have come.

*Source*: docs/protocols I16. A round costs about the same for one request as for hundreds. Without
a pause, a busy machine runs one round after the other, each for the few that came during the last.
"""

import asyncio

GATHER_S_MAX = 0.1
"""Longest pause."""


async def gather_requests(began_s: float) -> None:
    """Waits as long as the round that has just ended took, so that rounds take half of the time.

    Args:
        began_s: when the round began, by the event loop's clock.
    """
    took_s = asyncio.get_running_loop().time() - began_s
    await asyncio.sleep(min(took_s, GATHER_S_MAX))
