"""A client that sends any request to coordinators and pending-ack stores."""

import asyncio

from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import GroupReader
from stilltide.pipeline.drivers.pending_ack.client import (
    PENDING_ACK_OPERATOR_SERVICE,
    PENDING_ACK_SERVICE,
)
from stilltide.pipeline.drivers.service.ask.requests import (
    COORDINATOR_SERVICE,
    AckRequests,
    CoordinatorRequests,
    Requests,
)
from stilltide.schemas.coordinator.transactions import (
    AddSubscriptions,
    Describe,
    Description,
    End,
    Open,
    Opened,
)
from stilltide.schemas.pending_ack.acknowledgements import (
    AckAnswer,
    AckBody,
    Acknowledge,
    AckQuestion,
    Attach,
    Settle,
)
from stilltide.schemas.service.envelopes import Done
from stilltide.schemas.topics import system_partition
from stilltide.schemas.values import EndOffset, Offset, Range, SubscriptionId, TxnId

JOIN_S = 180.0
"""Longest wait for the group to assign the topic."""

TRANSACTION_TIMEOUT_MS = 120_000
"""The longest that workers of the tests take; a worker that is killed is back long before."""

MESSAGES = 200
"""Messages in the partition: nothing beyond the end of a log can be acknowledged."""

FIRST, SECOND = bytes(15) + b"\x01", bytes(15) + b"\x02"
"""Ids of two members."""


def one(first: int, end: int) -> Range:
    """A range of offsets."""
    return Range(Offset(first), EndOffset(end))


class AckClient:
    """Sends requests to a coordinator and to pending-ack stores, as a member of the group.

    The topic of the subscription exists before the first claim.
    """

    def __init__(
        self, connector: Connector, subscription: SubscriptionId, *, resend_s: float = 0.2
    ) -> None:
        self.subscription = subscription
        writer = connector.writer("client")
        options = {
            "name": "client",
            "request_timeout_s": 60.0,
            "resend_s": resend_s,
        }
        self._acks: AckRequests = Requests(PENDING_ACK_SERVICE, connector, writer, **options)
        self._outcomes: AckRequests = Requests(
            PENDING_ACK_OPERATOR_SERVICE, connector, writer, **options
        )
        self._coordinators: CoordinatorRequests = Requests(
            COORDINATOR_SERVICE, connector, writer, **options
        )
        self._connector = connector
        self._writer = writer
        self._members: dict[str, GroupReader] = {}

    @property
    def client_id(self) -> bytes:
        """The secret under which the client claims and acknowledges."""
        return self._acks.client_id

    @property
    def txn_client_id(self) -> bytes:
        """The secret under which the client opens transactions."""
        return self._coordinators.client_id

    async def open(self, *, coordinators: int = 1, partitions: int) -> None:
        """Writes messages, and begins to read answers; the worker must have made the topics."""
        for _ in range(MESSAGES):
            self._writer.append(self.subscription.data, b"", lambda _error, _offset: None)
        assert await self._writer.flush(JOIN_S)
        self.partition = system_partition(self.subscription.data, partitions)
        for line in (self._acks, self._outcomes):
            await line.open(partition_count=partitions, response_partition_count=partitions)
        await self._coordinators.open(
            partition_count=coordinators, response_partition_count=partitions
        )

    async def close(self) -> None:
        """Leaves the groups and stops reading answers."""
        for member in self._members.values():
            await member.close()
        await self._acks.close()
        await self._outcomes.close()
        await self._coordinators.close()

    async def ask(self, body: AckBody) -> AckAnswer:
        """Sends one request about the subscription, an outcome as a worker would."""
        if isinstance(body, Attach) and not body.group_member:
            body = body._replace(group_member=await self.group_member())
        elif isinstance(body, Acknowledge) and not body.txn_client_id:
            body = body._replace(txn_client_id=self.txn_client_id)
        line = self._outcomes if isinstance(body, Settle) else self._acks
        return await line.ask(self.partition, AckQuestion(self.subscription, body))

    async def group_member(self) -> str:
        """The id of this client's member of the group."""
        return await self._joined(self.subscription.group)

    async def _joined(self, group: str) -> str:
        """The id of this client's member of a group, which the client joins the first time."""
        if group not in self._members:
            member = self._members[group] = self._connector.group_reader("member", group)
            joined = asyncio.Event()
            await member.subscribe(
                [self.subscription.data.topic],
                assigned=lambda _: joined.set(),
                revoked=lambda _: None,
            )
            async with asyncio.timeout(JOIN_S):
                await joined.wait()
        return self._members[group].member_id

    async def acknowledge(self, txn: TxnId, *offsets: int, member: bytes = FIRST) -> AckAnswer:
        """Acknowledges single records in a transaction."""
        return await self.ask(Acknowledge(txn, member, tuple(map(Offset, offsets))))

    async def begin(self) -> TxnId:
        """Opens a transaction that is registered with the subscription."""
        opened = await self._coordinators.ask(0, Open(TRANSACTION_TIMEOUT_MS, 1, ()))
        assert isinstance(opened, Opened)
        registered = AddSubscriptions(opened.first_sequence, (self.subscription,))
        assert await self._coordinators.ask(0, registered) == Done()
        return TxnId(0, opened.first_sequence)

    async def end(self, txn: TxnId, *, committed: bool, wait_visible: bool = True) -> None:
        """Commits or aborts the transaction."""
        body = End(txn.sequence, committed, (), wait_visible)
        assert await self._coordinators.ask(0, body) == Done()

    async def state(self, txn: TxnId) -> str:
        """The state of a transaction at its coordinator."""
        described = await self._coordinators.ask(0, Describe(txn.sequence))
        assert isinstance(described, Description)
        return described.state
