"""One coordinated transaction of an application: carries out what `ClientTransaction` asks for.

*Source*: docs/protocols C2, C6, C12, C13. `TransactionRecords` makes D6 impossible.

*Invariants*: each end is told, once, in whichever way it comes (`TransactionEnd`).
"""

import asyncio
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast

from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.client.batches import MessageBatch
from stilltide.pipeline.client.cluster import ClientCluster
from stilltide.pipeline.client.deciding_database import DecidingDatabase
from stilltide.pipeline.client.serializers import FieldSerializers
from stilltide.pipeline.client.topics import TransactionTopics
from stilltide.pipeline.client.transaction_acks import Acknowledges, TransactionAcks
from stilltide.pipeline.client.transaction_end import TransactionEnd
from stilltide.pipeline.client.transaction_records import HeldRecord, TransactionRecords
from stilltide.pipeline.client.transaction_registration import (
    TransactionRegistration,
)
from stilltide.pipeline.client.usage import (
    AwaitedCalls,
    acknowledging,
    check_place,
    check_record,
    messages_of,
    require,
)
from stilltide.pipeline.core.coordinator.client_transaction import (
    ClientTransaction,
    PartitionWrites,
    nothing_to_prepare,
)
from stilltide.pipeline.core.topic_table import TopicRecreated
from stilltide.pipeline.errors import (
    TransactionStateError,
    error_text,
)
from stilltide.pipeline.logging import get_logger
from stilltide.pipeline.tracing import UNTRACED
from stilltide.schemas.coordinator.prepared_tokens import (
    SECRET_BYTES,
    PreparedToken,
    encode_token,
    hash_of,
    token_id,
)
from stilltide.schemas.coordinator.transactions import EndPrepared
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.headers import Headers
from stilltide.schemas.values import TopicPartition, TxnId

if TYPE_CHECKING:
    from stilltide.pipeline.tracing.spans import Tracing

log = get_logger(__name__)


