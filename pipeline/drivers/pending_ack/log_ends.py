"""Ends of data partitions, beyond which nothing can be acknowledged, for one pending-ack store.

*Source*: docs/protocols G4.

*Invariants*: one question to the brokers at a time, for all partitions asked about meanwhile. A
known end may be too low, never too high, as long as the topic is the same.
"""

import asyncio
from collections.abc import Callable

from stilltide.connectors.errors import ConnectorError, RetriableError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.values import EndOffset, TopicPartition

log = get_logger(__name__)

KNOWN_MAX = 10_000
"""Partitions of which an end is kept; at the limit all are forgotten."""

Answered = Callable[[EndOffset | None], None]
"""Called with the end of the partition's log; None: it is not known."""


class LogEnds:
    """The ends of logs, as of the last question.

    Args:
        admin: admin client of the cluster; the caller closes it.
    """

    def __init__(self, admin: LogAdmin) -> None:
        self._admin = admin
        self._known: dict[TopicPartition, EndOffset] = {}
        self._asked: list[tuple[TopicPartition, Answered]] = []
        self._asking: asyncio.Task[None] | None = None

    def holds(self, data: TopicPartition, offset: int) -> bool:
        """Whether the log is known to hold an offset, or to have held it."""
        return offset < self._known.get(data, 0)

    def ask(self, data: TopicPartition, answered: Answered) -> None:
        """Calls `answered` once; never if the cluster is away, since requests are repeated."""
        self._asked.append((data, answered))
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="log-ends")

    async def _ask(self) -> None:
        while self._asked:
            asked, self._asked = self._asked, []
            try:
                ends = await self._admin.end_offsets(sorted({data for data, _ in asked}))
            except RetriableError as error:
                log.warning("log_ends_not_read", partitions=len(asked), why=str(error))
                continue
            except ConnectorError as error:
                # A store that settled nothing would keep transactions open for ever.
                log.warning("log_ends_not_read", partitions=len(asked), why=str(error))
                ends = dict[TopicPartition, EndOffset]()
            if len(self._known) + len(ends) > KNOWN_MAX:
                self._known.clear()
            self._known |= ends
            for data, answered in asked:
                answered(ends.get(data))
