"""Runs one link, between clusters or within one: its topics, and a driver for each partition.

*Source*: docs/protocols B4, B8, B9, H2, H6, H8, H9, H10, H11, H12.

*Invariants*: after a driver has failed, another one begins with `FenceTarget`; an error that is not
temporary ends the link. Topics are looked at every few seconds, also those copied already (H6).
A process writes to the partitions of its share alone (H12).
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar

from stilltide.connectors.clock import Clock
from stilltide.connectors.errors import (
    AnotherWriterError,
    FatalError,
    FencedError,
    InvalidRecordError,
    MissingTopicError,
    OffsetOutOfRangeError,
    RecordRefusedError,
    RetriableError,
)
from stilltide.connectors.ports.copying import LinkConnector
from stilltide.pipeline.core.link_liveness import BEAT_INTERVAL_MS
from stilltide.pipeline.core.links.copying import Topics
from stilltide.pipeline.core.links.link import LinkLimits
from stilltide.pipeline.core.links.progress import LinkProgress
from stilltide.pipeline.core.replicas import AUTOMATIC, WantedReplicas
from stilltide.pipeline.drivers.links.configs import ConfigOptions, FollowedConfigs
from stilltide.pipeline.drivers.links.errors import LinkErrorWriter
from stilltide.pipeline.drivers.links.link_driver import (
    LinkDeps,
    LinkDriver,
    StartOverError,
    Throttle,
    keyless_record,
)
from stilltide.pipeline.drivers.links.publish import PublishedTopic
from stilltide.pipeline.drivers.links.share import LinkShare
from stilltide.pipeline.drivers.links.sides import (
    PositionsView,
    Side,
    TopicNames,
    check_distinct,
    opened,
)
from stilltide.pipeline.drivers.links.topics import LinkedTopics, TopicChoice
from stilltide.pipeline.drivers.links.writer import end_hanging_positions
from stilltide.pipeline.drivers.service.hindrances import Hindrances
from stilltide.pipeline.drivers.shared.outages import Tries, away_too_long
from stilltide.pipeline.drivers.shared.tasks import cancelled
from stilltide.pipeline.errors import LinkError, TopicRecreatedError, UnavailableError
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.replication.origins import PublishRoute
from stilltide.schemas.replication.positions import LastError, LastErrorKey
from stilltide.schemas.retry import LINK_LIFE, OWNERSHIP, Retry
from stilltide.schemas.topics import REPLICATION_POSITIONS, TXN_MARKERS, compacts, system_partition
from stilltide.schemas.values import ClusterName, TopicPartition

P = ParamSpec("P")
T = TypeVar("T")

_log = get_logger(__name__)

_BEGIN_AGAIN = (RetriableError, StartOverError, OffsetOutOfRangeError, TopicRecreatedError)
"""Errors after which another driver begins, with the topics as they are then."""

PUBLISH_LIMITS = LinkLimits(quiet_ms=5)
"""Limits of a publish: a record that comes alone is visible soon, and a load makes long
transactions."""

_LINK_LIMITS = LinkLimits(beat_interval_ms=BEAT_INTERVAL_MS)
"""Limits of a link between two clusters."""

_ANSWER_S = 1.0
"""Longest time at the end until both clusters have answered; else one of them counts as away."""

_WRITE_S = 0.5
"""Longest time in which a link that was stopped writes its last error."""

_KNOWN_S = 30.0
"""Time from a link's beginning in which a topic that a broker does not know may be a new one."""


