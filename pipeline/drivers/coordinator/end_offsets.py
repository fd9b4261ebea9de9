"""Reads end offsets for many askers with one call at a time.

*Source*: protocols.md C3: an end offset counts only when read after the question was asked, so a
question that arrives while a call is under way is answered by the next call.
"""

import asyncio
from collections.abc import Callable, Sequence

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.values import EndOffset, TopicPartition

log = get_logger(__name__)

EndsRead = Callable[[dict[TopicPartition, EndOffset] | None], None]
"""Called once: the end offsets (a missing partition is absent), or None when the call failed."""


class EndOffsets:
    """End offsets on request; `run` makes the calls."""

    def __init__(self, admin: LogAdmin) -> None:
        self._admin = admin
        self._asked: list[tuple[Sequence[TopicPartition], EndsRead]] = []
        self._wake = asyncio.Event()

    def read(self, partitions: Sequence[TopicPartition], done: EndsRead) -> None:
        """Asks for the end offsets these partitions have from now on."""
        self._asked.append((partitions, done))
        self._wake.set()

    async def run(self) -> None:
        """Serves until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            asked, self._asked = self._asked, []
            wanted = sorted({data for partitions, _ in asked for data in partitions})
            ends: dict[TopicPartition, EndOffset] | None
            try:
                ends = await self._admin.end_offsets(wanted)
            except ConnectorError as error:
                log.warning("end_offsets_failed", partitions=len(wanted), why=str(error))
                ends = None
            for _, done in asked:
                done(ends)
