"""One coordinated transaction of an application: send, commit or abort.

*Source*: docs/protocols C1b, C2, C3, C5, C6, C13. `TransactionRecords` makes D6 impossible.

*Invariants*: each end is told, once, in whichever way it comes (`TransactionPlace`).
"""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from stilltide.connectors.ports.records import Record
from stilltide.pipeline.client.cluster import ClientCluster
from stilltide.pipeline.client.outcomes import committed_after_all, outcome_unknown
from stilltide.pipeline.client.topics import TransactionTopics
from stilltide.pipeline.client.transaction_acks import Acknowledges, TransactionAcks
from stilltide.pipeline.client.transaction_records import HeldRecord, TransactionRecords
from stilltide.pipeline.client.transaction_registration import (
    TransactionRegistration,
)
from stilltide.pipeline.client.usage.arguments import acknowledging, check_message
from stilltide.pipeline.client.usage.awaited import AwaitedCalls
from stilltide.pipeline.client.usage.place import TransactionPlace
from stilltide.pipeline.client.usage.records import check_place, check_record
from stilltide.pipeline.core.topic_table import TopicRecreated
from stilltide.pipeline.errors import (
    OutcomeUnknownError,
    RefusedError,
    TransactionStateError,
    error_text,
)
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.coordinator.transactions import Done, End, Written
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.headers import Headers
from stilltide.schemas.values import TopicPartition, TxnId

log = get_logger(__name__)


