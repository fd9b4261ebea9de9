"""Reads end offsets for many transactions, with one call at a time, and proves those of commits.

*Source*: docs/protocols C3, C16: an end offset counts only if it was read after the question, so a
question that arrives during a call is answered by the next call.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from stilltide.connectors.errors import ConnectorError, NotAuthorizedError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.pipeline.drivers.service.hindrances import Hindrances
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.coordinator.transactions import Written
from stilltide.schemas.values import EndOffset, TopicPartition

log = get_logger(__name__)

WORK = "end offsets"
"""Kind of the work in `Hindrances`."""

DONE_PER_TURN = 32
"""Questions that are answered in one turn of the event loop, so that requests have theirs (C16)."""

EndsRead = Callable[[dict[TopicPartition, EndOffset] | None], None]
"""Called once: the end offsets (a missing partition is absent), or None when the call failed."""

BEYOND_MAX = 100_000
"""How far the end of a commit may lie beyond an end offset that was read: commits do not wait for a
read of their own, and an end that is not true keeps few markers from being trimmed, for a time."""

RENEWED_BEYOND = BEYOND_MAX // 2
"""From here on, the end offset is read again in the background."""

KNOWN_MAX = 100_000
"""Partitions whose end offsets are remembered; beyond, all are forgotten and read again."""

Proved = Callable[[str | None], None]
"""Called once with why ends cannot be true ("": they can), or None when the call failed."""


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


class KnownEnds:
    """The end offsets that were read for the commits of a coordinator (C16).

    Args:
        ends: reads end offsets.
    """

    def __init__(self, ends: EndOffsets) -> None:
        self._ends = ends
        self._known: dict[TopicPartition, int] = {}
        self._reading: set[TopicPartition] = set()

    def unproved(self, written: Iterable[Written]) -> bool:
        """Whether an end lies far beyond what is known; renews in time what is known."""
        known_of, unproved = self._known.get, False
        for data, _, end_offset, _ in written:
            if end_offset - known_of(data, 0) > RENEWED_BEYOND:
                if end_offset - known_of(data, 0) > BEYOND_MAX:
                    unproved = True
                elif data not in self._reading:
                    self._read([data], _renewed)
        return unproved

    def prove(self, written: Sequence[Written], proved: Proved) -> None:
        """Reads the end offsets, and calls `proved` once; a partition that has gone proves all."""

        def read(ends: Mapping[TopicPartition, int] | None) -> None:
            if ends is None:
                proved(None)
                return
            for data, _, end_offset, _ in written:
                if end_offset > ends.get(data, end_offset):
                    proved(f"{data} ends at {ends[data]}, and the commit's records at {end_offset}")
                    return
            proved("")

        self._read([one.data for one in written], read)

    def _read(
        self,
        partitions: Sequence[TopicPartition],
        told: Callable[[Mapping[TopicPartition, int] | None], None],
    ) -> None:
        self._reading.update(partitions)

        def read(ends: dict[TopicPartition, EndOffset] | None) -> None:
            self._reading.difference_update(partitions)
            if ends is not None:
                if len(self._known) + len(partitions) > KNOWN_MAX:
                    self._known.clear()
                self._known |= {data: ends[data] for data in partitions if data in ends}
            told(ends)

        self._ends.read(partitions, read)


def _renewed(_ends: Mapping[TopicPartition, int] | None) -> None:
    """Nobody waits: without an answer, the next commits are proved."""
