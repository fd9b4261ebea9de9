"""A program that consumes, transforms and produces, in transactions that acknowledge their input.

`python -m tests.chaos.proxied.programs.copier ROLE`; SIGTERM lets what is under way end.
"""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

from stilltide import (
    AcknowledgementError,
    Message,
    StilltideError,
    Subscription,
    Transaction,
    TransactionClient,
)
from tests.chaos.proxied.programs.polling import Polling
from tests.chaos.proxied.programs.telling import Role, Stop, Telling
from tests.chaos.proxied.programs.writer import AGAIN_S, TIMEOUT_S, commit
from tests.chaos.proxied.topics import BY_NAME, OUTPUT, PARTITIONS

MESSAGES_MAX = 4
CUMULATIVE, ABORTS = 0.25, 0.1


class Copier:
    """What a process does."""

    def __init__(self, role: Role, stop: Stop) -> None:
        self._role, self._stop = role, stop
        self._telling = Telling(Path(role.path))
        self._random = role.random
        self._numbers = iter(range(10**9))

    async def run(self) -> None:
        """Copies until SIGTERM, and begins again after an error."""
        role = self._role
        while not self._stop.asked:
            try:
                async with (
                    TransactionClient(
                        role.bootstrap, name=role.name, transaction_timeout_s=TIMEOUT_S
                    ) as client,
                    Subscription(
                        BY_NAME[role.group].topics,
                        group=role.group,
                        bootstrap_servers=role.bootstrap,
                        client_id=role.name,
                        acknowledgements=True,
                        redelivery_delay_s=0.5,
                        redelivery_delay_s_max=2,
                    ) as subscription,
                ):
                    await self._copy(client, subscription)
            except StilltideError as error:
                self._telling.tell("away", why=str(error))
                await self._stop.pause(AGAIN_S)

    async def _copy(self, client: TransactionClient, subscription: Subscription) -> None:
        polling = Polling(self._role, self._telling, subscription)
        while not self._stop.asked:
            if (message := await polling.next()) is None:
                continue
            session, taken = polling.session, [message]
            while len(taken) < self._random.randint(1, MESSAGES_MAX):
                if (more := await polling.next(0.05)) is None:
                    break
                taken = [*taken, more] if polling.session == session else [more]
                session = polling.session
            await self._transaction(client, subscription, polling, taken)

    async def _transaction(
        self,
        client: TransactionClient,
        subscription: Subscription,
        polling: Polling,
        taken: list[Message],
    ) -> None:
        name = f"{self._role.name}.{self._role.run}.{next(self._numbers)}"
        cumulative = self._random.random() < CUMULATIVE
        last = {(it.topic, it.partition): it for it in taken}
        session = polling.session
        self._telling.tell("begin", txn=name)
        txn = client.transaction()
        try:
            async with txn:
                for message in last.values() if cumulative else taken:
                    values = await self._acknowledge(
                        txn, name, subscription, polling, message, cumulative=cumulative
                    )
                    await self._write(txn, name, values)
                await self._stop.pause(self._random.choice((0.0, 0.0, 0.05, 0.5)))
                if self._random.random() < ABORTS:
                    await txn.abort()
                else:
                    await commit(txn, name, self._telling)
        except StilltideError as error:
            self._telling.tell("failed", txn=name, why=str(error))
        for message in taken if polling.session == session else ():
            # Whether a transaction of unknown outcome has acknowledged them is not known.
            if txn.state in {"committed", "unknown"}:
                polling.close(message, cumulative=cumulative)
            else:
                # A message that the transaction did not come to would else stay here for ever.
                with suppress(AcknowledgementError):
                    subscription.negative_acknowledge(message)

    async def _acknowledge(
        self,
        txn: Transaction,
        name: str,
        subscription: Subscription,
        polling: Polling,
        message: Message,
        *,
        cumulative: bool,
    ) -> list[str]:
        """Acknowledges a message, or all up to it; returns what that covers."""
        if cumulative:
            values = polling.upto(message)
            await txn.acknowledge_cumulative(subscription, message)
        else:
            values = [(message.value or b"").decode()]
            await txn.acknowledge(subscription, message)
        self._telling.tell("acknowledge", txn=name, group=self._role.group, values=values)
        return values

    async def _write(self, txn: Transaction, name: str, values: list[str]) -> None:
        for value in values:
            copy, partition = f"{value}>{name}", self._random.randrange(PARTITIONS)
            self._telling.tell(
                "write",
                txn=name,
                cluster=self._role.cluster,
                topic=OUTPUT,
                partition=partition,
                value=copy,
            )
            await txn.send(OUTPUT, copy.encode(), partition=partition)


async def main() -> None:
    """Copies until SIGTERM."""
    await Copier(Role.of(sys.argv[1]), Stop()).run()


if __name__ == "__main__":
    asyncio.run(main())
