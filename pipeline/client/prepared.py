"""A transaction that was prepared, in this process or another one, and whose token is at hand.

*Source*: docs/protocols L2, L3.
"""

from stilltide.pipeline.client.cluster import ClientCluster
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.coordinator.prepared_tokens import PreparedToken, decode_token
from stilltide.schemas.coordinator.transactions import EndPrepared
from stilltide.schemas.errors import PreparedTokenError
from stilltide.schemas.values import TxnId


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
            RefusedError: the token is not that of the transaction, or the outcome is forgotten.
            RequestTimeoutError, OutcomeUnknownError: no answer; call again.
        """
        await self._decide(committed=True, wait_visible=wait_visible)

    async def abort(self, *, wait_visible: bool = False) -> None:
        """Hides every record of the transaction for good, or raises; else as `commit`.

        Raises:
            DecidedOtherwiseError: the transaction was committed (L3).
            RefusedError, RequestTimeoutError, OutcomeUnknownError: as `commit` raises.
        """
        await self._decide(committed=False, wait_visible=wait_visible)

    async def _decide(self, *, committed: bool, wait_visible: bool) -> None:
        self._cluster.home.check()
        coordinator, sequence = self._token.txn
        if coordinator >= self._cluster.coordinator_count:
            raise RefusedError(f"there is no coordinator {coordinator}")
        end = EndPrepared(sequence, committed, self._token.secret, wait_visible)
        await self._cluster.end_prepared(coordinator, end)


def resumed(cluster: ClientCluster, text: str) -> PreparedTransaction:
    """The prepared transaction of a token's text.

    Raises:
        PreparedTokenError: the text is cut short or altered, or of another cluster.
        UnknownVersionError: a later version of Stilltide made the token.
    """
    token = decode_token(text)
    if token.cluster_id != cluster.cluster_id:
        raise PreparedTokenError(
            f"the token is of the cluster {token.cluster_id}, not of this client's",
            detail=f"this client uses the cluster {cluster.cluster_id}",
            hint="resume it with a client of its cluster",
        )
    return PreparedTransaction(cluster, token)
