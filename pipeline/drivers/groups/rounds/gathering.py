"""Pauses between two rounds of requests to the brokers, so that more partitions share the next one.

*Source*: docs/protocols I16. A round costs about the same for one partition as for hundreds.
Without a pause, a busy machine runs one round after the other, each for the few partitions that
asked during the last one.
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
