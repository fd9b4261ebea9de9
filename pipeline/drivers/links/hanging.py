"""Ends what Kafka has left open of the transactions of earlier link drivers on the target.

*Source*: docs/protocols H2; what hangs is judged by pipeline.core.native.hanging.

*Invariants*: a part of a transaction gets the outcome that the positions partition shows. If the
bucket of its copies is there, they are committed; if not, they are aborted. A part in the positions
partition itself, or in one of signals, is aborted, since no reader has seen its records. Only the
link's own transactional ids are judged: brokers hide the ids that a client may not describe, and a
live transaction of such an id would look as if it hung.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stilltide.pipeline.core.links.copying import Topics
from stilltide.pipeline.core.links.link import Link
from stilltide.pipeline.core.native.hanging import OpenNativeTransaction
from stilltide.pipeline.drivers.links.sides import Side
from stilltide.pipeline.drivers.links.writer import LinkWriter, link_ids
from stilltide.pipeline.drivers.native.open_transactions import open_transactions
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.topics import REPLICATION_MARKERS, REPLICATION_POSITIONS
from stilltide.schemas.values import ClusterName, TopicPartition

_log = get_logger(__name__)


async def end_hanging_positions(source: ClusterName, target: Side) -> None:
    """Aborts what hangs of the link's own in positions and signals, before they are read.

    A reader of committed data would wait in front of such a part for ever.

    Raises:
        RetriableError: the target is away.
        FatalError: the link may not ask for producers, or may not write markers.
    """
    partitions = [
        one
        for topic in (REPLICATION_POSITIONS, REPLICATION_MARKERS)
        for one in target.partitions(topic)
    ]
    own = link_ids(source, target)

    def was_committed(one: OpenNativeTransaction) -> bool | None:
        beginning, number = (one.transactional_id or "").rpartition("-")[::2]
        return False if f"{beginning}-" == own and number.isdigit() else None

    await _end_hanging(target, partitions, was_committed)


async def end_hanging_copies(
    target: Side, writer: LinkWriter, machine: Link[Any], topics: Mapping[TopicPartition, Topics]
) -> None:
    """Ends what hangs of the link's own transactions in data partitions, before it copies to them.

    Args:
        target: the cluster to which the link copies.
        writer: writer of the link, which has fenced its transactional id.
        machine: the link, which has read its buckets.
        topics: the data partitions and their topics as of now.

    Raises:
        RetriableError: the target is away.
        FatalError: a topic is gone, or the link may not ask for producers or write markers.
    """

    def was_committed(one: OpenNativeTransaction) -> bool | None:
        if one.transactional_id != writer.transactional_id:
            return None
        partition = machine.partitions.get(one.data)
        if partition is None:
            return False
        return one.open_from < partition.index.copied_end(topics[one.data].target)

    await _end_hanging(target, list(topics), was_committed)
    writer.cleared.update(topics)


async def _end_hanging(
    target: Side,
    partitions: Sequence[TopicPartition],
    outcome: Callable[[OpenNativeTransaction], bool | None],
) -> None:
    """Ends hanging transactions as `outcome` says; None: the transaction is left as it is."""
    native = target.connector.native_transactions(f"link-to-{target.name}")
    if native is None:
        return
    try:
        for one in await open_transactions(native, partitions):
            committed = outcome(one) if one.hanging else None
            if committed is None:
                continue
            _log.warning(
                "ending a hanging transaction",
                cluster=target.name,
                partition=str(one.data),
                first=one.open_from,
                transactional_id=one.transactional_id,
                committed=committed,
            )
            await native.write_marker(one.data, one.producer, committed=committed)
    finally:
        await native.close()
