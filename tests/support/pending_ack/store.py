"""An `AckStore` that asks the state of pending-ack logs directly, without owners and logs."""

import asyncio

from stilltide.pipeline.core.pending_ack.state import PendingAckState
from stilltide.schemas.pending_ack.acknowledgements import (
    AckAnswer,
    AckBody,
    AckQuestion,
    DescribeAcks,
    Settle,
)
from stilltide.schemas.service.envelopes import NO_CLIENT, Request
from stilltide.schemas.values import SubscriptionId, TxnId


class StateStore:
    """An `AckStore`; requests take effect in the order of the calls.

    Attributes:
        asked: all requests so far.
        present: event that is set while the store answers; requests wait while it is cleared.
    """

    def __init__(self) -> None:
        self.asked: list[AckBody] = []
        self.present = asyncio.Event()
        self.present.set()
        self._state = PendingAckState()

    async def ask_about(self, subscription: SubscriptionId, body: AckBody) -> AckAnswer:
        """See `AckStore.ask_about`."""
        await asyncio.sleep(0)
        await self.present.wait()
        self.asked.append(body)
        return self.apply(subscription, body)

    def apply(self, subscription: SubscriptionId, body: AckBody) -> AckAnswer:
        """Applies a request of any client; returns the answer."""
        if isinstance(body, DescribeAcks):
            return self._state.acks(subscription)
        request = Request(b"c", 1, 0, 0, AckQuestion(subscription, body))
        return self._state.apply(request, at_ms=0)

    def settle(self, subscription: SubscriptionId, txn: TxnId, *, committed: bool) -> None:
        """Settles a transaction for the client that has acknowledged in it."""
        pending = self._state.acks(subscription).pending
        keys = (it.client_key for it in pending if it.txn == txn)
        self.apply(subscription, Settle(txn, committed, 0, next(keys, NO_CLIENT)))
