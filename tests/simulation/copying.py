"""Links, publishes and groups that are carried over, as simulated processes."""

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial

from stilltide.connectors.errors import FencedError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.drivers.links.link import PUBLISH_LIMITS, LinkOwner, LinkRun, LinkRunOptions
from stilltide.pipeline.drivers.links.share import LinkShare
from stilltide.pipeline.drivers.links.topics import TopicChoice
from stilltide.pipeline.drivers.shared.dynamic_settings import write_setting
from stilltide.pipeline.drivers.worker.placement import LINKS
from stilltide.pipeline.drivers.worker.runtime import Runtime
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.replication.origins import PublishRoute
from stilltide.schemas.retry import LINK_ENDED
from stilltide.schemas.settings import subscription_setting
from stilltide.schemas.values import ClusterName
from tests.simulation.history import Copying, History
from tests.simulation.network.connector import NetworkConnector
from tests.simulation.plan import PUBLISHED, TOPICS, Link, Plan

COPIES_MAX = 500
"""So many records, and ten times what was written, are more than links make of a world."""

FENCED_S = 5.0, 15.0
"""Least and longest time until a link that was fenced tries again."""


_CHOICE = TopicChoice(tuple(sorted(TOPICS)), merge=True)


def copies(plan: Plan) -> tuple[Copying, ...]:
    """What the links of a plan copy."""
    copied: set[Copying] = set()
    for link in plan.links:
        if link.source == link.target:
            copied.add(Copying((link.source, "orders"), (link.target, PUBLISHED), written=False))
        else:
            copied |= {
                Copying((link.source, topic), (link.target, topic), written=True)
                for topic in TOPICS
            }
    return tuple(sorted(copied))


async def run_link(
    link: Link, source: NetworkConnector, target: NetworkConnector, partition_count: int
) -> None:
    """Copies until the process dies, as `stilltide replicate` and `stilltide publish` do.

    A link that another one has fenced tries again later, as a worker does that runs links.

    Raises:
        StilltideError: as `LinkRun.run`.
    """
    if link.source == link.target:
        options = LinkRunOptions(
            publish=PublishRoute("orders", PUBLISHED),
            awaits_source=True,
            partition_count=partition_count,
            limits=PUBLISH_LIMITS,
        )
    else:
        options = LinkRunOptions(_CHOICE, partition_count=partition_count)
    ends = (ClusterName(link.source), source), (ClusterName(link.target), target)
    while True:
        try:
            await LinkRun(*ends, source.clock, options).run()
        except FencedError:
            await asyncio.sleep(source.chance.between(*FENCED_S))


def links_of_worker(
    sources: Mapping[str, NetworkConnector],
    target: tuple[str, NetworkConnector],
    settings: Settings,
) -> Runtime[str, LinkOwner]:
    """Runs a worker's part of links, as `stilltide worker --replicate-from` does (H12).

    Args:
        sources: the clusters to copy from, as the process reaches them.
        target: the cluster of the worker.
        settings: settings of the worker.
    """
    share = LinkShare((), assigned=True)
    options = LinkRunOptions(_CHOICE, share, partition_count=settings.partitions)
    end = ClusterName(target[0]), target[1]

    def link(source: str) -> LinkRun:
        return LinkRun((ClusterName(source), sources[source]), end, end[1].clock, options)

    return Runtime(
        LINKS,
        lambda source: LinkOwner(partial(link, source)),
        chance=end[1].chance,
        keys=lambda _: sources.keys(),
        shares=share.assign,
        retry=LINK_ENDED,
    )


class EndlessCopiesError(Exception):
    """Copies are copied on and on, which would end no earlier than the world's time."""


async def watch_copies(brokers: Iterable[MemoryBroker], history: History) -> None:
    """Counts the records of topics that links copy, until there are too many.

    Raises:
        EndlessCopiesError: a topic has many times what was ever written.
    """
    while True:
        await asyncio.sleep(1)
        written = sum(len(txn.writes) for txn in history.transactions)
        for broker in brokers:
            for data in broker.partitions(TOPICS):
                log = broker.log(data)
                if log is not None and len(log.records) > COPIES_MAX + 10 * written:
                    raise EndlessCopiesError(f"{data} has {len(log.records)} of {written} records")


async def enable(connector: NetworkConnector, subscriptions: list[tuple[str, str]]) -> None:
    """Turns on, as `stilltide group enable` does, that positions of groups are carried over."""
    for group, topic in subscriptions:
        name = subscription_setting(topic, group)
        while True:
            try:
                await write_setting(connector, name, True, at_ms=connector.clock.now_ms())
                break
            except StilltideError:
                await asyncio.sleep(1)
