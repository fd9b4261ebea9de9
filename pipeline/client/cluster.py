"""Producers, coordinators and topic metadata that the transactions of one client share.

*Source*: docs/protocols C2, C10, C13.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from stilltide.connectors.chance import Chance
from stilltide.connectors.errors import FatalError
from stilltide.connectors.ports.admin import LogAdmin, TopicDescription
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.writers import LogWriter
from stilltide.pipeline.client.bounds import TransactionOptions
from stilltide.pipeline.client.gathering import Gathering
from stilltide.pipeline.client.topics import ClientTopics
from stilltide.pipeline.client.usage import Home
from stilltide.pipeline.core.coordinator.client_transaction import Outcome, outcome_of
from stilltide.pipeline.core.topic_table import TopicChange, TopicRecreated
from stilltide.pipeline.drivers.coordinator.operator import refused
from stilltide.pipeline.drivers.coordinator.pool import PoolDriver
from stilltide.pipeline.drivers.service.ask.requests import (
    COORDINATOR_SERVICE,
    CoordinatorRequests,
    Requests,
)
from stilltide.pipeline.drivers.shared.named_partitions import require_topics
from stilltide.pipeline.drivers.shared.tasks import cancelled
from stilltide.pipeline.errors import OutcomeUnknownError, RefusedError
from stilltide.schemas import topics
from stilltide.schemas.coordinator.prepared_tokens import PreparedToken
from stilltide.schemas.coordinator.transactions import (
    Answer,
    Describe,
    Description,
    EndPrepared,
    RequestBody,
)
from stilltide.schemas.service.envelopes import Done, Refused
from stilltide.schemas.values import EndOffset, TopicPartition, TxnId


class Writers(NamedTuple):
    """The two producers of one client: one for records, one for requests."""

    records: LogWriter
    requests: LogWriter


class OpenTransaction(Protocol):
    """A transaction that has not ended."""

    def topic_recreated(self, change: TopicRecreated) -> None:
        """A topic was deleted and created again; fails the transaction if it wrote to the topic."""
        ...


class ClientCluster:
    """One client's connections to one cluster; made by `connect`.

    Attributes:
        home: the event loop and the process of the client.
        writer: appends the records of transactions.
        gathering: ends the writer's linger in time.
        topics: the topics that the client writes to.
        pool: transactions opened ahead.
        cluster_id: Kafka's id of the cluster.
        chance: draws the secrets of tokens (L2).
        options: time-outs and limits of the client.
        closed: whether nothing is sent any more.
    """

    def __init__(
        self,
        admin: LogAdmin,
        writers: Writers,
        requests: CoordinatorRequests,
        options: TransactionOptions,
        *,
        make_topics: Callable[[Callable[[TopicChange], None]], ClientTopics],
        cluster_id: str,
        chance: Chance,
    ) -> None:
        self.home = Home("client")
        self.cluster_id = cluster_id
        self.chance = chance
        self.closed = False
        self.options = options
        self._writers = writers
        self.writer = writers.records
        self.gathering = Gathering(self.writer.flush_soon)
        self._slots = asyncio.Semaphore(options.open_transactions_max)
        self._open: set[OpenTransaction] = set()
        self._admin = admin
        self._requests = requests
        self.topics = make_topics(self._topic_changed)
        self.pool = PoolDriver(
            requests, self.topics.registration, allow_compacted=options.allow_compacted
        )
        self._looking = asyncio.create_task(self.topics.run(), name="topics")

    @property
    def client_id(self) -> bytes:
        """The secret by which this client's transactions are its own (C11, C15)."""
        return self._requests.client_id

    @property
    def client_name(self) -> str:
        """The client's name in operators' lists."""
        return self._requests.name

    @property
    def coordinator_count(self) -> int:
        """How many coordinators the client knows of (C14)."""
        requests = self.topics.get(topics.TXN_REQUESTS)
        assert requests is not None
        return requests.partition_count

    @property
    def coordinator(self) -> int:
        """The number of the coordinator that opens this client's next transactions."""
        return self.pool.home

    async def enter(self, txn: OpenTransaction) -> None:
        """Counts an open transaction; waits while there are `open_transactions_max`."""
        await self._slots.acquire()
        self._open.add(txn)

    def leave(self, txn: OpenTransaction) -> None:
        """The transaction is over."""
        self._open.discard(txn)
        self._slots.release()

    async def end_offset(self, data: TopicPartition) -> EndOffset:
        """The partition's current end offset, as the broker answers now.

        Raises:
            FatalError: the partition does not exist any more.
        """
        ends = await self._admin.end_offsets([data])
        if data not in ends:
            raise FatalError("the partition has gone", data=data)
        return ends[data]

    async def ask(self, coordinator: int, body: RequestBody) -> Answer:
        """Sends a request to a coordinator, and returns the answer.

        Raises:
            CompactedTopicError: a topic of the registration compacts (C18).
            RefusedError: the request is illegal and changed nothing.
            RequestTimeoutError: no answer in time; the request may still be carried out.
        """
        answer = await self._requests.ask(coordinator, body)
        if isinstance(answer, Refused):
            raise refused(coordinator, body, answer)
        return answer

    async def end_prepared(self, coordinator: int, end: EndPrepared) -> None:
        """Asks for the end of a prepared transaction; returns once that decision stands (L3).

        Raises:
            DecidedOtherwiseError: the opposite was decided.
            RefusedError: the secret is not that of the transaction, or the outcome is forgotten.
            RequestTimeoutError, OutcomeUnknownError: no answer; it may be asked for again.
        """
        for _ in range(2):  # the answer may be forgotten (C1b), and the same again does no harm
            if isinstance(await self.ask(coordinator, end), Done):
                return
        raise OutcomeUnknownError(
            "the coordinator does not remember the decision", hint="ask for it once more"
        )

    def give_up(self, coordinator: int, end: EndPrepared) -> None:
        """Asks for the abort of what may be prepared, and whose token nobody has (L1)."""
        self._requests.tell(coordinator, end, _ignored)

    def requests_id(self) -> bytes:
        """Kafka's id of the topic of requests, for the token of a transaction (L2).

        Raises:
            RefusedError: the brokers name no ids of topics, so that a token could end another
                transaction, after the topics of Stilltide were made again.
        """
        requests = self.topics.get(topics.TXN_REQUESTS)
        assert requests is not None
        if not any(requests.topic_id):
            raise RefusedError(
                "the brokers name no ids of topics, so a token would not be safe",
                hint="upgrade the brokers; transactions that are not prepared need no ids",
            )
        return requests.topic_id

    async def check_token(self, token: PreparedToken) -> None:
        """Passes if the token is of the topics that the cluster has now (L2).

        Raises:
            PreparedTokenError: the token is of another cluster, or of topics of before.
            ConnectorError: the cluster is away, or the topics do not exist.
        """
        described = await self._admin.describe_topics([topics.TXN_REQUESTS])
        require_topics([topics.TXN_REQUESTS], described)
        token.check(self.cluster_id, described[topics.TXN_REQUESTS].topic_id)

    async def outcome(self, txn: TxnId) -> Outcome:
        """Asks the coordinator how a transaction ended (C12); raises as `ask`."""
        if not 0 <= txn.coordinator < self.coordinator_count:
            raise RefusedError(f"there is no coordinator {txn.coordinator}")
        answer = await self.ask(txn.coordinator, Describe(txn.sequence))
        assert isinstance(answer, Description)
        return outcome_of(answer)

    def _topic_changed(self, change: TopicChange) -> None:
        if change.topic == topics.TXN_REQUESTS:
            requests = self.topics.get(change.topic)
            assert requests is not None
            self._requests.grow(requests.partition_count)
            self.pool.move_home()
        elif isinstance(change, TopicRecreated):
            self.pool.renew()
            for txn in list(self._open):
                txn.topic_recreated(change)

    async def close(self) -> None:
        """Closes the connections, and gives up the transactions that were opened ahead."""
        self.closed = True
        await cancelled(self._looking)
        self.pool.close()
        await _close(self._requests, self._writers, self._admin)