class Transaction:
    """One transaction; made by `TransactionClient.transaction`, used as a context manager.

    Leaving the block commits; leaving it by an exception aborts. Without a block, the first use
    opens the transaction, and `commit` or `abort` has to be called.
    """

    def __init__(self, cluster: ClientCluster, *, turn: int, timeout_ms: int) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._records = TransactionRecords(cluster)
        self._acks = TransactionAcks(cluster.cluster_id, cluster.client_id)
        self._topics = TransactionTopics(cluster.topics, turn)
        self._registration = TransactionRegistration(cluster, timeout_ms, self._records, self._acks)
        # Kept here to save look-ups: `send` needs them for every record.
        self._writes = self._records.writes
        self._append = self._records.append
        self._state = "open"
        self._place = TransactionPlace(cluster, self._records, self._acks)
        self._sends = AwaitedCalls("send")
        self._ack_calls = AwaitedCalls("acknowledge")
        self._committing = False

    @property
    def id(self) -> TxnId | None:
        """The transaction's identity, known once its first partition is registered."""
        return self._registration.id

    @property
    def state(self) -> str:
        """`open`, `committed`, `aborted`, or `unknown` while a commit has no answer."""
        return self._state

    @property
    def delivered(self) -> dict[TopicPartition, int]:
        """Number of records known to be durable, by partition, whatever the outcome."""
        return {data: writes.count for data, writes in self._writes.items()}

    async def __aenter__(self) -> Self:
        self._cluster.home.check()
        if self._place.entered:
            raise TransactionStateError(
                f"the transaction was entered before, and is {self._state}",
                hint="make another transaction: `async with client.transaction() as txn:`",
            )
        await self._place.enter(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._place.why = error_text(error)
        try:
            if self._state == "open":
                await (self.commit() if error is None else self._abort_quietly())
        finally:
            if self._state != "committed":  # a commit that was cancelled; others told it already
                self._place.ended(committed=False)

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> Coroutine[Any, Any, TopicPartition]:
        """Writes one record as part of the transaction; returns the partition it goes to.

        Await the call: `commit` refuses a transaction with a `send` that was not awaited. Returns
        before the record is durable; `commit` waits for that. Without `partition` the key decides
        as in Kafka's own producers; all of the transaction's records without a key go to one
        partition of the topic.

        Raises:
            ArgumentError: value or key are not bytes, or the headers are no list of pairs.
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
        return self._send(topic, value, key, headers, partition)

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
            # The calls repeat the comparisons, which cost less.
            if self._state != "open" or self._committing:
                self._must_be_open()
            if self._topics.failure is not None:
                self._topics.check()
            if headers or not (type(value) is bytes and (key is None or type(key) is bytes)):
                check_record(topic, value, key, headers)
            if partition is None or (data := TopicPartition(topic, partition)) not in self._writes:
                data = await self._topics.partition(topic, key, partition)
            writes = self._writes.get(data)
            if writes is None:
                self._cluster.home.check()  # once for each partition: it costs as much as the rest
                if not self._place.entered:
                    await self._place.enter(self)
                self._must_be_open()  # the transaction may have ended while the topic was looked up
                writes = self._registration.opened_ahead(data)
            if writes is None:
                await self._registration.hold(data, HeldRecord(value, key, [*headers]))
                return data
            while not self._append(writes, value, key, headers):
                await self._cluster.writer.room()
                self._must_be_open()
            return data  # noqa: TRY300 - an `else` would be reached by one of three ways only
        except TypeError:
            check_place(topic, partition)  # such as a list for a topic
            raise
        finally:
            sends.ended += 1

    def acknowledge(self, subscription: Acknowledges, message: Record) -> Coroutine[Any, Any, None]:
        """Acknowledges a message when the transaction commits, and not when it aborts.

        Await the call, as `send`. Returns before the acknowledgement is stored; `commit` waits for
        that. A message of a transaction that aborted is delivered again.

        Raises:
            TransactionStateError: the transaction has ended.
            AcknowledgementError: the message was not delivered to the subscription, or is
                acknowledged already, possibly in another transaction, or the subscription reads
                another cluster. Nothing was changed.
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
        self._topics.check()

    async def commit(self, *, wait_visible: bool = False) -> None:
        """Makes every record of the transaction visible, or raises.

        Returns when the outcome is durable; with `wait_visible` when readers can know it (C5).

        Raises:
            TransactionStateError: the transaction has ended.
            NotAwaitedError: a `send` or `acknowledge` was not awaited; the transaction is aborted.
            ConnectorError: a record was not delivered; the transaction is aborted (C6).
            RefusedError: the coordinator has aborted the transaction, for example at its time-out.
            TopicRecreatedError: a topic was created again; the transaction is aborted (C13).
            OutcomeUnknownError: no answer in time; the transaction may have been committed.
        """
        self._cluster.home.check()
        self._must_be_open()
        self._committing = True
        try:
            self._sends.check()
            self._ack_calls.check()
            await self.flush()
            await self._acks.gathered()
            written = await self._records.counted()
            self._topics.check()
        except StilltideError as error:
            await self._topics.look_after(error)
            await self._abort_quietly()
            if (recreated := self._topics.failure) is not None and recreated is not error:
                raise recreated from error
            raise
        finally:
            self._committing = False
        self._state = "unknown"
        self._records.close()
        txn = self._registration.id
        if txn is not None:
            try:
                await self._end_committed(txn, written, wait_visible=wait_visible)
            except BaseException:
                self._place.ended(committed=False)
                raise
        self._state = "committed"
        self._place.ended(committed=True)

    def topic_recreated(self, change: TopicRecreated) -> None:
        """A topic was created again; called by the client, not for applications."""
        if self._topics.recreated(change, self._registration.topics_ahead):
            self._records.discard_held()

    async def abort(self) -> None:
        """Hides every record of the transaction for good.

        Raises:
            TransactionStateError: the transaction has ended.
            RequestTimeoutError: no answer in time; the coordinator aborts the transaction at its
                time-out.
        """
        self._cluster.home.check()
        self._committing = False  # a commit that fails aborts
        self._must_be_open()
        self._state = "aborted"
        self._records.close()
        self._records.discard_held()
        try:
            await self._registration.stopped()
            txn = self._registration.id
            if txn is not None:
                # With acknowledgements, the abort waits until their messages may come again.
                await self._ask_end(txn, None, wait_visible=bool(self._acks))
        finally:
            self._place.ended(committed=False)

    async def _end_committed(
        self, txn: TxnId, written: tuple[Written, ...], *, wait_visible: bool
    ) -> None:
        """Asks for the commit; raises as `commit`."""
        try:
            await self._ask_end(txn, written, wait_visible=wait_visible)
        except RefusedError as error:
            self._state = "aborted"
            await self._topics.look_after(error)
            if self._topics.failure is not None:
                await self._end_refused(txn)
                raise self._topics.failure from error
            raise
        except OutcomeUnknownError:
            raise
        except StilltideError as error:
            raise outcome_unknown(txn, str(error)) from error

    async def _ask_end(
        self, txn: TxnId, written: tuple[Written, ...] | None, *, wait_visible: bool
    ) -> None:
        """Asks for the end and for a transaction opened ahead (C9); `written` None: an abort.

        Raises:
            RefusedError: the transaction is not open, or has aborted.
            OutcomeUnknownError: whether it has committed is forgotten.
            RequestTimeoutError: no answer in time.
        """
        if self._topics.failure is None:
            self._cluster.pool.ending(self._timeout_ms, self._writes, self._acks.subscriptions)
        end = End(
            txn.sequence,
            committed=written is not None,
            written=written or (),
            wait_visible=wait_visible,
            acknowledged_in=self._acks.ended_in,
        )
        now_s = asyncio.get_running_loop().time
        until_s = now_s() + self._cluster.options.request_timeout_s
        answer = await self._cluster.ask(txn.coordinator, end)
        if not end.committed or isinstance(answer, Done):
            return
        # The coordinator has forgotten whether it took the request (C12).
        if not await committed_after_all(self._cluster, txn, end, until_s - now_s()):
            raise RefusedError(f"transaction {txn} was aborted")

    async def _abort_quietly(self) -> None:
        """Aborts while another error is on its way to the application."""
        try:
            await self.abort()
        except StilltideError as failure:
            log.warning("abort_failed", transaction=str(self._registration.id), why=failure.primary)

    def _must_be_open(self) -> None:
        if self._state != "open":
            raise TransactionStateError(f"the transaction has ended: {self._state}")
        if self._committing:  # what is sent now would not be counted (C6)
            raise TransactionStateError("the transaction is being committed")

    async def _end_refused(self, txn: TxnId) -> None:
        """Aborts a transaction whose commit was refused and left the transaction open."""
        try:
            await self._ask_end(txn, None, wait_visible=False)
        except StilltideError as failure:
            log.warning("abort_failed", transaction=str(txn), why=failure.primary)

    async def _acknowledge(
        self, subscription: Acknowledges, message: Record, *, cumulative: bool
    ) -> None:
        self._cluster.home.check()
        self._must_be_open()
        self._topics.check()
        check_message(message)
        driver = acknowledging(subscription)
        if not self._place.entered:
            await self._place.enter(self)
            self._must_be_open()
        self._acks.claim(driver, message, cumulative=cumulative)
        if self._acks.unregistered:
            self._registration.take_from_stock(self._acks.unregistered[0])
        if self._acks.unregistered:
            await self._registration.start()
