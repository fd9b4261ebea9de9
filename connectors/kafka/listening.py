"""Whether a broker can be connected to at all, which costs less to find out than an answer.

*Source*: librdkafka connects to a broker that a question waits for without a pause between two
attempts, at the cost of a processor. A question that failed is asked again when that may help.
"""

import asyncio
import contextlib
import itertools

from kafka.cluster import collect_hosts

from connectors.errors import RetriableError

_AGAIN_S = 0.1
"""Between two attempts."""


async def listening(servers: str, timeout_s: float) -> None:
    """Returns when something listens at one of these addresses.

    Args:
        servers: `host:port`, or several with commas between.
        timeout_s: for so long they are tried, one after the other.

    Raises:
        RetriableError: nothing listened in time.
    """
    try:
        async with asyncio.timeout(timeout_s):
            for host, port, _ in itertools.cycle(collect_hosts(servers)):
                with contextlib.suppress(OSError):
                    _, line = await asyncio.open_connection(host, port)
                    line.close()
                    return
                await asyncio.sleep(_AGAIN_S)
    except TimeoutError as error:
        raise RetriableError(
            f"no broker listens at {servers}",
            hint="check that the broker runs and that its address is right; then try again",
        ) from error
