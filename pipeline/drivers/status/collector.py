"""Collects the state of all clusters, for `stilltide status` and everything else that shows it.

*Source*: docs/operating.md, Status.

*Invariants*: `collect` returns within its patience, whatever is away or slow: what was not read by
then keeps its former value and time, and goes on to be read. Clusters are read at the same time. No
part is read twice at the same time, also for callers that collect often.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from stilltide.connectors.clock import Clock, SystemClock
from stilltide.pipeline.core.status.values import (
    Aged,
    AuditStatus,
    ClusterSeen,
    GroupStatus,
    LinkStatus,
    SystemStatus,
)
from stilltide.pipeline.drivers.shared.tasks import cancelled
from stilltide.pipeline.drivers.status.cluster import REST_S, ClusterLook, StatusTarget
from stilltide.pipeline.drivers.status.groups import GroupsLook
from stilltide.pipeline.drivers.status.links import forgotten_links, is_retired, link_partitions
from stilltide.pipeline.drivers.status.part import Part
from stilltide.schemas.replication.origins import publish_of
from stilltide.schemas.values import ClusterName

LINKS_SHARE = 0.3
"""Links are read more often than what changes slowly: their lag does not."""

GROUPS_S_MAX = 300.0
"""Seconds after which reading all groups is given up."""


class StatusCollector:
    """An asynchronous context manager; `collect` may be called again and again.

    Args:
        targets: the clusters, in the order in which they are shown.
        audits: by directory of reports, what reads the last audit there.
        clock: tells the time of everything that is read.
        rest_s: seconds between two looks at what changes slowly.
    """

    def __init__(
        self,
        targets: Sequence[StatusTarget],
        *,
        audits: Mapping[str, Callable[[], Awaitable[AuditStatus]]] | None = None,
        clock: Clock | None = None,
        rest_s: float = REST_S,
    ) -> None:
        self._clock = clock or SystemClock()
        self._looks = {one.name: ClusterLook(one, self._clock, rest_s) for one in targets}
        self._links = {
            name: Part(
                "links", partial(self._read_links, name), self._clock, rest_s=rest_s * LINKS_SHARE
            )
            for name in self._looks
        }
        self._forgotten = {
            target.name: Part(
                "forgotten", partial(forgotten_links, target.connector), self._clock, rest_s=rest_s
            )
            for target in targets
        }
        self._groups_look = GroupsLook(self._clock, self._groups_renewed)
        self._groups = Part(
            "groups", self._read_groups, self._clock, timeout_s=GROUPS_S_MAX, rest_s=rest_s
        )
        self._audits = {
            name: Part("audit", read, self._clock, rest_s=rest_s)
            for name, read in (audits or {}).items()
        }
        self._waiting: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def collect(self, patience_s: float = 10.0) -> SystemStatus:
        """Reads what is due, waits for it at most `patience_s`, and returns what is known then.

        A cluster that is away delays the answer by `AWAY_S` at most.
        """
        work = asyncio.create_task(self._renew())
        self._waiting.add(work)
        work.add_done_callback(self._waiting.discard)
        await asyncio.wait([work], timeout=patience_s)
        if work.done():
            work.result()
        return self.status()

    def status(self) -> SystemStatus:
        """What is known now; reads nothing."""
        now_ms = self._clock.now_ms()
        return SystemStatus(
            now_ms,
            tuple(self._seen(name, now_ms) for name in self._looks),
            {name: self._links_into(name, now_ms) for name in self._looks},
            self._groups.aged,
            {name: part.aged for name, part in self._audits.items()},
        )

    def _seen(self, name: ClusterName, now_ms: int) -> ClusterSeen:
        """A cluster as it was read last; of one that is away, with the last sign of it."""
        seen = self._looks[name].seen()
        if not seen.away:
            return seen
        backs_ms = (look.links.back_ms(name, now_ms) for look in self._looks.values())
        signs = [it for it in (seen.brokers.read_ms, *backs_ms) if it is not None]
        return replace(seen, sign_ms=max(signs, default=None))

    def _links_into(self, target: ClusterName, now_ms: int) -> Aged[tuple[LinkStatus, ...]]:
        """The links into a cluster; nobody knows whether one runs of which a side is away.

        Of a target that is away the links are those that were read before, and those of which the
        links back have told the other clusters.
        """
        aged = self._links[target].aged
        away = [name for name, look in self._looks.items() if look.away]
        links = {it.source: it for it in aged.value or ()}
        if target in away:
            for name, look in self._looks.items():
                back_ms = look.links.back_ms(target, now_ms)
                if back_ms is not None and name != target:
                    link = LinkStatus(name, target, back_ms, running=None, partitions=())
                    links.setdefault(name, link)
        for source, link in links.items():
            silent = next((it for it in (source, target) if it in away), None)
            if silent is not None:
                links[source] = link._replace(running=None, away=silent)
        value = tuple(links.values()) if links else aged.value
        return Aged(value, aged.read_ms, aged.problem, aged.hint)

    async def close(self) -> None:
        """Ends what is under way, and releases all connections."""
        await cancelled(*self._waiting)
        parts: list[Part[Any]] = [self._groups]
        for some in (self._links, self._forgotten, self._audits):
            parts += some.values()
        await asyncio.gather(*(part.close() for part in parts))
        await asyncio.gather(*(look.close() for look in self._looks.values()))

    async def _renew(self) -> None:
        """Reads every part that is due; ends when all of them were read, or have failed."""
        pings = {it: asyncio.create_task(one.brokers.renew()) for it, one in self._looks.items()}
        reading = [asyncio.create_task(self._after(pings[it], it)) for it in self._looks]
        reading.append(asyncio.create_task(self._between(list(pings.values()))))
        reading += [asyncio.create_task(part.renew()) for part in self._audits.values()]
        try:
            await asyncio.gather(*reading)
        finally:
            for task in (*pings.values(), *reading):
                task.cancel()

    async def _after(self, ping: asyncio.Task[None], name: ClusterName) -> None:
        """Reads one cluster, if it is there."""
        await asyncio.wait([ping])
        if not self._looks[name].away:
            await self._looks[name].renew()

    async def _between(self, pings: Sequence[asyncio.Task[None]]) -> None:
        """Reads links and groups, once it is known which clusters are there."""
        await asyncio.wait(pings)
        there = [name for name, look in self._looks.items() if not look.away]
        links = [self._links[name].renew() for name in there]
        await asyncio.gather(*links, *([self._groups.renew()] if there else []))

    async def _read_links(self, target: ClusterName) -> tuple[LinkStatus, ...]:
        tail = self._looks[target].links
        await tail.read_on()
        statuses: list[LinkStatus] = []
        ended = self._looks[target].seen().ended.value or ()
        ends = {it.name: it.why for it in ended}
        for source, copied in sorted(tail.sources().items()):
            there = self._looks.get(target if publish_of(source) else source)
            admin = None if there is None or there.away else there.admin
            partitions = await link_partitions(source, copied, admin)
            link = tail.status(source, partitions, self._clock.now_ms())
            statuses.append(link._replace(problem=ends.get(source, "")))
        if all(it.running for it in statuses):
            return tuple(statuses)
        await self._forgotten[target].renew()
        forgotten = self._forgotten[target].aged.value or {}
        return tuple(it for it in statuses if not is_retired(it, forgotten))

    async def _read_groups(self) -> tuple[GroupStatus, ...]:
        there = {it: one.target.connector for it, one in self._looks.items() if not one.away}
        away = self._looks.keys() - there.keys()
        return await self._groups_look.read(there, away) if len(self._looks) > 1 else ()

    def _groups_renewed(self, groups: tuple[GroupStatus, ...]) -> None:
        """Shows groups as soon as they are read, each with its own time."""
        self._groups.shown(groups)
