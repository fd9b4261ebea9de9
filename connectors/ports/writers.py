"""Ports of writers, and a write of one record that waits for its report."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from stilltide.connectors.errors import ConnectorError, RetriableError
from stilltide.connectors.ports.readers import NewRecord
from stilltide.schemas.values import TopicPartition

Delivered = Callable[[ConnectorError | None, int], None]
"""Called once per append with (error, offset).

Without error the record is durable at `offset`; -1 means durable at an unknown offset (an
idempotent retry). With `RetriableError` the outcome is unknown: the record may yet be written (A5).
"""


NewHeaders = list[tuple[str, bytes]] | list[tuple[str, bytes | None]]
"""Headers of a record to be written; names may repeat."""


class LogWriter(Protocol):
    """Appends records; order per partition = order of calls."""

    def append(
        self,
        data: TopicPartition,
        value: bytes | None,
        delivered: Delivered,
        *,
        key: bytes | None = None,
        headers: NewHeaders | None = None,
    ) -> None:
        """Queues one record and returns at once; `delivered` is never called within it.

        A partition that does not exist, or a record too large for its topic, is reported as
        `FatalError`.

        Raises:
            RetriableError: the local queue is full: await `room()` and call again.
            FatalError: the record can never be written (too large), or the writer is closed.
        """
        ...

    async def room(self) -> None:
        """Returns when the local queue has room again, at once if it is not full."""
        ...

    def flush_soon(self) -> None:
        """Sends what is queued without lingering, and returns at once.

        On a busy machine what is queued may linger all the same. After this call, reports may come
        in another order than the appends.
        """
        ...

    async def flush(self, timeout_s: float) -> bool:
        """Waits for the outcome of every queued record; False if time is up before."""
        ...

    async def close(self, timeout_s: float = 5.0) -> None:
        """Flushes, then reports `RetriableError` for records left; no append afterwards."""
        ...


class TransactionalWriter(Protocol):
    """Writes sets of records, each completely or not at all, by native Kafka transactions.

    Of all writers with one transactional id only the last that called `fence` can write. After any
    error of `write`, `fence` is needed again.
    """

    async def fence(self) -> None:
        """Takes the transactional id from its present writer; needed before the first `write`.

        Once it returns, every set that was begun under this id is either committed or aborted.

        Raises:
            RetriableError: the broker is away; call again.
        """
        ...

    async def write(self, records: Sequence[NewRecord]) -> None:
        """Writes all records in one transaction, in order per partition, and waits for the commit.

        Raises:
            FencedError: another writer has taken the id; no record was written.
            FatalError: a record can never be written (too large, no such partition), `fence` was
                not called, or the writer is closed; no record was written.
            RetriableError: the records may have been written; `fence` decides it.
        """
        ...

    async def close(self) -> None:
        """Waits for a `write` under way, which ends with either outcome. Safe to call twice."""
        ...


async def append(
    writer: LogWriter,
    data: TopicPartition,
    value: bytes | None,
    *,
    key: bytes | None = None,
    headers: list[tuple[str, bytes]] | None = None,
) -> int:
    """The offset of the record, or -1: it was written at an offset that is not known.

    Waits for room while the writer's queue is full.

    Raises:
        RetriableError: the record may have been written. FatalError: it never will be.
    """
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def delivered(error: ConnectorError | None, offset: int) -> None:
        if done.done():
            return  # the caller was cancelled, by Ctrl-C for example
        if error is None:
            done.set_result(offset)
        else:
            done.set_exception(error)

    while True:
        try:
            writer.append(data, value, delivered, key=key, headers=headers)
        except RetriableError:
            await writer.room()
        else:
            return await done
