"""Which topics of a cluster compact although they hold records of coordinated transactions.

*Source*: docs/protocols C18. Snapshots name the topics that hold such records.
"""

from collections.abc import Sequence

from stilltide.connectors.ports.connector import GroupConnector, closing
from stilltide.pipeline.core.group_choice import fits
from stilltide.pipeline.drivers.shared.named_partitions import questions
from stilltide.pipeline.drivers.snapshots.listing import list_snapshots
from stilltide.pipeline.drivers.status.transactions import CoordinatorsLook
from stilltide.schemas.topics import TXN_LOG, TXN_SNAPSHOTS, compacts


async def compacted_topics(
    connector: GroupConnector, workers: str, allowed: Sequence[str]
) -> dict[str, int | None]:
    """The topics that compact, and since when a worker that runs has seen that (None: no one has).

    Args:
        connector: the cluster.
        workers: the group of the workers; one that has no members is not asked.
        allowed: names and patterns of topics that may compact.

    Raises:
        ConnectorError: the cluster is away, or refuses an answer.
        DecodeError: a snapshot is damaged; names its place.
    """
    async with (
        closing(connector.admin()) as admin,
        closing(connector.group_admin()) as groups,
        closing(CoordinatorsLook(connector, admin)) as look,
    ):
        system = await admin.describe_topics([TXN_SNAPSHOTS, TXN_LOG])
        if len(system) < len((TXN_SNAPSHOTS, TXN_LOG)):
            return {}  # no worker has ever run
        holding = {one.data.topic for one in await list_snapshots(connector)}
        names = sorted(it for it in holding if not fits(it, allowed))
        seen_at: dict[str, int | None] = {}
        for some in questions(names):
            configs = await admin.topic_configs(some)
            seen_at |= {it: None for it in configs if compacts(configs[it])}
        if seen_at:
            running = bool(await groups.described_members(workers))
            owners = await look.owners(worker_runs=running)
            seen_at |= {it: at_ms for it, at_ms in owners.compacted if it in seen_at}
        return seen_at
