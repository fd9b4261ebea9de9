"""Reads end offsets for many transactions, with one call at a time.

*Source*: docs/protocols C3: an end offset counts only if it was read after the question, so a
question that arrives during a call is answered by the next call.
"""

import asyncio
from collections.abc import Callable, Sequence

from stilltide.connectors.errors import ConnectorError, NotAuthorizedError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.pipeline.drivers.service.hindrances import Hindrances
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.values import EndOffset, TopicPartition

log = get_logger(__name__)

WORK = "end offsets"
"""Kind of the work in `Hindrances`."""

DONE_PER_TURN = 32
"""Questions that are answered in one turn of the event loop, so that requests have theirs (C16)."""

EndsRead = Callable[[dict[TopicPartition, EndOffset] | None], None]
"""Called once: the end offsets (a missing partition is absent), or None when the call failed."""


class EndOffsets:
    """Collects questions for end offsets; `run` makes the calls."""

    def __init__(self, admin: LogAdmin, hindrances: Hindrances | None = None) -> None:
        self._admin = admin
        self._hindrances = hindrances or Hindrances()
        self._asked: list[tuple[Sequence[TopicPartition], EndsRead]] = []
        self._wake = asyncio.Event()

    def read(self, partitions: Sequence[TopicPartition], done: EndsRead) -> None:
        """Asks for the partitions' end offsets, as of now or later."""
        self._asked.append((partitions, done))
        self._wake.set()

    async def run(self) -> None:
        """Answers questions until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            asked, self._asked = self._asked, []
            wanted = sorted({data for partitions, _ in asked for data in partitions})
            ends, failed = await self._read(wanted)
            for number, (partitions, done) in enumerate(asked, 1):
                done(None if ends is None or failed.intersection(partitions) else ends)
                if not number % DONE_PER_TURN:
                    await asyncio.sleep(0)  # each answer makes the markers of a transaction

    async def _read(
        self, wanted: Sequence[TopicPartition]
    ) -> tuple[dict[TopicPartition, EndOffset] | None, set[TopicPartition]]:
        """End offsets, None if the call failed; and partitions of topics that are refused (C17)."""
        try:
            ends = await self._admin.end_offsets(wanted)
        except NotAuthorizedError as error:
            self._hindrances.failed(WORK, error)
            return await self._of_each(wanted)
        except ConnectorError as error:
            log.warning("end_offsets_failed", partitions=len(wanted), why=str(error))
            return None, set()
        self._hindrances.done(WORK)
        return ends, set()

    async def _of_each(
        self, wanted: Sequence[TopicPartition]
    ) -> tuple[dict[TopicPartition, EndOffset], set[TopicPartition]]:
        """Asks for each topic alone: one that is refused must not keep others from their ends."""
        ends: dict[TopicPartition, EndOffset] = {}
        failed: set[TopicPartition] = set()
        for topic in sorted({data.topic for data in wanted}):
            partitions = [data for data in wanted if data.topic == topic]
            try:
                ends |= await self._admin.end_offsets(partitions)
            except ConnectorError:
                failed.update(partitions)
        return ends, failed
