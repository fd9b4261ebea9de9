"""Writes one record, and waits for its report."""

import asyncio

from stilltide.connectors.errors import ConnectorError, RetriableError
from stilltide.connectors.ports.writers import LogWriter
from stilltide.schemas.values import TopicPartition


async def append(
    writer: LogWriter,
    data: TopicPartition,
    value: bytes | None,
    *,
    key: bytes | None = None,
    headers: list[tuple[str, bytes]] | None = None,
) -> int:
    """The offset of the record.

    Raises:
        RetriableError: the record may have been written. FatalError: it never will be.
    """
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def delivered(error: ConnectorError | None, offset: int) -> None:
        if done.done():
            return  # the caller was cancelled, by Ctrl-C for example
        if error is None and offset < 0:
            error = RetriableError("the record was written, at an offset that is not known")
        if error is None:
            done.set_result(offset)
        else:
            done.set_exception(error)

    writer.append(data, value, delivered, key=key, headers=headers)
    return await done
