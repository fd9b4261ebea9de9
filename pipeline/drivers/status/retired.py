"""Links that were retired for good: an operator has said so, and they are not shown any more.

*Source*: docs/operating.md, Status.

*Invariants*: no rule depends on it: groups and copies see the link as before. A link that was
forgotten and writes a beat, or meets an error, is shown again.
"""

from collections.abc import Mapping

from stilltide.connectors.clock import Clock
from stilltide.connectors.errors import FatalError
from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.core.status.values import LinkStatus
from stilltide.pipeline.drivers.shared.dynamic_settings import DynamicSettings, write_setting
from stilltide.pipeline.drivers.status.links import LinksTail
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.settings import forgotten_link_setting
from stilltide.schemas.topics import REPLICATION_POSITIONS, SETTINGS
from stilltide.schemas.values import ClusterName

PATIENCE_S = 30.0
"""Longest absence of the cluster."""


def is_retired(link: LinkStatus, forgotten: Mapping[ClusterName, int]) -> bool:
    """Whether a link was forgotten, and has given no sign of life since."""
    at_ms = forgotten.get(ClusterName(link.source))
    return at_ms is not None and not link.running and (link.sign_ms or 0) <= at_ms


async def forgotten_links(connector: Connector) -> dict[ClusterName, int]:
    """Links into a cluster that were forgotten; none where no worker has ever run.

    Raises:
        UnavailableError: the cluster stayed away.
    """
    settings = DynamicSettings(connector, patience_s=PATIENCE_S)
    try:
        await settings.open()
        return settings.forgotten_links()
    except FatalError as error:
        if error.topic == SETTINGS:
            return {}
        raise
    finally:
        await settings.close()


async def forget_link(
    target: ClusterName, connector: Connector, source: ClusterName, clock: Clock, *, sure: bool
) -> LinkStatus:
    """Forgets a link that does not run; unless `sure` it only looks for the link.

    Args:
        target: name of the cluster into which the link copied.
        connector: that cluster.
        source: name of the link's source, or of the publish.
        clock: tells the age of beats.
        sure: whether to write.

    Raises:
        RefusedError: no such link is known, or it runs; nothing was changed.
        FatalError: a system topic does not exist.
        RetriableError: the cluster is away.
    """
    admin = connector.admin()
    tail = LinksTail(target, connector, admin, clock)
    try:
        await tail.read_on()
        known = tail.sources()
        link = tail.status(source, (), clock.now_ms())
    finally:
        await tail.close()
        await admin.close()
    if source not in known:
        raise RefusedError(
            f"no link from {source} copies to {target}",
            detail=f"known are those from {', '.join(sorted(known)) or 'nowhere'}",
            hint="`stilltide status` shows the links with their sources",
            topic=REPLICATION_POSITIONS,
        )
    if link.running or link.sign_ms is None:
        raise RefusedError(
            f"the link from {source} to {target} may run",
            detail="it was heard of lately, or is of a version that gives no sign of life",
            hint="stop the link first, and wait 15 s",
            topic=REPLICATION_POSITIONS,
        )
    if sure:
        name, now_ms = forgotten_link_setting(source), clock.now_ms()
        await write_setting(connector, name, link.sign_ms, at_ms=now_ms)
    return link
