"""Asks a coordinator how a transaction ended.

*Source*: docs/protocols C12.
"""

import asyncio
from contextlib import suppress
from typing import Literal

from stilltide.pipeline.client.cluster import ClientCluster
from stilltide.pipeline.errors import OutcomeUnknownError, RefusedError, RequestTimeoutError
from stilltide.schemas.coordinator.transactions import Describe, Description, Done, End
from stilltide.schemas.values import TxnId

Outcome = Literal["open", "committed", "aborted", "forgotten"]
"""How a transaction ended, or that it is open, or that its coordinator does not know any more."""


async def outcome_of(cluster: ClientCluster, txn: TxnId) -> Outcome:
    """Asks the coordinator; raises as `ClientCluster.ask`."""
    if not 0 <= txn.coordinator < cluster.coordinator_count:
        raise RefusedError(f"there is no coordinator {txn.coordinator}")
    answer = await cluster.ask(txn.coordinator, Describe(txn.sequence))
    assert isinstance(answer, Description)
    if answer.state == "OPEN":
        return "open"
    if answer.state == "COMMITTING" or answer.committed:
        return "committed"
    return "aborted" if answer.state == "ABORTING" or answer.committed is False else "forgotten"


async def committed_after_all(
    cluster: ClientCluster, txn: TxnId, end: End, within_s: float
) -> bool:
    """Whether a transaction has committed whose coordinator has forgotten the request to commit.

    The request is sent again: it commits an open transaction, and another one is not changed.

    Raises:
        OutcomeUnknownError: the outcome is forgotten, or the coordinator did not say in time.
    """
    try:
        async with asyncio.timeout(within_s):
            with suppress(RefusedError):  # the transaction is not open any more
                if isinstance(await cluster.ask(txn.coordinator, end), Done):
                    return True
            found = await outcome_of(cluster, txn)
    except (TimeoutError, RequestTimeoutError) as error:
        raise outcome_unknown(txn, "the coordinator did not say in time") from error
    if found not in {"committed", "aborted"}:
        raise outcome_unknown(txn, "the coordinator no longer remembers the transaction")
    return found == "committed"


def outcome_unknown(txn: TxnId | None, detail: str) -> OutcomeUnknownError:
    """The error of a transaction of which it is unknown whether it committed."""
    return OutcomeUnknownError(
        f"whether transaction {txn} was committed is unknown",
        detail=detail,
        hint="ask later, before you do the work again: `await client.outcome(txn.id)`, or "
        f"`stilltide txn describe {txn}`",
    )
