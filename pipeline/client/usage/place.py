"""The place of one transaction among the open ones of its client, from its first use to its end.

*Source*: docs/protocols C13, G2.

*Invariants*: a transaction that is used is counted, and hears of topics that are created again. Its
end is told once, however it comes: to subscriptions, whose messages come again unless it committed,
and to the client, whose next transaction may begin.
"""

from stilltide.pipeline.client.cluster import ClientCluster, OpenTransaction
from stilltide.pipeline.client.transaction_acks import TransactionAcks
from stilltide.pipeline.client.transaction_records import TransactionRecords

ABORTED = "the transaction that acknowledged the message was aborted"


class TransactionPlace:
    """The place of one transaction.

    Args:
        cluster: the client's connections.
        records: its records.
        acks: its acknowledgements.

    Attributes:
        entered: whether the transaction was used.
        why: the reason of an end without commit, for messages that come again.
    """

    def __init__(
        self,
        cluster: ClientCluster,
        records: TransactionRecords,
        acks: TransactionAcks,
    ) -> None:
        self.entered = False
        self.why = ABORTED
        self._cluster = cluster
        self._records = records
        self._acks = acks
        self._over = False
        # Not longer than it is open: a cycle would be left to the garbage collector.
        self._counted: OpenTransaction | None = None

    async def enter(self, txn: OpenTransaction) -> None:
        """Counts the transaction, at its first use; waits while too many are open."""
        if self.entered:
            return
        self.entered = True
        await self._cluster.enter(txn)
        self._counted = txn
        if self._over:  # it was aborted while it waited
            self._leave()

    def ended(self, *, committed: bool) -> None:
        """The transaction has committed, or it has not, or nobody knows. Later calls do nothing."""
        if self._over:
            return
        self._over = True
        self._acks.ended(None if committed else self.why)
        self._records.ended()
        self._leave()

    def _leave(self) -> None:
        if (txn := self._counted) is not None:
            self._counted = None
            self._cluster.leave(txn)
