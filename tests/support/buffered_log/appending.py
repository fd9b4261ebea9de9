"""Appends to an owned log one record at a time."""

import asyncio

from stilltide.connectors.errors import ConnectorError
from stilltide.pipeline.drivers.buffered_log.owned_log import OwnedLog
from stilltide.schemas.values import BatchPosition


async def append_and_wait(log: OwnedLog, record: bytes) -> BatchPosition:
    """Appends one record and waits until the owner has read it back.

    Raises:
        ConnectorError: the record is not in the log, or that is unknown.
    """
    future: asyncio.Future[BatchPosition] = asyncio.get_running_loop().create_future()

    def appended(result: BatchPosition | ConnectorError) -> None:
        if future.done():
            return
        if isinstance(result, ConnectorError):
            future.set_exception(result)
        else:
            future.set_result(result)

    log.append(record, appended)
    return await future
