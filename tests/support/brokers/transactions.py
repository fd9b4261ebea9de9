"""Coordinated transactions without end, and what their client was told of each."""

import asyncio
import itertools
from dataclasses import dataclass, field

from stilltide.pipeline.client import Transaction, TransactionClient
from stilltide.pipeline.errors import OutcomeUnknownError
from stilltide.schemas.errors import StilltideError
from tests.support.brokers.progress import Pacing, Progress

CALLERS = 4
EVERY_S = 0.1
ORDERS_EACH, PAYMENTS_EACH = 2, 1
"""Records of a transaction in each of its two topics."""

ABORTED_EACH = 5
"""Every fifth transaction aborts on purpose."""

TIMEOUT_S = 60.0
"""Of a transaction: what an outage leaves open ends soon after."""


@dataclass
class Outcomes:
    """Numbers of transactions by what their caller was told."""

    committed: set[int] = field(default_factory=set[int])
    aborted: set[int] = field(default_factory=set[int])
    unknown: set[int] = field(default_factory=set[int])
    errors: list[str] = field(default_factory=list[str])


class Transactions:
    """`CALLERS` callers that write to two topics until `stop`.

    Args:
        bootstrap: the cluster.
        orders: topic of two records of each transaction.
        payments: topic of one record of each.
        every_s: pause of a caller between two transactions.
    """

    def __init__(
        self, bootstrap: str, orders: str, payments: str, *, every_s: float = EVERY_S
    ) -> None:
        self.progress = Progress("transactions")
        self.outcomes = Outcomes()
        self._bootstrap = bootstrap
        self._orders, self._payments = orders, payments
        self._pacing = Pacing(every_s)
        self._numbers = itertools.count()

    def stop(self) -> None:
        """Begins no further transaction; `run` returns when the begun ones have ended."""
        self._pacing.stop()

    async def run(self) -> None:
        """Runs transactions until `stop`."""
        async with (
            TransactionClient(
                self._bootstrap, name="load", transaction_timeout_s=TIMEOUT_S, resend_s=0.5
            ) as client,
            asyncio.TaskGroup() as callers,
        ):
            for caller in range(CALLERS):
                callers.create_task(self._call(client, caller))

    async def _call(self, client: TransactionClient, caller: int) -> None:
        while await self._pacing.next():
            number = next(self._numbers)
            await self._one(client, number)
            if number in self.outcomes.committed:
                self.progress.step(caller)

    async def _one(self, client: TransactionClient, number: int) -> None:
        outcomes, aborts = self.outcomes, number % ABORTED_EACH == 0
        try:
            async with client.transaction() as txn:
                await self._write(txn, number)
                if aborts:
                    await txn.abort()
        except OutcomeUnknownError as error:
            outcomes.unknown.add(number)
            outcomes.errors.append(str(error))
        except StilltideError as error:
            outcomes.aborted.add(number)
            outcomes.errors.append(str(error))
        else:
            (outcomes.aborted if aborts else outcomes.committed).add(number)

    async def _write(self, txn: Transaction, number: int) -> None:
        for topic, count in ((self._orders, ORDERS_EACH), (self._payments, PAYMENTS_EACH)):
            for part in range(count):
                await txn.send(topic, b"%d" % number, key=b"%d.%d" % (number, part))
