"""A program that writes: transactions that commit, abort, fail, stay open or die; plain records.

`python -m tests.chaos.proxied.programs.writer ROLE`; SIGTERM lets what is under way end.
"""

import asyncio
import os
import random
import signal
import sys
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from stilltide import StilltideError, Transaction, TransactionClient
from tests.chaos.proxied.programs.telling import Role, Stop, Telling
from tests.chaos.proxied.topics import PARTITIONS, TOPICS

WIDTH = 3
"""Transactions of a process that are under way at a time."""

TIMEOUT_S = 8.0
AGAIN_S = 0.5
PLAIN = 0.1
DIES = 0.003
"""How often a transaction is replaced by a plain record, or the process by SIGKILL."""


class LeftError(Exception):
    """What an application raises within a transaction."""


class Writer:
    """What a process does."""

    def __init__(self, role: Role, stop: Stop) -> None:
        self._role, self._stop = role, stop
        self._telling = Telling(Path(role.path))
        self._random = role.random
        self._numbers = iter(range(10**9))
        self._producer = Producer(
            {
                "bootstrap.servers": role.bootstrap,
                "enable.idempotence": True,
                "client.id": f"{role.name}-plain",
                "log_level": 0,
            }
        )

    async def run(self) -> None:
        """Writes until SIGTERM."""
        while not self._stop.asked:
            try:
                async with (
                    TransactionClient(
                        self._role.bootstrap,
                        name=self._role.name,
                        transaction_timeout_s=TIMEOUT_S,
                        direct_line=self._role.direct_line,
                    ) as client,
                    asyncio.TaskGroup() as tasks,
                ):
                    for _ in range(WIDTH):
                        tasks.create_task(self._work(client))
            except* StilltideError as errors:
                self._telling.tell("away", why=repr(errors.exceptions))
                await self._stop.pause(AGAIN_S)
        await asyncio.to_thread(self._producer.flush, 60)

    async def _work(self, client: TransactionClient) -> None:
        while not self._stop.asked:
            name = f"{self._role.name}.{self._role.run}.{next(self._numbers)}"
            self._producer.poll(0)
            if self._random.random() < PLAIN:
                self._plain(name)
            else:
                await self._transaction(client, name)
            await self._stop.pause(self._random.expovariate(2))

    def _plain(self, name: str) -> None:
        topic = self._random.choice(TOPICS)
        partition, value = self._random.randrange(PARTITIONS), f"{name}/0"
        self._telling.tell("begin", txn=name, plain=True)
        self._tell_write(name, topic, partition, value)
        self._telling.tell("commit", txn=name)

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is None:
                self._telling.tell("ended", txn=name, outcome="committed")

        self._producer.produce(topic, value.encode(), partition=partition, on_delivery=delivered)

    async def _transaction(self, client: TransactionClient, name: str) -> None:
        self._telling.tell("begin", txn=name)
        try:
            async with client.transaction() as txn:
                await self._write(txn, name)
                await self._end(txn, name)
        except (StilltideError, LeftError) as error:
            self._telling.tell("failed", txn=name, why=str(error))

    async def _write(self, txn: Transaction, name: str) -> None:
        for number in range(self._random.choice((1, 1, 2, 3, 5))):
            topic, value = self._random.choice(TOPICS), f"{name}/{number}"
            partition = self._random.choice((None, self._random.randrange(PARTITIONS)))
            self._tell_write(name, topic, partition, value)
            key = value.encode() if partition is None else None
            data = await txn.send(topic, value.encode(), key=key, partition=partition)
            if partition is None:
                self._telling.tell("sent", value=value, partition=data.partition)
            await self._stop.pause(self._random.choice((0.0, 0.0, 0.05, 0.3)))

    async def _end(self, txn: Transaction, name: str) -> None:
        if self._random.random() < DIES:
            os.kill(os.getpid(), signal.SIGKILL)
        match self._random.choice(("commit",) * 12 + ("abort", "raise", "leave")):
            case "raise":
                raise LeftError
            case "abort":
                await txn.abort()
            case end:
                if end == "leave":
                    await self._stop.pause(TIMEOUT_S + 2)
                await commit(txn, name, self._telling)

    def _tell_write(self, txn: str, topic: str, partition: int | None, value: str) -> None:
        self._telling.tell(
            "write",
            txn=txn,
            cluster=self._role.cluster,
            topic=topic,
            partition=-1 if partition is None else partition,
            value=value,
        )


async def commit(txn: Transaction, name: str, telling: Telling) -> None:
    """Commits, and tells what the application was told."""
    telling.tell("commit", txn=name)
    try:
        await txn.commit()
    finally:
        if txn.state in {"committed", "aborted"}:
            telling.tell("ended", txn=name, outcome=txn.state)


async def main() -> None:
    """Writes until SIGTERM."""
    role = Role.of(sys.argv[1])
    random.seed(role.text)
    await Writer(role, Stop()).run()


if __name__ == "__main__":
    asyncio.run(main())
