"""A transaction that was prepared, in this process or another one, and whose token is at hand.

*Source*: docs/protocols L2, L3.
"""

from typing import NamedTuple

from stilltide.pipeline.client.cluster import ClientCluster
from stilltide.pipeline.client.usage import not_open, require
from stilltide.pipeline.core.coordinator.client_transaction import Outcome, outcome_of
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.coordinator.prepared_tokens import PreparedToken, decode_token
from stilltide.schemas.coordinator.transactions import Describe, Description, EndPrepared
from stilltide.schemas.decisions import parse_decider
from stilltide.schemas.values import TxnId


class PreparedDescription(NamedTuple):
    """What a coordinator says of a prepared transaction.

    Attributes:
        outcome: `prepared`, `committed`, `aborted`, or `forgotten`.
        prepared_at_ms: when it was prepared, milliseconds since 1970; None once it has ended.
        decider: name of what decides when no program does; empty once it has ended.
    """

    outcome: Outcome
    prepared_at_ms: int | None
    decider: str


class PreparedTransaction:
    """A prepared transaction; made by `TransactionClient.resume`.

    `commit` and `abort` may be called again after any error: the first decision stands (L3).
    """

    def __init__(self, cluster: ClientCluster, token: PreparedToken) -> None:
        self._cluster = cluster
        self._token = token

    @property
    def id(self) -> TxnId:
        """The transaction's identity."""
        return self._token.txn

    async def commit(self, *, wait_visible: bool = False) -> None:
        """Makes every record of the transaction visible, or raises.

        Returns when the outcome is durable; with `wait_visible` when readers can know it (C5).

        Raises:
            DecidedOtherwiseError: the transaction was aborted (L3).
            NotOpenError: the client is closed; nothing was decided.
            PreparedTokenError: the topics of Stilltide were made again; nothing was decided.
            ConnectorError: the cluster is away; nothing was decided.
            RefusedError: the token is not that of the transaction, or the outcome is forgotten.
            RequestTimeoutError, OutcomeUnknownError: no answer; call again.
        """
        await self._decide(committed=True, wait_visible=wait_visible)

    async def abort(self, *, wait_visible: bool = False) -> None:
        """Hides every record of the transaction for good, or raises; else as `commit`.

        Raises:
            DecidedOtherwiseError: the transaction was committed (L3).
            StilltideError: as `commit` raises.
        """
        await self._decide(committed=False, wait_visible=wait_visible)

    async def describe(self) -> PreparedDescription:
        """What the coordinator knows of the transaction; decides nothing.

        Raises:
            NotOpenError: the client is closed.
            PreparedTokenError: the topics of Stilltide were made again.
            ConnectorError: the cluster is away.
            RefusedError: the token is not that of the transaction, or there is none.
            RequestTimeoutError: no answer; call again.
        """
        coordinator, sequence = await self._checked()
        answer = await self._cluster.ask(coordinator, Describe(sequence, self._token.secret_hash))
        assert isinstance(answer, Description)
        preparation = answer.preparation
        if preparation is None:
            return PreparedDescription(outcome_of(answer), None, "")
        return PreparedDescription(
            outcome_of(answer),
            preparation.prepared_at_ms,
            parse_decider(preparation.decider).name,
        )

    async def _checked(self) -> TxnId:
        """The transaction, of which the coordinators of now know; nothing was asked before."""
        self._cluster.home.check()
        if self._cluster.closed:
            raise not_open("client", "give the token to `resume` of an open client")
        if self._token.txn.coordinator >= self._cluster.coordinator_count:
            raise RefusedError(f"there is no coordinator {self._token.txn.coordinator}")
        await self._cluster.check_token(self._token)
        return self._token.txn

    async def _decide(self, *, committed: bool, wait_visible: bool) -> None:
        require(bool, wait_visible=wait_visible)
        coordinator, sequence = await self._checked()
        end = EndPrepared(sequence, committed, self._token.secret, wait_visible)
        await self._cluster.end_prepared(coordinator, end)


def resumed(cluster: ClientCluster, text: str) -> PreparedTransaction:
    """The prepared transaction of a token's text.

    Raises:
        PreparedTokenError: the text is cut short or altered, or of another cluster.
        UnknownVersionError: a later version of Stilltide made the token.
    """
    token = decode_token(text)
    token.check(cluster.cluster_id, token.topic_id)  # its topics are looked at before each request
    return PreparedTransaction(cluster, token)