class Transaction:
    """One transaction; made by `TransactionClient.transaction`, used as a context manager.

    Leaving the block commits; leaving it by an exception aborts. Without a block, the first use
    opens the transaction, and `commit` or `abort` has to be called. A transaction that is prepared
    stays prepared when the block ends, in whichever way: `commit`, `abort` or its token end it. One
    that is enlisted with a database ends as the database says, in each of these ways (L4).

    Attributes:
        trace: what the transaction tells its trace; not for applications.
    """

    def __init__(
        self,
        cluster: ClientCluster,
        *,
        turn: int,
        timeout_ms: int,
        serializers: FieldSerializers | None = None,
        tracing: "Tracing | None" = None,
    ) -> None:
        self._cluster = cluster
        self._serializers = serializers
        # The function, and not the method, which would be a cycle for the garbage collector.
        self._write = write = Transaction._send if serializers is None else Transaction._serialize
        if tracing is not None:
            self._write = partial(tracing.send, write)
        self._machine = machine = ClientTransaction()
        self._records = TransactionRecords(cluster)
        self._acks = TransactionAcks(cluster.cluster_id, cluster.client_id)
        self.trace = UNTRACED if tracing is None else tracing.transaction()
        self._topics = TransactionTopics(cluster.topics, machine, turn)
        self._registration = TransactionRegistration(
            cluster, machine, timeout_ms, self._records, self._acks, trace=self.trace
        )
        # Kept here to save look-ups: `send` needs them for every record.
        # A plain tuple finds what its partition finds, and is made in a quarter of the time.
        self._writes = cast("Mapping[tuple[str, int], PartitionWrites]", machine.writes)
        self._append = self._records.append
        self._sends = AwaitedCalls("send")
        self._ack_calls = AwaitedCalls("acknowledge")
        self._secret = b""  # of the token, once somebody asks for its name or the token
        self._end = TransactionEnd(
            cluster,
            machine,
            timeout_ms=timeout_ms,
            topics=self._topics,
            records=self._records,
            acks=self._acks,
            registration=self._registration,
            calls=(self._sends, self._ack_calls),
        )

    @property
    def id(self) -> TxnId | None:
        """The transaction's identity, known once its first partition is registered."""
        return self._machine.id

    @property
    def state(self) -> str:
        """`open`, `prepared`, `committed`, `aborted`, or `unknown` while a commit has no answer."""
        return self._machine.state

    @property
    def delivered(self) -> dict[TopicPartition, int]:
        """Number of records known to be durable, by partition, whatever the outcome."""
        return {writes.data: writes.count for writes in self._writes.values()}

    async def __aenter__(self) -> Self:
        self._cluster.home.check()
        if self._end.entered:
            raise TransactionStateError(
                f"the transaction was entered before, and is {self.state}",
                hint="make another transaction: `async with client.transaction() as txn:`",
            )
        await self._end.enter(self)
        self.trace.enter()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._end.why = error_text(error)
            self.trace.failed(error)
        try:
            if self.state == "open":
                await (self.commit() if error is None else self._abort_quietly())
            elif self.state == "prepared":
                await self._end.leave_prepared(error)
        finally:
            if not self._machine.over and self.state != "prepared":
                self._end.ended(committed=False)  # a commit that was cancelled before it was asked
            self.trace.leave()

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> Coroutine[Any, Any, TopicPartition]:
        """Writes one record as part of the transaction; returns the partition it goes to.

        Await the call: `commit` refuses a transaction with a `send` that was not awaited. Returns
        before the record is durable; `commit` waits for that. Without `partition` the key decides
        as in Kafka's own producers; all of the transaction's records without a key go to one
        partition of the topic. Value and key are bytes or None, or what the client's serializers
        take.

        Raises:
            ArgumentError: value or key are not bytes, or the headers are no list of pairs.
            SerializerError: a serializer has failed; nothing was sent, the transaction goes on.
            TransactionStateError: the transaction has ended, or a header is named `txn`.
            OtherLoopError, ForkedError: the client was opened on another event loop, or before this
                process was forked.
            SystemTopicError: the topic is one of Stilltide's own; nothing was sent.
            CompactedTopicError: the topic compacts; nothing was sent (C18).
            TopicRecreatedError: a topic of this transaction was deleted and created again; the
                transaction can only be aborted (C13).
            FatalError: the topic or partition does not exist, or the record is too large.
        """
        self._sends.made()
        return self._write(self, topic, value, key, headers, partition)

    async def _serialize(
        self, topic: str, value: Any, key: Any, headers: Headers, partition: int | None
    ) -> TopicPartition:
        """Serializes value and key, which `_send` then writes, with the serializers' headers."""
        sends = self._sends
        sends.begun += 1
        try:
            assert self._serializers is not None, "chosen by the constructor"
            _check_takes_records(self._machine)
            check_place(topic, partition)
            check_record(topic, None, None, headers)
            extended = [(name, content) for name, content in headers]
            key, value = await self._serializers.serialized(topic, key, value, extended)
        finally:
            sends.ended += 1
        sends.made()  # `_send` counts itself; it begins before anything else can run
        return await self._send(topic, value, key, extended, partition)

    async def _send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        partition: int | None,
    ) -> TopicPartition:
        sends = self._sends
        sends.begun += 1
        try:
            if not self._machine.takes_records:
                _check_takes_records(self._machine)
            if headers or not (type(value) is bytes and (key is None or type(key) is bytes)):
                check_record(topic, value, key, headers)
            writes = None if partition is None else self._writes.get((topic, partition))
            if writes is None:
                data = await self._topics.partition(topic, key, partition)
                writes = self._writes.get(data)
            else:
                data = writes.data
            if writes is None:
                self._cluster.home.check()  # once for each partition: it costs as much as the rest
                if not self._end.entered:
                    await self._end.enter(self)
                # The transaction may have ended while the topic was looked up.
                self._machine.check_open()
                writes = self._registration.opened_ahead(data)
            if writes is None:
                await self._registration.hold(data, HeldRecord(value, key, [*headers]))  # D6
                return data
            while not self._append(writes, value, key, headers):
                await self._cluster.writer.room()
                self._machine.check_open()
            return data  # noqa: TRY300 - an `else` would be reached by one of three ways only
        except TypeError:
            check_place(topic, partition)  # such as a list for a topic
            raise
        finally:
            sends.ended += 1

    def acknowledge(
        self, subscription: Acknowledges, message: Record | MessageBatch
    ) -> Coroutine[Any, Any, None]:
        """Acknowledges a message, or a batch, when the transaction commits, and not when it aborts.

        Await the call, as `send`. Returns before the acknowledgement is stored; `commit` waits for
        that. A message of a transaction that aborted is delivered again.

        Raises:
            TransactionStateError: the transaction has ended.
            AcknowledgementError: the message was not delivered to the subscription, or is
                acknowledged already, possibly in another transaction, or the subscription reads
                another cluster. Nothing was changed; of a batch, the messages before are
                acknowledged.
        """
        call = self._acknowledge(subscription, message, cumulative=False)
        return self._ack_calls.counted(call)

    def acknowledge_cumulative(
        self, subscription: Acknowledges, message: Record
    ) -> Coroutine[Any, Any, None]:
        """Acknowledges a message and all before it in its partition; else as `acknowledge`."""
        call = self._acknowledge(subscription, message, cumulative=True)
        return self._ack_calls.counted(call)

    async def flush(self) -> None:
        """Waits until every record sent so far is durable.

        Raises:
            ConnectorError: a record was not delivered; the transaction can only be aborted.
            RefusedError, RequestTimeoutError: a partition could not be registered.
            TopicRecreatedError: as `send` raises.
        """
        await self._registration.finished()
        await self._records.flush()
        self._machine.check_delivered()
        self._machine.check_topics()

    async def commit(self, *, wait_visible: bool = False) -> None:
        """Makes every record of the transaction visible, or raises.

        Returns when the outcome is durable; with `wait_visible` when readers can know it (C5).

        Raises:
            TransactionStateError: the transaction has ended, or `enlist` has failed (L4).
            NotAwaitedError: a `send` or `acknowledge` was not awaited; the transaction is aborted.
            ConnectorError: a record was not delivered; the transaction is aborted (C6).
            RefusedError: the coordinator has aborted the transaction, for example at its time-out.
            DecidedOtherwiseError: it was prepared, and its database has not committed, or somebody
                else has aborted it (L3, L4).
            TopicRecreatedError: a topic was created again; the transaction is aborted (C13).
            OutcomeUnknownError: no answer in time; the transaction may have been committed. Or its
                database does not say whether it has committed, and resolvers ask it again (L4).
        """
        self._cluster.home.check()
        await self._end.decide(committed=True, wait_visible=wait_visible)

    async def token_id(self) -> str:
        """The name that the transaction has when it is prepared, which is no secret (L2).

        For a row that decides, which is inserted before `prepare` is called (L4). What was sent is
        on its way then, so that the row is inserted while records become durable. Afterwards the
        transaction commits only if it is prepared.

        Raises:
            TransactionStateError: the transaction has ended, is prepared, or is empty.
            RefusedError, RequestTimeoutError, TopicRecreatedError: as `flush`.
        """
        self._cluster.home.check()
        self._machine.check_open()
        await self._registration.finished()
        self._machine.check_topics()
        self._records.start_flush()
        if self.id is None:
            raise nothing_to_prepare()
        name = token_id(self._cluster.cluster_id, self.id, hash_of(self._token_secret()))
        self._end.named(name)
        return name

    async def prepare(self, *, decider: str | DecidingDatabase = "") -> str:
        """Makes the content final, and returns the token that decides how the transaction ends.

        Everything sent is durable then, no time-out ends the transaction any more, and readers wait
        at its records until somebody decides: `commit` or `abort` here, or
        `TransactionClient.resume` with the token, in any process. The token is a secret; store it
        with the data that it belongs to (L2).

        Args:
            decider: name of what decides when no program does; shown to operators. `enlist` of
                `stilltide.databases` gives the database, which then decides alone.

        Raises:
            TransactionStateError: the transaction has ended, is prepared, or is empty.
            NotAwaitedError: a `send` or `acknowledge` was not awaited; the transaction is aborted.
            ConnectorError: a record was not delivered; the transaction is aborted (C6).
            RefusedError: the transaction was aborted, or the workers do not know such requests.
            TopicRecreatedError: a topic was created again; the transaction is aborted (C13).
            OutcomeUnknownError: no answer in time. Without a decider the transaction will not be
                committed; with one, what it has decided counts if the transaction was prepared.
        """
        self._cluster.home.check()
        require((str, DecidingDatabase), decider=decider)
        secret = self._token_secret()
        text = decider if isinstance(decider, str) else str(decider.decider)
        topic_id = self._cluster.requests_id()
        try:
            await self._end.carry_out(self._machine.prepare(secret, text))
        except asyncio.CancelledError:
            if self.state == "unknown" and self.id is not None and not decider:
                abort = EndPrepared(self.id.sequence, False, secret, wait_visible=False)
                self._cluster.give_up(self.id.coordinator, abort)
            raise
        assert self.id is not None, "prepared"
        token = PreparedToken(self._cluster.cluster_id, self.id, secret, topic_id)
        self._end.prepared(token.id, decider if isinstance(decider, DecidingDatabase) else None)
        return encode_token(token)

    def topic_recreated(self, change: TopicRecreated) -> None:
        """A topic was created again; called by the client, not for applications."""
        if self._machine.topic_recreated(change, self._registration.topics_ahead):
            self._records.discard_held()

    async def abort(self) -> None:
        """Hides every record of the transaction for good.

        Raises:
            TransactionStateError: the transaction has ended.
            DecidedOtherwiseError: it was prepared, and its database, or somebody else, has
                committed it (L3, L4).
            OutcomeUnknownError: its database has neither committed nor rolled back (L4).
            RequestTimeoutError: no answer in time; the coordinator aborts the transaction at its
                time-out.
        """
        self._cluster.home.check()
        await self._end.decide(committed=False)

    def _token_secret(self) -> bytes:
        self._secret = self._secret or self._cluster.chance.token(SECRET_BYTES)
        return self._secret

    async def _abort_quietly(self) -> None:
        """Aborts while another error is on its way to the application."""
        try:
            await self.abort()
        except StilltideError as failure:
            log.warning("abort_failed", transaction=str(self.id), why=failure.primary)

    async def _acknowledge(
        self, subscription: Acknowledges, message: Record | MessageBatch, *, cumulative: bool
    ) -> None:
        self._cluster.home.check()
        _check_takes_records(self._machine)
        messages = messages_of(message)
        driver = acknowledging(subscription)
        if not self._end.entered:
            await self._end.enter(self)
            self._machine.check_open()
        for claimed in messages[-1:] if cumulative else messages:
            self._acks.claim(driver, claimed, cumulative=cumulative)
        if self._acks.unregistered:
            self._registration.take_from_stock(self._acks.unregistered[0])
        if self._acks.unregistered:
            await self._registration.start()


def _check_takes_records(machine: ClientTransaction) -> None:
    machine.check_open()
    machine.check_topics()
