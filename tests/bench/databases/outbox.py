"""An outbox: what programs do today that want a row in PostgreSQL and records in Kafka.

A program inserts its records into the table `outbox`, in the database transaction of its row. A
poller, which is a process of its own, takes rows in order, writes the records, waits until all of
them are durable, and only then commits that the rows are gone: records are lost never, and written
twice if the poller is killed in between.

The poller is written as practitioners write it: one database transaction and one statement for each
batch (rows that another poller has are skipped), and an idempotent producer that lingers.
"""

import asyncio
import math
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
from confluent_kafka import Producer

from stilltide.pipeline.cli.common.output import print_event
from tests.bench.harness import looks
from tests.support.processes.child import Child

DDL = """CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic text NOT NULL,
    part integer NOT NULL,
    value bytea NOT NULL
)"""

INSERT = "INSERT INTO outbox (topic, part, value) VALUES ($1, $2, $3), ($4, $5, $6)"
"""The records of one transaction, by one statement."""

TAKE = """DELETE FROM outbox WHERE id = ANY (ARRAY(
    SELECT id FROM outbox ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
)) RETURNING id, topic, part, value"""

BATCH_ROWS_MAX = 500
LINGER_MS = 5


class Polling(NamedTuple):
    """How an outbox is polled.

    Attributes:
        every_ms: time between two looks.
        processes: number of pollers.
        goes_on: whether a poller looks again at once after a batch that was full.
    """

    every_ms: int
    processes: int
    goes_on: bool


POLLINGS = {
    "outbox": Polling(every_ms=100, processes=1, goes_on=False),
    "strongest outbox": Polling(every_ms=5, processes=2, goes_on=True),
}
"""The usual poller, and the strongest: two that look often, and at once after a full batch."""


@asynccontextmanager
async def polling(
    how: Polling, conninfo: str, bootstrap: str, log_path: Path
) -> AsyncIterator[Sequence[int]]:
    """Pollers that run until the block ends; their process ids."""
    async with AsyncExitStack() as stack:
        pollers = [
            Child.of_module(
                __name__,
                conninfo,
                bootstrap,
                str(how.every_ms),
                str(int(how.goes_on)),
                log_path=log_path,
            )
            for _ in range(how.processes)
        ]
        for poller in pollers:
            await stack.enter_async_context(poller)
        for poller in pollers:
            await poller.announced()
        yield [poller.pid for poller in pollers]


class Poller:
    """Writes the records of the table to their topics, batch by batch."""

    def __init__(self, db: Any, bootstrap: str) -> None:
        self._db = db
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": LINGER_MS,
                "queue.buffering.max.messages": 0,
            }
        )
        self._failures: list[str] = []

    async def publish(self) -> int:
        """Writes one batch; the number of its records."""
        async with self._db.transaction():
            rows = await self._db.fetch(TAKE, BATCH_ROWS_MAX)
            rows.sort(key=itemgetter(0))  # what is returned has no order
            for _, topic, partition, value in rows:
                self._producer.produce(topic, value, None, partition, self._reported)
            if rows:
                self._producer.flush()
            if self._failures:  # the rows stay
                raise RuntimeError(self._failures[0])
        return len(rows)

    def _reported(self, error: object, _message: object) -> None:
        if error is not None:
            self._failures.append(str(error))


async def main(conninfo: str, bootstrap: str, every_ms: str, goes_on: str) -> None:
    """Polls until the process is killed."""
    db = await asyncpg.connect(conninfo)
    poller = Poller(db, bootstrap)
    print_event({"event": "polling"})
    async for _ in looks(int(every_ms) / 1000, wait_s=math.inf):
        while await poller.publish() == BATCH_ROWS_MAX and int(goes_on):
            pass


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
