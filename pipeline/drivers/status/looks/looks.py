"""Answers what viewers ask while they look, and nothing once they have gone.

*Source*: docs/console.md.

*Invariants*: all who ask the same share one answer, which is not read twice at the same time, and
not more often than its look allows. What nobody has asked for `IDLE_S` is closed. Few looks read a
cluster at the same time.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from stilltide.connectors.clock import Clock, SystemClock
from stilltide.connectors.ports.admin import LogAdmin, NativeTransactions
from stilltide.connectors.ports.connector import GroupAdmin, TopicAdmin
from stilltide.pipeline.core.status.asks import (
    Answers,
    Ask,
    ConfigsAsk,
    EndedAsk,
    GroupAsk,
    GroupsAsk,
    LagAsk,
    LogsAsk,
    Native,
    NativeAsk,
    PartitionsAsk,
    Producers,
    ProducersAsk,
    RecordsAsk,
    TopicsAsk,
)
from stilltide.pipeline.drivers.native.open_transactions import open_transactions
from stilltide.pipeline.drivers.status.cluster import StatusTarget
from stilltide.pipeline.drivers.status.holds import PARTITIONS_MAX, held_partitions
from stilltide.pipeline.drivers.status.looks.groups import (
    GROUPS_REST_S,
    consumer_group,
    consumer_groups,
)
from stilltide.pipeline.drivers.status.looks.owners import (
    LAG_REST_S,
    EndedLook,
    LogsLook,
    group_lag,
)
from stilltide.pipeline.drivers.status.looks.topics import (
    ENDS_REST_S,
    TOPICS_REST_S,
    RecordBrowsers,
    RecordsLook,
    TopicsLook,
    configs_of,
    partition_count,
    partition_ends,
    partitions_from,
)
from stilltide.pipeline.drivers.status.part import Part
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.values import ClusterName

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class AskedLook(Protocol[T_co]):
    """Reads the answer to a question.

    Attributes:
        rest_s: seconds from the end of a read until the next one may begin.
    """

    rest_s: float

    async def read(self) -> T_co:
        """The answer as of now; raises errors of the product only."""
        ...

    async def close(self) -> None:
        """Releases what the reads have opened."""
        ...


class Once(Generic[T]):
    """A look that keeps nothing between two reads.

    Args:
        read: reads the answer.
        rest_s: as in `AskedLook`.
    """

    def __init__(self, read: Callable[[], Awaitable[T]], rest_s: float) -> None:
        self._read = read
        self.rest_s = rest_s

    async def read(self) -> T:
        """See `AskedLook`."""
        return await self._read()

    async def close(self) -> None:
        """Nothing is open."""


REST_S = 2.0

IDS_MAX = 200
"""Transactional ids that an answer names; the others are counted."""

PRODUCERS_MAX = 200
"""Producers that an answer shows; the others are counted."""


async def native_transactions(native: NativeTransactions, admin: LogAdmin) -> Native:
    """Open transactions, and the transactional ids that the coordinators know.

    Raises:
        ConnectorError: the cluster is away, or forbids the question.
    """
    partitions = list(await held_partitions(admin))
    opened = await open_transactions(native, partitions[:PARTITIONS_MAX]) if partitions else []
    ids = await native.list_transactions()
    return Native(
        tuple(opened), len(partitions), tuple(ids[:IDS_MAX]), Counter(str(one.state) for one in ids)
    )


async def producers_of(native: NativeTransactions, admin: LogAdmin, ask: ProducersAsk) -> Producers:
    """The producers of a topic's partitions, from a number on.

    Raises:
        FatalError: the topic does not exist.
        ConnectorError: the cluster is away, or forbids the question.
    """
    count = await partition_count(admin, ask.topic)
    wanted = partitions_from(ask.topic, ask.first, count)
    by_partition = await native.producers(wanted) if wanted else {}
    all_found = [(data, one) for data, them in sorted(by_partition.items()) for one in them]
    return Producers(count, tuple(all_found[:PRODUCERS_MAX]), len(all_found))


IDLE_S = 15.0
"""Seconds without a question after which a look is closed."""

KEPT_MAX = 100
"""Questions with an answer; at the limit the one that was asked longest ago is forgotten."""

WINDOWS_MAX = 20
"""Windows of records among them, which take most memory."""

AT_ONCE = 4
"""Looks of a cluster that read at the same time; the others wait."""

READ_S_MAX = 30.0
"""Seconds after which a read is given up."""


@dataclass(slots=True)
class _Kept:
    """A question with its answer.

    Attributes:
        look: reads the answer.
        part: keeps the answer, and lets one read at a time happen.
        asked_s: when somebody asked last, by the loop's clock.
    """

    look: AskedLook[Any]
    part: Part[Any]
    asked_s: float


class Looks:
    """Answers questions; `close` must be called at the end.

    Args:
        targets: the clusters that may be asked about.
        clock: tells when something was read.
        idle_s: seconds without a question after which a look is closed.
    """

    def __init__(
        self,
        targets: Sequence[StatusTarget],
        *,
        clock: Clock | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        self._clock = clock or SystemClock()
        self._idle_s = idle_s
        self._targets = {one.name: one for one in targets}
        self._admins: dict[ClusterName, LogAdmin] = {}
        self._group_admins: dict[ClusterName, GroupAdmin] = {}
        self._topic_admins: dict[ClusterName, TopicAdmin] = {}
        self._room = {name: asyncio.Semaphore(AT_ONCE) for name in self._targets}
        self._kept: dict[Ask, _Kept] = {}
        self._browsers = RecordBrowsers(idle_s)
        self._sweeping: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def answers(self, asks: Sequence[Ask], patience_s: float) -> Answers:
        """What is known of each question; what is due is read first, for at most `patience_s`.

        A read that takes longer goes on, and its answer comes with a later call.
        """
        kept = {ask: self._asked(ask) for ask in asks}
        if kept:
            reading = [asyncio.create_task(one.part.renew()) for one in kept.values()]
            done, _ = await asyncio.wait(reading, timeout=patience_s)
            for task in reading:
                task.cancel()  # ends the waiting, not the read
            for task in done:
                task.result()
        return {ask: one.part.aged for ask, one in kept.items()}

    @property
    def count(self) -> int:
        """Number of questions whose answers are kept."""
        return len(self._kept)

    async def close(self) -> None:
        """Ends what is under way, and releases all connections."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for ask in list(self._kept):
            self._forget(ask)
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._browsers.close()
        for admins in (self._admins, self._group_admins, self._topic_admins):
            await asyncio.gather(*(admin.close() for admin in admins.values()))

    def _asked(self, ask: Ask) -> _Kept:
        now_s = asyncio.get_running_loop().time()
        kept = self._kept.get(ask)
        if kept is None:
            self._make_room(ask)
            look = self._look(ask)
            part = Part(
                type(ask).__name__,
                self._in_turn(ask.cluster, look),
                self._clock,
                timeout_s=READ_S_MAX,
                rest_s=look.rest_s,
            )
            kept = self._kept[ask] = _Kept(look, part, now_s)
            if self._sweeping is None or self._sweeping.done():
                self._sweeping = asyncio.create_task(self._sweep())
        kept.asked_s = now_s
        return kept

    def _make_room(self, ask: Ask) -> None:
        """Forgets the question that was asked longest ago, if there are too many."""
        kept = list(self._kept)
        if len(kept) < KEPT_MAX:
            kept = [it for it in kept if isinstance(it, RecordsAsk)]
            if not isinstance(ask, RecordsAsk) or len(kept) < WINDOWS_MAX:
                return
        self._forget(min(kept, key=lambda it: self._kept[it].asked_s))

    def _in_turn(self, cluster: ClusterName, look: AskedLook[Any]) -> Callable[[], Any]:
        async def read() -> Any:
            async with self._room[cluster]:
                return await look.read()

        return read

    def _look(self, ask: Ask) -> AskedLook[Any]:
        """What answers a question."""
        connector, admin = self._targets[ask.cluster].connector, self._admin(ask.cluster)
        look: AskedLook[Any]
        match ask:
            case RecordsAsk():
                look = RecordsLook(self._browsers, connector, admin, ask)
            case NativeAsk():
                look = Once(lambda: native_transactions(self._native(ask), admin), REST_S)
            case ProducersAsk():
                look = Once(lambda: producers_of(self._native(ask), admin, ask), REST_S)
            case LogsAsk():
                look = LogsLook(connector)
            case EndedAsk():
                look = EndedLook(connector)
            case LagAsk():
                look = Once(lambda: group_lag(connector, ask), LAG_REST_S)
            case _:
                look = self._listing(ask, admin)
        return look

    def _listing(
        self,
        ask: TopicsAsk | ConfigsAsk | PartitionsAsk | GroupsAsk | GroupAsk,
        admin: LogAdmin,
    ) -> AskedLook[Any]:
        """What answers a question for topics or consumer groups."""
        match ask:
            case TopicsAsk():
                return TopicsLook(admin, self._topic_admin(ask.cluster), ask)
            case ConfigsAsk():
                return Once(lambda: configs_of(admin, ask), TOPICS_REST_S)
            case PartitionsAsk():
                topic_admin = self._topic_admin(ask.cluster)
                return Once(lambda: partition_ends(admin, topic_admin, ask), ENDS_REST_S)
            case GroupsAsk():
                groups = self._group_admin(ask.cluster)
                return Once(lambda: consumer_groups(groups, admin, ask), GROUPS_REST_S)
            case GroupAsk():
                groups = self._group_admin(ask.cluster)
                return Once(lambda: consumer_group(groups, admin, ask), GROUPS_REST_S)

    def _native(self, ask: NativeAsk | ProducersAsk) -> Any:
        native = self._targets[ask.cluster].native
        if native is None:
            raise RefusedError("native transactions of this cluster cannot be asked for")
        return native

    def _admin(self, cluster: ClusterName) -> LogAdmin:
        if cluster not in self._admins:
            self._admins[cluster] = self._targets[cluster].connector.admin()
        return self._admins[cluster]

    def _group_admin(self, cluster: ClusterName) -> GroupAdmin:
        if cluster not in self._group_admins:
            self._group_admins[cluster] = self._targets[cluster].connector.group_admin()
        return self._group_admins[cluster]

    def _topic_admin(self, cluster: ClusterName) -> TopicAdmin:
        if cluster not in self._topic_admins:
            self._topic_admins[cluster] = self._targets[cluster].connector.topic_admin()
        return self._topic_admins[cluster]

    async def _sweep(self) -> None:
        """Closes what nobody asks for any more, until nothing is kept."""
        loop = asyncio.get_running_loop()
        while self._kept or self._browsers:
            await asyncio.sleep(self._idle_s / 2)
            self._browsers.sweep()
            for ask, kept in list(self._kept.items()):
                if loop.time() - kept.asked_s > self._idle_s:
                    self._forget(ask)

    def _forget(self, ask: Ask) -> None:
        kept = self._kept.pop(ask)

        async def close() -> None:
            await kept.part.close()
            await kept.look.close()

        task = asyncio.create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
