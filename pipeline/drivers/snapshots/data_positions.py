"""Reads the offsets of data partitions and coordinators' logs for a snapshot writer's probe.

*Source*: docs/protocols E1 (1) and (2), E8.
*Invariants*: all offsets of a data partition belong to the topic id that is returned with them.
"""

from collections.abc import Mapping, Sequence

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.pipeline.core.snapshots.buffer import DataPosition
from stilltide.pipeline.drivers.shared.named_partitions import missing_topic
from stilltide.schemas.topics import TXN_LOG
from stilltide.schemas.values import EndOffset, TopicPartition


async def data_positions(
    admin: LogAdmin, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, DataPosition]:
    """Log start, last stable offset and end of data partitions; a missing one is left out.

    Raises:
        RetriableError: the broker is away, or a topic was created or deleted meanwhile.
    """
    topics = sorted({data.topic for data in partitions})
    before = await admin.describe_topics(topics)
    there = [
        data
        for data in partitions
        if data.topic in before and data.partition < before[data.topic].partition_count
    ]
    starts = await admin.start_offsets(there)
    stable = await admin.end_offsets(there, committed=True)
    ends = await admin.end_offsets(there)
    after = await admin.describe_topics(topics)
    for data in there:
        same = data.topic in after and after[data.topic].topic_id == before[data.topic].topic_id
        if not same or data not in starts or data not in stable or data not in ends:
            raise RetriableError(
                "the topic was created or deleted while its offsets were read",
                topic=data.topic,
                partition=data.partition,
            )
    return {
        data: DataPosition(
            before[data.topic].topic_id, EndOffset(starts[data]), stable[data], ends[data]
        )
        for data in there
    }


async def coordinator_log_ends(admin: LogAdmin) -> Mapping[int, EndOffset]:
    """The end offset of every coordinator's log, by coordinator; raises `RetriableError`."""
    found = (await admin.describe_topics([TXN_LOG])).get(TXN_LOG)
    if found is None:
        raise missing_topic(TXN_LOG)
    logs = [TopicPartition(TXN_LOG, number) for number in range(found.partition_count)]
    ends = await admin.end_offsets(logs)
    if len(ends) < len(logs):
        raise RetriableError("a coordinator's log has no end offset yet", topic=TXN_LOG)
    return {log.partition: end for log, end in ends.items()}