@dataclass(frozen=True, slots=True)
class LinkRunOptions:
    """Options of a link.

    Attributes:
        choice: topics to copy from cluster to cluster.
        share: the part of the link that this process runs; a publish is never shared.
        publish: topics of a link within one cluster; None: a link between two clusters.
        awaits_source: whether a publish waits for a source topic that does not exist yet.
        throttle_bytes_per_s: most bytes of keys and values per second, of which a process has its
            share at the beginning; None for no limit.
        partition_count: number of partitions of system topics that the link creates.
        replicas: replicas of topics that the link creates.
        patience_s: longest absence of a cluster before the link serves; may be infinite. A link
            that has served waits without a limit.
        look_interval_s: time between two looks at the topics and the source's ends.
        retry: from the failure of a driver to the next driver.
        refuse_after_s: time that topics must be wrong at the start before the link refuses them,
            since the link back may just have created a topic whose buckets are not visible yet.
        stop_timeout_s: longest wait at the end for open transactions to commit, while both clusters
            answer.
        limits: limits of transactions; a publish writes no beats, since nobody asks for them.
        skips_keyless: whether records without key are left out where the target's topic compacts;
            else their partitions wait (H10).
        configs: what is followed of the configs of topics; a publish follows none.
    """

    choice: TopicChoice = field(default_factory=TopicChoice)
    share: LinkShare = field(default_factory=LinkShare)
    publish: PublishRoute | None = None
    awaits_source: bool = False
    throttle_bytes_per_s: float | None = None
    partition_count: int = 4
    replicas: WantedReplicas = AUTOMATIC
    patience_s: float = 60.0
    look_interval_s: float = 5.0
    retry: Retry = LINK_LIFE
    refuse_after_s: float = 5.0
    stop_timeout_s: float = 5.0
    limits: LinkLimits = _LINK_LIMITS
    skips_keyless: bool = False
    configs: ConfigOptions = field(default_factory=ConfigOptions)


@dataclass(slots=True)
class _Patience:
    """How long a link waits.

    Attributes:
        away_s: longest absence of a cluster.
        unknown_until_s: loop time until which a topic that a broker does not know may be new.
    """

    away_s: float
    unknown_until_s: float = 0.0


def _throttle(options: LinkRunOptions, target: Side) -> Throttle:
    """The limit of this process."""
    count = target.counts[REPLICATION_POSITIONS]
    bytes_per_s = options.share.part_of(options.throttle_bytes_per_s, count)
    return Throttle(bytes_per_s, asyncio.get_running_loop().time)


