"""Which partitions exist, as far as transactions have registered them.

*Source*: docs/protocols C16: a registration of a partition that does not exist would be kept, and
get a marker, for ever more names. A topic that was known once stays known: one that is deleted
later is the matter of E8.

*Invariants*: one call to the cluster at a time, whatever clients ask for.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

from stilltide.connectors.errors import ConnectorError, NotAuthorizedError
from stilltide.connectors.ports.admin import LogAdmin, TopicDescription
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.values import TopicPartition

log = get_logger(__name__)

KNOWN_MAX = 100_000
"""Topics that are remembered; beyond, all are forgotten and looked up again."""

NAMES_PER_CALL = 1000

Looked = Callable[[str | None], None]
"""Called with why a partition cannot be registered ("": it exists), or None: the call failed."""


class KnownTopics:
    """Looks up the topics of registrations; `run` makes the calls."""

    def __init__(self, admin: LogAdmin) -> None:
        self._admin = admin
        self._counts: dict[str, int] = {}
        self._asked: list[tuple[Collection[TopicPartition], Looked]] = []
        self._refused: dict[str, str] = {}
        self._wake = asyncio.Event()

    def unknown(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The partitions of which it is not known that they exist."""
        counts = self._counts
        return [data for data in partitions if data.partition >= counts.get(data.topic, 0)]

    def look(self, partitions: Collection[TopicPartition], looked: Looked) -> None:
        """Looks partitions up, and calls `looked` once."""
        self._asked.append((partitions, looked))
        self._wake.set()

    def learn(self, found: Mapping[str, TopicDescription]) -> None:
        """Remembers topics that exist."""
        self._counts |= {name: one.partition_count for name, one in found.items()}

    async def run(self) -> None:
        """Looks up until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            asked, self._asked = self._asked, []
            wanted = {data.topic for partitions, _ in asked for data in self.unknown(partitions)}
            found = await self._describe(sorted(wanted))
            for partitions, looked in asked:
                looked(self._finding(partitions) if found else None)

    async def _describe(self, names: list[str]) -> bool:
        """Remembers the topics that exist; False if the cluster did not answer."""
        if len(self._counts) + len(names) > KNOWN_MAX:
            self._counts.clear()
        self._refused.clear()
        try:
            for first in range(0, len(names), NAMES_PER_CALL):
                await self._learn(names[first : first + NAMES_PER_CALL])
        except ConnectorError as error:
            log.warning("topics_not_described", topics=len(names), why=str(error))
            return False
        return True

    async def _learn(self, names: list[str]) -> None:
        """Looks topics up; each alone if one is refused, so that it costs others nothing (C17)."""
        try:
            self.learn(await self._admin.describe_topics(names))
        except NotAuthorizedError as error:
            if len(names) > 1:
                for name in names:
                    await self._learn([name])
                return
            self._refused[names[0]] = error.primary
            log.warning("topic_refused", topic=names[0], why=error.primary, hint=error.hint)

    def _finding(self, partitions: Collection[TopicPartition]) -> str:
        missing = self.unknown(partitions)
        if not missing:
            return ""
        return self._refused.get(missing[0].topic, f"{missing[0]} does not exist")
