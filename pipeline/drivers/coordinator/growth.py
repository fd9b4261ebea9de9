"""Adds coordinators to a running cluster, one for each new partition of their topics.

*Source*: docs/protocols C14.

*Invariants*: txn-log grows before txn-requests, so that a coordinator that can be asked has a log,
and a snapshot writer that reads the partitions of txn-log finds every such coordinator (E1). The
topics never shrink.
"""

import asyncio

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.pipeline.errors import CoordinatorCountError
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.topics import TXN_LOG, TXN_REQUESTS

log = get_logger(__name__)

_LOOK_AGAIN_S = 0.05
_SHOWN_S = 30.0
"""Longest wait until the metadata show partitions that were added."""


async def grow_coordinators(admin: LogAdmin, count: int) -> None:
    """Adds partitions until there are `count` coordinators; topics that do not exist are left out.

    Raises:
        CoordinatorCountError: there are more than `count` coordinators; nothing was changed.
        RetriableError: the broker is away; partitions may have been added.
    """
    found = await admin.describe_topics([TXN_LOG, TXN_REQUESTS])
    for name in (TXN_LOG, TXN_REQUESTS):
        if name in found and found[name].partition_count > count:
            there = found[name].partition_count
            raise CoordinatorCountError(
                f"the cluster has {there} coordinators, and the setting coordinators is {count}",
                detail="the number of coordinators never falls: their logs hold transactions",
                hint=f"set coordinators to {there}, or to more",
                topic=name,
            )
    for name in (TXN_LOG, TXN_REQUESTS):
        if name in found and found[name].partition_count < count:
            await admin.add_partitions(name, count)
            await _shown(admin, name, count)
            before = found[name].partition_count
            log.info("coordinators_added", topic=name, before=before, now=count)


async def _shown(admin: LogAdmin, name: str, count: int) -> None:
    """Returns once the metadata show the partitions."""
    deadline_s = asyncio.get_running_loop().time() + _SHOWN_S
    while True:
        found = (await admin.describe_topics([name])).get(name)
        if found is not None and found.partition_count >= count:
            return
        if asyncio.get_running_loop().time() > deadline_s:
            raise RetriableError(
                "partitions that were added are not in the metadata",
                hint="look at the log of the broker; then start the worker again",
                topic=name,
            )
        await asyncio.sleep(_LOOK_AGAIN_S)
