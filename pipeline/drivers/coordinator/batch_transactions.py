"""Transactions whose records another program writes, such as Spark's sink.

*Source*: docs/protocols C2, C6, C13, L1, L2, L9.

*Invariants*: all partitions of the topic are registered before the first record; what is prepared
is what the caller has counted, on the partitions that were registered.

Refuses system topics, and topics that compact (C18; the coordinator looks).

The rules of a batch are in `core/coordinator/batch_write.py`. `ClientTransaction` cannot take their
place: it decides by delivery reports of records that its own client has sent, and holds the secret
itself, where a batch counts what another program has written, and ends by a token that was stored.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from stilltide.connectors.errors import FatalError, RetriableError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector, closing
from stilltide.pipeline.drivers.coordinator.operator import refused
from stilltide.pipeline.drivers.service.ask.requests import (
    COORDINATOR_SERVICE,
    CoordinatorRequests,
    OwnerLine,
)
from stilltide.pipeline.errors import OutcomeUnknownError, system_topic, topic_recreated
from stilltide.schemas.coordinator.prepared_tokens import (
    SECRET_BYTES,
    PreparedToken,
    decode_token,
)
from stilltide.schemas.coordinator.transactions import (
    AddPartitions,
    Answer,
    End,
    EndPrepared,
    Open,
    Opened,
    Prepare,
    Registered,
    RequestBody,
    Unknown,
    Written,
)
from stilltide.schemas.service.envelopes import RefusalCode, Refused
from stilltide.schemas.topics import TXN_REQUESTS, is_system_topic
from stilltide.schemas.values import EndOffset, TopicPartition, TxnId

DECIDER = "spark"
"""Decider of the transactions: the program that has the progress directory."""


class OpenBatch(NamedTuple):
    """An open transaction.

    Attributes:
        token: what will end it once it is prepared.
        registered: all partitions of its topic.
    """

    token: PreparedToken
    registered: tuple[Registered, ...]


class BatchTransactions:
    """Makes and ends the transactions; made by `connect_batches`.

    Args:
        connector: the cluster.
        admin: of the cluster; open.
        requests: to coordinators; open.
        cluster_id: Kafka's id of the cluster.
    """

    def __init__(
        self,
        connector: Connector,
        admin: LogAdmin,
        requests: CoordinatorRequests,
        cluster_id: str,
    ) -> None:
        self._chance = connector.chance
        self._admin = admin
        self._requests = requests
        self.cluster_id = cluster_id

    async def topic_id(self, topic: str) -> bytes:
        """Kafka's id of the topic.

        Raises:
            SystemTopicError: the topic is one of Stilltide's own.
            FatalError: the topic does not exist.
        """
        if is_system_topic(topic):
            raise system_topic(topic, hint="write to a topic of another name")
        return (await self._described(topic))[0]

    async def open(self, topic: str, timeout_ms: int) -> OpenBatch:
        """Opens a transaction, registered with all partitions of the topic (C2).

        Raises:
            RefusedError, CompactedTopicError: the coordinator did not open it.
            RequestTimeoutError: no answer in time.
        """
        own_id, _ = await self._described(TXN_REQUESTS)
        topic_id, count = await self._described(topic)
        data = [TopicPartition(topic, number) for number in range(count)]
        ends = await self._ends(data)
        registered = tuple(Registered(it, ends[it], topic_id) for it in data)
        home = self._requests.home
        answer = await self._ask(home, Open(timeout_ms, 1, registered, (), self._requests.name))
        if not isinstance(answer, Opened):
            raise _forgotten("open a transaction")
        secret = self._chance.token(SECRET_BYTES)
        txn = TxnId(home, answer.first_sequence)
        return OpenBatch(PreparedToken(self.cluster_id, txn, secret, own_id), registered)

    async def ends(self, batch: OpenBatch) -> dict[TopicPartition, EndOffset] | None:
        """The end offsets of the registered partitions; None if the topic has more of them by now.

        New partitions are registered, so that an abort hides what was written there.

        Raises:
            TopicRecreatedError: the topic was deleted and created again (C13).
        """
        first = batch.registered[0]
        topic, before = first.data.topic, first.topic_id
        topic_id, count = await self._described(topic)
        if topic_id != before:
            raise topic_recreated(topic, before, topic_id, hint="write the batch again")
        known = len(batch.registered)
        if count > known:
            data = [TopicPartition(topic, number) for number in range(known, count)]
            new = tuple(Registered(it, EndOffset(0), topic_id) for it in data)
            txn = batch.token.txn
            await self._ask(txn.coordinator, AddPartitions(txn.sequence, new))
            return None
        return await self._ends([it.data for it in batch.registered])

    async def prepare(self, batch: OpenBatch, written: Sequence[Written]) -> None:
        """Prepares the transaction with these counts (L1).

        Raises:
            RefusedError: the transaction has ended, for example at its time-out.
            RequestTimeoutError, OutcomeUnknownError: the transaction may be prepared, or not.
        """
        txn, secret_hash = batch.token.txn, batch.token.secret_hash
        body = Prepare(txn.sequence, tuple(written), None, secret_hash, DECIDER)
        answer = await self._ask(txn.coordinator, body)
        if isinstance(answer, Unknown):
            raise _forgotten("prepare a transaction")

    async def abort(self, batch: OpenBatch) -> None:
        """Aborts the open transaction, unless its time-out or an operator has done so before."""
        txn = batch.token.txn
        end = End(txn.sequence, committed=False, written=(), wait_visible=False)
        await self._requests.ask(txn.coordinator, end)  # never prepared, so it cannot be committed

    async def decide(self, token: str, *, committed: bool) -> None:
        """Ends the prepared transaction of a token (L3); commits when readers can know it.

        An abort of what is not prepared, or has aborted, does nothing.

        Raises:
            PreparedTokenError: the text is no token, or one of another cluster, or of before the
                topics of Stilltide were made again.
            RefusedError: an operator decided otherwise, or the outcome is forgotten.
            RequestTimeoutError, OutcomeUnknownError: no answer; decide again, alike.
        """
        decoded = decode_token(token)
        own_id, _ = await self._described(TXN_REQUESTS)
        decoded.check(self.cluster_id, own_id)
        txn = decoded.txn
        body = EndPrepared(txn.sequence, committed, decoded.secret, wait_visible=committed)
        answer = await self._requests.ask(txn.coordinator, body)
        if isinstance(answer, Refused) and (committed or answer.code is RefusalCode.COMMITTED):
            raise refused(txn.coordinator, body, answer)
        if isinstance(answer, Unknown):
            raise _forgotten("end a transaction")

    async def _described(self, topic: str) -> tuple[bytes, int]:
        topics = await self._admin.describe_topics([topic])
        if topic not in topics:
            raise FatalError("the topic does not exist", hint="create it first", topic=topic)
        return topics[topic].topic_id, topics[topic].partition_count

    async def _ends(self, data: Sequence[TopicPartition]) -> dict[TopicPartition, EndOffset]:
        ends = dict(await self._admin.end_offsets(data))
        if len(ends) < len(data):
            raise RetriableError("the topic is changing", hint="try again", topic=data[0].topic)
        return ends

    async def _ask(self, coordinator: int, body: RequestBody) -> Answer:
        answer = await self._requests.ask(coordinator, body)
        if isinstance(answer, Refused):
            raise refused(coordinator, body, answer)
        return answer


def _forgotten(what: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"the coordinator no longer remembers the request to {what}",
        hint="write the batch again: what is undecided is aborted first",
    )


@asynccontextmanager
async def connect_batches(
    connector: Connector, name: str, *, timeout_s: float
) -> AsyncIterator[BatchTransactions]:
    """`BatchTransactions` that are open for the length of the block; raises as `OwnerLine`."""
    line: OwnerLine[RequestBody, Answer] = OwnerLine(
        COORDINATOR_SERVICE, None, connector, name=name, request_timeout_s=timeout_s, patient=True
    )
    async with line, closing(connector.admin()) as admin:
        yield BatchTransactions(connector, admin, line.requests, await admin.cluster_id())
