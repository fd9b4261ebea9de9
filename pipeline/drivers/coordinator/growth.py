"""Adds coordinators to a cluster.

*Source*: docs/protocols C14.

Refuses: fewer coordinators than there are.
"""

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.pipeline.errors import CoordinatorCountError
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.topics import OPERATOR_REQUESTS, TXN_LOG, TXN_REQUESTS

log = get_logger(__name__)

_GROWING = (TXN_LOG, OPERATOR_REQUESTS, TXN_REQUESTS)


async def grow_coordinators(admin: LogAdmin, count: int) -> None:
    """C14: adds partitions until there are `count` coordinators, to the topics that exist.

    Raises:
        CoordinatorCountError: there are more than `count` coordinators; nothing was changed.
        RetriableError: the broker is away; partitions may have been added.
    """
    found = await admin.describe_topics(_GROWING)
    for name in _GROWING:
        if name in found and found[name].partition_count > count:
            there = found[name].partition_count
            raise CoordinatorCountError(
                f"the cluster has {there} coordinators, and the setting coordinators is {count}",
                detail="the number of coordinators never falls: their logs hold transactions",
                hint=f"set coordinators to {there}, or to more",
                topic=name,
            )
    for name in _GROWING:
        if name in found and found[name].partition_count < count:
            await admin.add_partitions(name, count)
            before = found[name].partition_count
            log.info("coordinators_added", topic=name, before=before, now=count)
