"""Waits until a group can go on at one cluster: until all known claims have been carried over.

*Source*: docs/protocols I. The controllers move the group; this module only watches, and refuses.

Refuses: a group that has members anywhere, since they read on meanwhile, and a cluster without a
connector.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stilltide.connectors.errors import ActiveGroupError, RetriableError
from stilltide.connectors.ports.connector import GroupConnector
from stilltide.pipeline.config.clusters import unknown_cluster
from stilltide.pipeline.core.groups.group import Standing
from stilltide.pipeline.drivers.groups.places import Told
from stilltide.pipeline.drivers.groups.report import Standpoint, describe_group, require_group
from stilltide.pipeline.errors import UnavailableError
from stilltide.schemas.retry import FAIL_OVER
from stilltide.schemas.values import ClusterName

AWAY_S = 5.0
"""Time without an answer after which a cluster other than the target counts as away."""

_ARRIVED = (Standing.AT_THE_PREFIX, Standing.NOTHING_CLAIMED)


class FailOver(NamedTuple):
    """The result of a fail-over.

    Attributes:
        target: the group on each data partition of the target cluster.
        away: clusters that did not answer.
        complete: whether all known claims are carried over and no cluster is away.
    """

    target: Sequence[Standpoint]
    away: Sequence[ClusterName]
    complete: bool


async def fail_over(
    connectors: Mapping[ClusterName, GroupConnector],
    topic: str,
    group: str,
    target: ClusterName,
    *,
    dry_run: bool,
    timeout_s: float,
    told: Told = lambda _text: None,
) -> FailOver:
    """Checks the group repeatedly until no claim is left to carry over, at most for `timeout_s`.

    `told` is called with the progress of a long read.

    Raises:
        ConfigError: no cluster has the target's name.
        ActiveGroupError: the group has members on a cluster.
        UnknownGroupError: no cluster knows the group, and no cluster is away.
        FatalError, UnavailableError, DecodeError: see `describe_group`.
    """
    if target not in connectors:
        raise unknown_cluster(target, dict.fromkeys(map(str, connectors)))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    away = await _away(connectors, target)
    reached = {name: one for name, one in connectors.items() if name not in away}
    while True:
        found = await describe_group(reached, topic, group, timeout_s=timeout_s, told=told)
        if not away:
            require_group(found, topic, group)
        for one in found:
            if one.seen.active:
                raise ActiveGroupError(
                    f"group {group} is to go on at {target}, and has members on {one.cluster}",
                    hint="stop them; what they read meanwhile would be read again",
                    topic=topic,
                )
        here = [one for one in found if one.cluster == target]
        settled = all(one.read_again == 0 and one.standing in _ARRIVED for one in here)
        if settled or dry_run or loop.time() > deadline:
            return FailOver(here, away, settled and not away)
        await asyncio.sleep(FAIL_OVER.wait_s())


async def _away(
    connectors: Mapping[ClusterName, GroupConnector], target: ClusterName
) -> list[ClusterName]:
    """The clusters other than the target that do not answer."""
    away: list[ClusterName] = []
    for name, connector in connectors.items():
        if name == target:
            continue
        admin = connector.admin()
        try:
            async with asyncio.timeout(AWAY_S):
                await admin.cluster_id()
        except (RetriableError, UnavailableError, TimeoutError):
            away.append(name)
        finally:
            await admin.close()
    return away
