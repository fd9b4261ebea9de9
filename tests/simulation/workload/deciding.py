"""Programs that decide prepared transactions which others have left: tokens, rows, operators."""

import asyncio
from contextlib import aclosing, suppress

from stilltide.pipeline.client.transaction_client import TransactionClient
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.drivers.decisions.resolver import UnendedTransactions, resolvers_of
from stilltide.schemas.coordinator.prepared_tokens import SECRET_BYTES, decode_token, encode_token
from stilltide.schemas.coordinator.transactions import Decide, Description
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.values import TxnId
from tests.simulation.databases.connections import Table
from tests.simulation.network.connector import NetworkConnector
from tests.simulation.network.paths import Path
from tests.simulation.plan import DATABASE, Deciding, Decision
from tests.simulation.programs import AGAIN_S, now_s
from tests.simulation.workload.preparing import KeptToken, Preparations

LOOK_S = 0.5
"""Time between two looks at the tokens that were given on."""

LOOKS = 10
"""Looks of an operator after which it connects again, as each command does."""

FORGED = 3
"""Of so many tokens one is altered, and shown for the opposite decision, before it is used."""

TWICE = 3
"""Of so many decisions one is asked for once more, after it was answered."""

REQUEST_S = 5.0
"""How long an operator or a resolver waits for an answer."""


class Holding:
    """A program that keeps tokens, and decides by them.

    Args:
        deciding: the program.
        preparations: those of the world.
    """

    def __init__(self, deciding: Deciding, preparations: Preparations) -> None:
        self._deciding = deciding
        self._preparations = preparations

    async def run(self, connector: NetworkConnector) -> None:
        """Decides by each token that there is or comes; once more in each process."""
        while True:
            try:
                async with TransactionClient(
                    connector=connector, name=self._deciding.name
                ) as transactions:
                    await self._look(transactions)
            except* StilltideError:
                await asyncio.sleep(AGAIN_S)

    async def _look(self, transactions: TransactionClient) -> None:
        number, done = self._deciding.number, set[int]()
        while True:
            due = [
                it
                for it in self._preparations.tokens.get(self._deciding.cluster, ())
                if it.number not in done and number < len(it.holders)
            ]
            ended = await asyncio.gather(*(self._end(transactions, it) for it in due))
            done |= {it.number for it, is_done in zip(due, ended, strict=True) if is_done}
            await asyncio.sleep(LOOK_S)

    async def _end(self, transactions: TransactionClient, kept: KeptToken) -> bool:
        """Decides by a token; returns whether that was answered."""
        decision = kept.holders[self._deciding.number]
        prepared = transactions.resume(kept.token)
        ask = prepared.commit if decision == "commit" else prepared.abort
        if kept.number % FORGED == 0:
            await _forge(transactions, kept.token, "abort" if decision == "commit" else "commit")
        with suppress(StilltideError):
            await self._preparations.decide(kept.txn, decision, ask)
            if kept.number % TWICE == 0:
                await self._preparations.decide(kept.txn, decision, ask)
            outcome = (await prepared.describe()).outcome
            if outcome == "committed" or outcome == "aborted":  # noqa: PLR1714 - narrows the type
                self._preparations.told(kept.txn, outcome)
            return True
        return False


async def _forge(transactions: TransactionClient, token: str, decision: Decision) -> None:
    """Asks for a decision by a secret that is none; nobody has asked for that decision."""
    forged = decode_token(token)._replace(secret=bytes(SECRET_BYTES))
    prepared = transactions.resume(encode_token(forged))
    with suppress(StilltideError):
        await (prepared.commit() if decision == "commit" else prepared.abort())


class Resolving:
    """A program that asks the database, as `stilltide txn resolve --follow` does.

    Args:
        deciding: the program.
        preparations: those of the world.
    """

    def __init__(self, deciding: Deciding, preparations: Preparations) -> None:
        self._after_ms = round(deciding.after_s * 1000)
        self._database = preparations.database

    async def run(self, connector: NetworkConnector, path: Path) -> None:
        """Resolves round by round."""
        tables = {DATABASE: Table(self._database, path)}
        while True:
            try:
                async with Coordinators(connector, request_timeout_s=REQUEST_S) as coordinators:
                    cluster_id = await connector.admin().cluster_id()
                    unended = UnendedTransactions(coordinators, cluster_id, tables, connector.clock)
                    [resolver] = resolvers_of(unended, tables, resolve_after_ms=self._after_ms)
                    async with aclosing(resolver.rounds()) as rounds:
                        async for _ in rounds:
                            pass
            except StilltideError:
                await asyncio.sleep(AGAIN_S)


class Overseeing:
    """An operator who decides, with a reason, what has been prepared for a while without a decider.

    Args:
        deciding: the program.
        preparations: those of the world.
    """

    def __init__(self, deciding: Deciding, preparations: Preparations) -> None:
        self._deciding = deciding
        self._preparations = preparations
        self._seen_s: dict[TxnId, float] = {}

    async def run(self, connector: NetworkConnector) -> None:
        """Looks and decides, again and again."""
        while True:
            with suppress(StilltideError):
                async with Coordinators(connector, request_timeout_s=REQUEST_S) as coordinators:
                    for _ in range(LOOKS):
                        await self._look(coordinators)
                        await asyncio.sleep(1)
            await asyncio.sleep(AGAIN_S)

    async def _look(self, coordinators: Coordinators) -> None:
        for txn, description in (await prepared_now(coordinators)).items():
            preparation = description.preparation
            assert preparation is not None
            seen_s = self._seen_s.setdefault(txn, now_s())
            if not preparation.decider and now_s() - seen_s >= self._deciding.after_s:
                with suppress(StilltideError):
                    await self._decide(coordinators, txn)

    async def _decide(self, coordinators: Coordinators, txn: TxnId) -> None:
        decision: Decision = "commit" if txn.sequence % 2 else "abort"
        decide = Decide(txn.sequence, decision == "commit", "nobody else has decided")
        await self._preparations.decide(
            self._preparations.transactions[self._deciding.cluster, txn],
            decision,
            lambda: coordinators.ask(txn.coordinator, decide),
        )


async def prepared_now(coordinators: Coordinators) -> dict[TxnId, Description]:
    """What is prepared, as far as the coordinators answer."""
    answers = await coordinators.transactions_of_each()
    return {
        TxnId(coordinator, it.sequence): it
        for coordinator, listed in answers.items()
        for it in listed or ()
        if it.state == "PREPARED"
    }


async def list_prepared(connector: NetworkConnector, into: list[str]) -> None:
    """Lists what is prepared, and coordinators that do not answer."""
    async with Coordinators(connector, request_timeout_s=REQUEST_S) as coordinators:
        answers = await coordinators.transactions_of_each()
    for coordinator, listed in answers.items():
        if listed is None:
            into.append(f"coordinator {coordinator} does not answer")
        else:
            into += [
                f"{connector.cluster} {coordinator}:{it.sequence} is prepared: {it.preparation}"
                for it in listed
                if it.state == "PREPARED"
            ]
