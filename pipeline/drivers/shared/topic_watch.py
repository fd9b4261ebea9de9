"""Notices that a topic which is read was deleted and created again.

*Source*: docs/protocols C13, E8.

*Invariants*: the id of a topic is fixed when the topic is first watched, and is compared with every
later answer of the cluster; offsets of two ids are never mixed.
"""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.pipeline.core.topic_table import KnownTopic, TopicRecreated, TopicTable
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.errors import topic_recreated

_HINT = "read the topic that exists now from its start, with a new subscription"


class TopicWatch:
    """Watches topics in `run`, until cancelled.

    Args:
        admin: the cluster.
        outages: repeats calls while the cluster is away.
        max_age_s: longest time between two looks at the topics, > 0.
    """

    def __init__(self, admin: LogAdmin, outages: OutageGuard, max_age_s: float) -> None:
        self._admin = admin
        self._outages = outages
        self._table = TopicTable(max_age_s * 1000)
        self._wake = asyncio.Event()
        self._doubted: set[bytes] = set()

    def fix(self, topic_ids: Mapping[str, bytes]) -> None:
        """Fixes the ids of topics that were just described; known ids stay."""
        self._table.described({name: KnownTopic(it, 0) for name, it in topic_ids.items()})

    def forget(self, names: Collection[str]) -> None:
        """Watches these topics no longer."""
        self._table.forget(names)

    def topic_id(self, name: str) -> bytes | None:
        """The fixed id of a topic; None: not fixed yet, since the topic did not exist."""
        known = self._table.get(name)
        return None if known is None else known.topic_id

    def doubt(self, topic_id: bytes) -> None:
        """Has `run` look soon: a record belongs to another id, which may be that of a new topic.

        One look answers for all records of an id; most of them are of a former topic.
        """
        if topic_id not in self._doubted:
            self._doubted.add(topic_id)
            self._wake.set()

    async def look(self, names: Collection[str] = ()) -> None:
        """Compares the ids of all watched topics with those of the cluster; fixes new `names`.

        Raises:
            TopicRecreatedError: a topic has another id than the fixed one.
            UnavailableError: the cluster stayed away.
        """
        asked = sorted({*self._table.names, *names})
        found = await self._outages.call(self._admin.describe_topics, asked)
        for change in self._table.described(
            {name: KnownTopic(it.topic_id, it.partition_count) for name, it in found.items()}
        ):
            if isinstance(change, TopicRecreated):
                raise topic_recreated(change.topic, change.before, change.now, hint=_HINT)

    async def run(self) -> None:
        """Looks whenever the age is reached, and after `doubt`; raises as `look`."""
        now_s = asyncio.get_running_loop().time
        while True:
            self._table.looked(now_s() * 1000)
            deadline_ms = self._table.deadline_ms
            with suppress(TimeoutError):
                async with asyncio.timeout_at(None if deadline_ms is None else deadline_ms / 1000):
                    await self._wake.wait()
            self._wake.clear()
            await self.look()
