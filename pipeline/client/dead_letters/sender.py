"""Moves the messages of a subscription that failed too often to their dead-letter topics.

*Source*: docs/protocols C18, G2.

*Invariants*:
- A message is acknowledged in the transaction that holds its dead letter, so there is exactly one.
- A dead letter that cannot be sent fails like the message did: it comes again after its back-off.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from stilltide.connectors.errors import ConnectorError, FatalError, NotAuthorizedError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector, closing
from stilltide.connectors.ports.readers import Fetching, LogReader, Record, TimedRecord
from stilltide.pipeline.client.dead_letters.options import DeadLetterNames
from stilltide.pipeline.client.transaction_acks import Acknowledges
from stilltide.pipeline.client.transaction_client import TransactionClient
from stilltide.pipeline.core.pending_ack.redeliveries import DeadLetter
from stilltide.pipeline.drivers.pending_ack.assigned_partition import AssignedPartition
from stilltide.pipeline.drivers.shared.tasks import Tasks
from stilltide.pipeline.errors import AcknowledgementError, ClientFailedError, compacted_topic
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.pending_ack.dead_letters import (
    DeadLetterHeaders,
    encode,
    of_application,
)
from stilltide.schemas.topics import compacts

CONCURRENCY = 16
"""Dead letters that are sent at the same time, each in its own transaction; others wait."""

TRANSACTION_TIMEOUT_S = 15.0
"""How long the message of a dead letter is held back after this process was killed."""

TIMESTAMP_S = 5.0
"""Longest time to look a timestamp up; a dead letter without one is sent all the same."""

_log = get_logger(__name__)


class DeadLetterSender:
    """Sends dead letters, each in a transaction; made by `sending_dead_letters`.

    What waits here is delivered and not acknowledged, so the subscription's limit
    `unacknowledged_records_max` bounds it.
    """

    def __init__(
        self,
        subscription: Acknowledges,
        client: TransactionClient,
        timestamps: LogReader,
        names: DeadLetterNames,
    ) -> None:
        self._subscription = subscription
        self._client = client
        self._timestamps = timestamps
        self._looking = asyncio.Lock()
        self._names = names
        self._letters: asyncio.Queue[tuple[AssignedPartition, DeadLetter[Record]]] = asyncio.Queue()

    def send(self, partition: AssignedPartition, letter: DeadLetter[Record]) -> None:
        """Queues a dead letter."""
        self._letters.put_nowait((partition, letter))

    async def run(self) -> None:
        """Sends until cancelled.

        Raises:
            ClientFailedError: the client of the transactions has failed.
        """
        while True:
            partition, letter = await self._letters.get()
            if partition.revoked:  # another member, or another assignment, has the message
                continue
            try:
                await self._move(letter)
            except ClientFailedError:
                raise
            except AcknowledgementError as error:
                _log.info("the dead letter was not needed", data=str(error.place), why=str(error))
            except StilltideError as error:
                record = letter.payload
                _log.warning(
                    "dead_letter_not_sent",
                    topic=record.topic,
                    partition=record.partition,
                    offset=record.offset,
                    to=self._names.of(record.topic),
                    error=str(error),
                )
            else:
                partition.counts.dead_lettered += 1

    async def _move(self, letter: DeadLetter[Record]) -> None:
        record = letter.payload
        async with self._client.transaction() as txn:
            await txn.acknowledge(self._subscription, record)
            headers = DeadLetterHeaders(
                record.data,
                record.offset,
                await self._timestamp_ms(record),
                self._names.group,
                letter.deliveries,
                letter.error,
            )
            await txn.send(
                self._names.of(record.topic),
                record.value,
                key=record.key,
                headers=[*of_application(record.headers), *encode(headers)],
            )

    async def _timestamp_ms(self, record: Record) -> int | None:
        """Reads the record once more, since subscriptions leave timestamps out to save time."""
        async with self._looking:
            try:
                async with asyncio.timeout(TIMESTAMP_S):
                    await self._timestamps.assign({record.data: record.offset})
                    for item in await self._timestamps.read():
                        if isinstance(item, TimedRecord) and item.offset == record.offset:
                            return item.timestamp_ms
            except (ConnectorError, TimeoutError) as error:
                _log.info("timestamp_not_found", data=str(record.data), error=str(error))
        return None


@asynccontextmanager
async def sending_dead_letters(
    connector: Connector,
    subscription: Acknowledges,
    names: DeadLetterNames,
    *,
    client_id: str,
    failed: Callable[[Exception], None],
) -> AsyncGenerator[DeadLetterSender]:
    """Sends dead letters during the block.

    Args:
        connector: the cluster.
        subscription: the subscription whose messages are moved.
        names: where dead letters go.
        client_id: beginning of the clients' names at the brokers.
        failed: called with an error after which no dead letter can be sent.

    Raises:
        FatalError: a dead-letter topic, or a system topic, does not exist.
        CompactedTopicError: a dead-letter topic compacts (C18).
        RetriableError: the cluster cannot be reached.
    """
    await _require_topics(connector, names)
    name = f"{client_id}-dead-letters"
    tasks = Tasks(failed)
    async with (
        closing(connector.reader(name, timestamps=True, fetching=Fetching.SCANNING)) as timestamps,
        TransactionClient(
            connector=connector, name=name, transaction_timeout_s=TRANSACTION_TIMEOUT_S
        ) as client,
    ):
        sender = DeadLetterSender(subscription, client, timestamps, names)
        for _ in range(CONCURRENCY):
            tasks.start(sender.run())
        try:
            yield sender
        finally:
            await tasks.close()


async def _require_topics(connector: Connector, names: DeadLetterNames) -> None:
    async with closing(connector.admin()) as admin:
        described = await admin.describe_topics(sorted({names.of(topic) for topic in names.topics}))
        configs = await _policies(admin, sorted(described))
    for topic in names.topics:
        if (missing := names.of(topic)) not in described:
            raise FatalError(
                "the dead-letter topic does not exist",
                detail=f"messages of {topic} that fail too often would go there",
                hint="create the topic, or name another one as `dead_letter_topic`",
                topic=missing,
            )
        if compacts(configs.get(missing, {})):
            raise compacted_topic(missing)


async def _policies(
    admin: LogAdmin, names: Sequence[str]
) -> Mapping[str, Mapping[str, str | None]]:
    """The configs of topics, as far as this client may see them; the coordinator looks, too."""
    try:
        return await admin.topic_configs(names)
    except NotAuthorizedError as error:
        _log.debug("policies_not_seen", why=error.primary)
        return {}