class LinkRun:
    """One link; `run` it once.

    Args:
        source: name and connector of the cluster to copy from.
        target: name and connector of the cluster to copy to; the same for a publish.
        clock: wall clock.
        options: options of the link; None: the defaults.
        hindrances: what hinders the process that runs the link (C17); None: nobody asks.

    Attributes:
        progress: figures of the link.
    """

    def __init__(
        self,
        source: tuple[ClusterName, LinkConnector],
        target: tuple[ClusterName, LinkConnector],
        clock: Clock,
        options: LinkRunOptions | None = None,
        hindrances: Hindrances | None = None,
    ) -> None:
        self._options = options or LinkRunOptions()
        if source[0] == target[0] and self._options.publish is None:
            raise LinkError(
                f"a link from {source[0]} to {target[0]} itself", hint="name two clusters"
            )
        self._ends = source, target
        self._clock = clock
        self._patience = _Patience(self._options.patience_s)
        self._admins = source[1].admin(), target[1].admin()
        self._topic_admin = target[1].topic_admin()
        self._configs: FollowedConfigs | None = None
        self._views: list[PositionsView] = []
        self._seen: dict[TopicPartition, Topics] = {}
        self._drivers: dict[int, LinkDriver] = {}
        self._keepers: dict[int, asyncio.Task[None]] = {}
        self._stopping = asyncio.Event()
        self._looked = asyncio.Event()
        self.progress = LinkProgress()
        publish = self._options.publish
        name = LastErrorKey(source[0] if publish is None else publish.link, target[0])
        self._errors = LinkErrorWriter(name, target[1], clock, hindrances)

    @property
    def last_error(self) -> LastError | None:
        """The last error of the link, in this life or an earlier one, as far as known (H9)."""
        known = self._views[0].last_errors.get(self._errors.link.source) if self._views else None
        return self._errors.newest or known

    def stop(self) -> None:
        """Makes `run` end as soon as the records taken are committed."""
        self._stopping.set()
        for driver in self._drivers.values():
            driver.stop()

    async def run(self, serving: Callable[[list[str]], None] = lambda _: None) -> None:
        """Copies until `stop`.

        Args:
            serving: called once with the names of the topics, after all checks.

        Raises:
            LinkError: the clusters, or their topics, cannot be linked; nothing was copied.
            UnavailableError: a cluster was away for longer than `patience_s` at the start.
            FencedError: another link has taken over.
            StilltideError: any other error that is not temporary.
        """
        self._patience.unknown_until_s = asyncio.get_running_loop().time() + _KNOWN_S
        try:
            deps, topics = await self._opened()
            self._seen = await self._first_look(topics)
            if self._options.share.leads:
                await self._follow_configs()
            self._patience.away_s = math.inf
            serving(sorted({data.topic for data in self._seen}))
            await self._serve(deps, topics)
        except Exception as error:
            if isinstance(error, UnavailableError) and self._stopping.is_set():
                return
            self._errors.met(error)
            raise
        finally:
            await self._close()

    async def _opened(self) -> tuple[LinkDeps, LinkedTopics | PublishedTopic]:
        options = self._options
        source, target = [
            await self._patient(
                opened,
                name,
                connector,
                admin,
                partition_count=options.partition_count,
                replicas=options.replicas,
            )
            for (name, connector), admin in zip(self._ends, self._admins, strict=True)
        ]
        if options.publish is None:
            await self._patient(check_distinct, source, target)
        else:
            # One admin client: a second one would learn late of partitions that a topic gains.
            source = replace(target, name=options.publish.link)
        await self._patient(end_hanging_positions, source.name, target)
        on_target = PositionsView(target, f"link-{source.name}-positions", self._clock)
        self._views = [on_target]
        deps = LinkDeps(
            source=source,
            target=target,
            known=on_target,
            clock=self._clock,
            progress=self.progress,
            throttle=_throttle(options, target),
            limits=options.limits,
            names=TopicNames(options.publish),
            skips_keyless=options.skips_keyless,
            hindrances=self._errors.hindrances,
        )
        if options.publish is not None:
            topic = PublishedTopic(
                (source, target),
                options.publish,
                on_target,
                replicas=options.replicas,
                awaits_source=options.awaits_source,
            )
            # A beat would be a transaction before the one that declares the publish, and records
            # that are read meanwhile would be copied before the publish is declared.
            limits = replace(options.limits, beat_interval_ms=None)
            return replace(deps, declared=topic.check_others, limits=limits), topic
        on_source = PositionsView(source, f"link-{target.name}-positions", self._clock)
        self._views.append(on_source)
        topics = self._linked_topics(source, target, on_source, on_target)
        return replace(deps, known=on_source), topics

    def _linked_topics(
        self, source: Side, target: Side, on_source: PositionsView, on_target: PositionsView
    ) -> LinkedTopics:
        """The topics of a link between clusters; they and their configs follow the source's."""
        options = self._options
        self._configs = FollowedConfigs(
            (source, target),
            (on_source, on_target),
            self._topic_admin,
            options.configs,
            self.progress,
        )
        return LinkedTopics(
            (source, target),
            (on_source, on_target),
            options.choice,
            options.share,
            replicas=options.replicas,
            created=self._configs.created,
        )

    async def _first_look(
        self, topics: LinkedTopics | PublishedTopic
    ) -> dict[TopicPartition, Topics]:
        tries = Tries(self._options.retry.limited(self._options.refuse_after_s))
        while True:
            try:
                return await self._patient(topics.look, strict=True)
            except LinkError:
                if tries.failed() or self._stopping.is_set():
                    raise
                await tries.pause(self._stopping)

    async def _serve(self, deps: LinkDeps, topics: LinkedTopics | PublishedTopic) -> None:
        """Looks at the topics regularly; keeps a driver for each positions partition it has."""
        looking = asyncio.create_task(self._keep_looking(deps, topics))
        self._options.share.watchers.add(self._looked)
        try:
            while not self._stopping.is_set():
                self._keep_drivers(deps)
                self._looked.clear()
                waits = [asyncio.create_task(it.wait()) for it in (self._looked, self._stopping)]
                tasks = [looking, *self._keepers.values()]
                await asyncio.wait([*tasks, *waits], return_when=asyncio.FIRST_COMPLETED)
                for wait in waits:
                    wait.cancel()
                for task in tasks:
                    if task.done():
                        task.result()
                for partition in [it for it, task in self._keepers.items() if task.done()]:
                    del self._keepers[partition]  # of another process now
            await self._commit_taken()
        finally:
            self._options.share.watchers.discard(self._looked)
            await cancelled(looking, *self._keepers.values())

    async def _commit_taken(self) -> None:
        """Waits until the records taken are committed, but not for a cluster that is away."""
        keepers = [*self._keepers.values()]
        asking = [asyncio.create_task(it.describe_topics([TXN_MARKERS])) for it in self._admins]
        committed, answered = (
            asyncio.ensure_future(asyncio.gather(*tasks, return_exceptions=True))
            for tasks in (keepers, asking)
        )
        await asyncio.wait(
            [committed, answered], timeout=_ANSWER_S, return_when=asyncio.FIRST_COMPLETED
        )
        if answered.done() and not any(it.exception() for it in asking):
            await asyncio.wait([committed], timeout=self._options.stop_timeout_s)
        await cancelled(*asking)
        for task in keepers:
            if task.done():
                task.result()

    async def _keep_looking(self, deps: LinkDeps, topics: LinkedTopics | PublishedTopic) -> None:
        now = asyncio.get_running_loop().time
        due = now() + self._options.configs.interval_s
        while True:
            await asyncio.sleep(self._options.look_interval_s)
            before = {data.topic for data in self._seen}
            self._seen = await self._patient(topics.look, strict=False)
            if deps.has_signals:
                await self._patient(deps.known.catch_up)  # the beats of the link back
            own = self._of(self._options.share, deps.target.counts[REPLICATION_POSITIONS])
            asked = {deps.names.on_source(data): data for data in own}
            ends = await self._patient(deps.source.admin.end_offsets, list(asked), committed=True)
            self.progress.forget(self.progress.partitions.keys() - own.keys())
            self.progress.ends_seen({asked[data]: end for data, end in ends.items()})
            await self._look_at_waiting(deps)
            self._looked.set()
            if not self._options.share.leads:
                if self._configs is not None:
                    self._configs.leave()
            elif now() >= due or {data.topic for data in self._seen} - before:
                await self._follow_configs()
                due = now() + self._options.configs.interval_s

    async def _learn_compacting(self, deps: LinkDeps, partition: int) -> bool:
        """Looks which topics compact on the target; whether some do of which it was not known."""
        count = deps.target.counts[REPLICATION_POSITIONS]
        names = sorted({data.topic for data in self._of((partition,), count)})
        configs = await self._patient(deps.target.admin.topic_configs, names)
        compacting = {name for name, of_topic in configs.items() if compacts(of_topic)}
        learned = compacting - deps.compacting
        deps.compacting.update(compacting)
        return bool(learned)

    async def _look_at_waiting(self, deps: LinkDeps) -> None:
        """Reports partitions that wait for a policy; goes on with topics that compact no more."""
        waiting = self.progress.waiting
        for data, offset in sorted(waiting.items())[:1]:
            self._errors.met(keyless_record(deps, data, offset))
        names = sorted({data.topic for data in waiting})
        if not names:
            return
        configs = await self._patient(deps.target.admin.topic_configs, names)
        changed = {name for name in names if not compacts(configs.get(name, {}))}
        deps.compacting.difference_update(changed)  # a driver whose partition waits begins again

    async def _follow_configs(self) -> None:
        """Looks at the topics' configs once."""
        configs = self._configs
        if configs is not None:
            await self._patient(configs.look, self._seen)

    def _keep_drivers(self, deps: LinkDeps) -> None:
        count, share = deps.target.counts[REPLICATION_POSITIONS], self._options.share
        for partition in {system_partition(it, count) for it in self._of(share, count)}:
            if partition not in self._keepers:
                keeping = self._keep(deps, partition)
                self._keepers[partition] = asyncio.create_task(keeping)
        for partition, driver in self._drivers.items():
            if partition in share:
                driver.topics_seen(self._of((partition,), count))
            else:
                driver.stop()

    def _of(self, partitions: Container[int], count: int) -> Mapping[TopicPartition, Topics]:
        """The data partitions that belong to these of so many positions partitions."""
        return {
            data: topics
            for data, topics in self._seen.items()
            if system_partition(data, count) in partitions
        }

    async def _keep(self, deps: LinkDeps, partition: int) -> None:
        """Runs one driver after the other while the share has the partition (H12)."""
        share = self._options.share
        tries, fenced = Tries(self._options.retry), Tries(OWNERSHIP, deps.target.connector.chance)
        while partition in share and not self._stopping.is_set():
            problem = await self._life(deps, partition)
            if problem is None or partition not in share:
                continue
            row = fenced if isinstance(problem, FencedError) else tries
            row.failed()
            if row is tries:
                self._errors.met(problem)
            _log.warning(
                "a link begins again",
                source=deps.source.name,
                target=deps.target.name,
                partition=partition,
                reason=str(problem),
            )
            await row.pause(self._stopping)

    async def _life(self, deps: LinkDeps, partition: int) -> StilltideError | None:
        """Runs one driver; returns the error after which another one begins, or raises it.

        Where an assignment tells whose a partition is, a fence may be that of a dead process,
        written late (B4).
        """
        count, share = deps.target.counts[REPLICATION_POSITIONS], self._options.share
        topics = self._of((partition,), count)
        carried = self.progress.carried
        driver = self._drivers[partition] = LinkDriver(deps, partition, topics)
        try:
            await driver.run()
        except AnotherWriterError:
            return None
        except _BEGIN_AGAIN as error:
            return error
        except FencedError as error:
            if not share.is_assigned:
                raise
            return error
        except InvalidRecordError as error:
            if not await self._learn_compacting(deps, partition):
                raise
            return error  # the next driver knows what to do with records without key
        except FatalError as error:
            await asyncio.sleep(self._options.look_interval_s)
            # A record may be larger than the target takes, and not than the source takes (H8).
            await self._follow_configs()
            is_same = (self._of((partition,), count), self.progress.carried) == (topics, carried)
            if is_same and partition in share and not self._may_pass(error):
                raise
            return error  # a topic has changed: it is gone, was created again or altered
        finally:
            del self._drivers[partition]
            await driver.close()
        return None

    async def _patient(
        self, attempt: Callable[P, Awaitable[T]], *args: P.args, **named: P.kwargs
    ) -> T:
        """The result of a call, which is repeated while a cluster is away."""
        tries = Tries(self._options.retry.limited(self._patience.away_s))
        while True:
            try:
                return await attempt(*args, **named)
            except MissingTopicError as error:
                self._errors.met(error)
                if not self._may_pass(error) or self._stopping.is_set():
                    raise
                tries.failed()
            except RetriableError as error:
                self._errors.met(error)
                if tries.failed() or self._stopping.is_set():
                    away = f"a cluster was away for {self._patience.away_s:g} s"
                    raise away_too_long(away, error) from None
            await tries.pause(self._stopping)

    def _may_pass(self, error: Exception) -> bool:
        """Whether the error is about a topic that the link may just have made."""
        is_young = asyncio.get_running_loop().time() < self._patience.unknown_until_s
        return is_young and isinstance(error, MissingTopicError)

    async def _close(self) -> None:
        # An error that ends the link is worth a wait; one after which it went on is not.
        await self._errors.close(*([_WRITE_S] if self._stopping.is_set() else []))
        for view in self._views:
            await view.close()
        for admin in (*self._admins, self._topic_admin):
            await admin.close()


class LinkOwner:
    """Runs one link.

    Args:
        make: makes the link.

    Attributes:
        link: the link that runs; None: none does.
        serving: whether the link copies.
    """

    def __init__(self, make: Callable[[], LinkRun]) -> None:
        self.link: LinkRun | None = None
        self.serving = False
        self._make = make

    async def run(self) -> None:
        """Copies until an error ends the link."""
        self.link = self._make()
        try:
            await self.link.run(self._serves)
        finally:
            self.link, self.serving = None, False

    def passes(self, error: StilltideError) -> bool:
        """Whether another link has taken over, or the cluster refuses records."""
        return isinstance(error, FencedError | RecordRefusedError)

    def _serves(self, _topics: list[str]) -> None:
        self.serving = True