def _ignored(_answer: object) -> None:
    """An operator is told of what stays prepared (L7)."""


async def _close(requests: CoordinatorRequests, writers: Writers, admin: LogAdmin) -> None:
    await requests.close()
    await asyncio.gather(*(writer.close() for writer in writers))
    await admin.close()


async def _look(admin: LogAdmin) -> tuple[Mapping[str, TopicDescription], str]:
    """The system topics that a client needs, and the cluster's id; raises as `connect`."""
    needed = (topics.TXN_REQUESTS, topics.TXN_RESPONSES)
    described = await admin.describe_topics(needed)
    require_topics(needed, described)
    return described, await admin.cluster_id()


async def connect(connector: Connector, *, name: str, options: TransactionOptions) -> ClientCluster:
    """Connects a client; the arguments are those of `TransactionClient`.

    Raises:
        FatalError: the system topics do not exist.
        RetriableError: the cluster cannot be reached; the error names its address.
    """
    admin = connector.admin()
    try:
        described, cluster_id = await _look(admin)
    except BaseException:
        await admin.close()
        raise
    writers = Writers(
        records=connector.writer(name, linger_ms=options.linger_ms),
        # No linger: a caller waits for each request, and requests are batched before they get here.
        requests=connector.writer(f"{name}-requests"),
    )
    requests = Requests(
        COORDINATOR_SERVICE,
        connector,
        writers.requests,
        name=name,
        request_timeout_s=options.request_timeout_s,
        resend_s=options.resend_s,
        direct_lines=options.direct_line,
    )
    try:
        await requests.open(
            partition_count=described[topics.TXN_REQUESTS].partition_count,
            response_partition_count=described[topics.TXN_RESPONSES].partition_count,
        )
    except BaseException:
        await _close(requests, writers, admin)
        raise
    make_topics = partial(
        ClientTopics,
        admin,
        options.metadata_max_age_s,
        described[topics.TXN_REQUESTS],
        allow_compacted=options.allow_compacted,
    )
    made = partial(ClientCluster, make_topics=make_topics, cluster_id=cluster_id)
    return made(admin, writers, requests, options, chance=connector.chance)
