"""Writes the bases of one ownership of a log, and trims the log in front of them.

*Source*: docs/protocols C8. A large state is encoded a slice at a time, so that no answer waits for
the encoding of a whole base.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.pipeline.drivers.buffered_log.owned_log import OwnedLog
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.log_frames import Base, pieces
from stilltide.schemas.values import BatchPosition, EndOffset, Offset

log = get_logger(__name__)

SLICE_S = 0.002
"""Encoding yields to the event loop's other tasks after this time."""


class LogBases:
    """Bases and trims of one ownership; at most one of each is under way.

    Args:
        owned: the log.
        admin: deletes records; shared with other owners.
        encode: makes the bytes of a base's record.
        lost: called when a piece of a base will never be effective.
        trimmed: called with an offset, and whether the log begins at that offset now.
    """

    def __init__(
        self,
        owned: OwnedLog,
        admin: LogAdmin,
        *,
        encode: Callable[[Base], bytes],
        lost: Callable[[EndOffset], None],
        trimmed: Callable[[Offset, bool], None],
    ) -> None:
        self._owned = owned
        self._admin = admin
        self._encode = encode
        self._lost = lost
        self._trimmed = trimmed
        self._tasks: set[asyncio.Task[None]] = set()

    def write(self, as_of: EndOffset, parts: Iterable[bytes]) -> None:
        """Appends a base whose state is the joined `parts`, encoded in slices of `SLICE_S`."""
        self._start(self._write(as_of, parts))

    def trim(self, offset: Offset) -> None:
        """Deletes the records before an effective entry at `offset`."""
        self._start(self._trim(offset))

    def close(self) -> None:
        """Cancels a base and a trim under way; the broker may still trim, which does no harm."""
        for task in self._tasks:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, as_of: EndOffset, parts: Iterable[bytes]) -> None:
        now = asyncio.get_running_loop().time
        state, until = bytearray(), now() + SLICE_S
        for part in parts:
            state += part
            if now() >= until:
                await asyncio.sleep(0)
                until = now() + SLICE_S

        def appended(result: BatchPosition | ConnectorError) -> None:
            if isinstance(result, ConnectorError):
                self._lost(as_of)

        try:
            for piece in pieces(as_of, bytes(state)):
                self._owned.append(self._encode(piece), appended)
        except ConnectorError:
            return  # the ownership has ended meanwhile

    async def _trim(self, offset: Offset) -> None:
        partition = self._owned.partition
        try:
            await self._admin.delete_records({partition: offset})
        except ConnectorError as error:
            log.warning("log_not_trimmed", log=str(partition), before=offset, why=str(error))
            self._trimmed(offset, False)
        else:
            self._trimmed(offset, True)
