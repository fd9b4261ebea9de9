"""An application under fault: transactions without end; stdout names each outcome at once.

`python -m tests.chaos.processes.application BOOTSTRAP NAME TOPIC TOPIC`. A line says `begun`,
`committed`, `aborted` or `unknown` and which; SIGTERM lets what is under way end.
"""

import asyncio
import random
import signal
import sys

from stilltide.pipeline.client import Transaction, TransactionClient
from stilltide.pipeline.errors import OutcomeUnknownError
from stilltide.pipeline.logging import configure_logging
from stilltide.schemas.errors import StilltideError

CONCURRENCY = 16
RECORDS_PER_TOPIC = 2
TIMEOUT_S = 8.0
"""Of a transaction: what a killed application leaves open ends soon."""


async def run(bootstrap: str, name: str, topics: list[str]) -> None:
    """Works until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    seeded = random.Random(name)
    async with TransactionClient(
        bootstrap,
        name=name,
        resend_s=0.5,
        transaction_timeout_s=TIMEOUT_S,
        request_timeout_s=60,
        direct_line=True,  # of workers that take lines
    ) as client:
        numbers = iter(range(10**9))

        async def work() -> None:
            while not stop.is_set():
                await one(client, f"{name}-{next(numbers)}", topics, abort=seeded.random() < 0.2)

        await asyncio.gather(*(work() for _ in range(CONCURRENCY)))


async def one(client: TransactionClient, number: str, topics: list[str], *, abort: bool) -> None:
    """One transaction, and what became of it."""
    say("begun", number)
    try:
        async with client.transaction() as txn:
            await write(txn, number, topics)
            if abort:
                await txn.abort()
    except OutcomeUnknownError:
        say("unknown", number)
    except StilltideError:
        say("aborted", number)
    else:
        say("aborted" if abort else "committed", number)


async def write(txn: Transaction, number: str, topics: list[str]) -> None:
    """Records that all bear the transaction's number, over both topics."""
    for topic in topics:
        for part in range(RECORDS_PER_TOPIC):
            await txn.send(topic, number.encode(), key=f"{number}.{part}".encode())


def say(what: str, number: str) -> None:
    """One line, at once: what was said before a SIGKILL is known."""
    sys.stdout.write(f"{what} {number}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    configure_logging()
    asyncio.run(run(sys.argv[1], sys.argv[2], sys.argv[3:]))
