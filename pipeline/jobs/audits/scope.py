"""Resolves the partitions and offsets of an audit, and the evidence known before data is read.

*Source*: docs/protocols F4, E4. Every bound is resolved to an offset once, since Spark resolves
"latest" at each evaluation again.

*Invariants*: no end is above the last stable offset that was read with it.

Refuses: topics that do not exist, offsets outside the log, bounds of partitions that are not
audited.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stilltide.connectors.errors import FatalError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.drivers.native.batch_walk import deleted_meanwhile
from stilltide.pipeline.drivers.snapshots.outcomes import TopicOutcomes, gather_evidence
from stilltide.pipeline.jobs.bounds import Bounds, narrowed
from stilltide.schemas.topics import compacts
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

KEPT_MARKERS_MAX = 2_000_000
"""Most absorbed markers that an audit reads for their record counts: a gigabyte of memory. Counts
of older transactions are named as no longer known (C6, E9)."""


@dataclass(frozen=True)
class Scope:
    """The audited ranges of some topics, and the evidence that decides their records.

    Attributes:
        evidence: outcomes of coordinated transactions; `evidence.data` holds the audited ranges.
        logs: whole logs, `[log start, last stable offset)`, in the order of `evidence.data`.
        high_watermarks: the high watermark of each partition.
        compacted: compacted topics, whose cleaner may remove records between others.
    """

    evidence: TopicOutcomes
    logs: tuple[OffsetRange, ...]
    high_watermarks: Mapping[TopicPartition, EndOffset]
    compacted: frozenset[str]


async def resolve(
    connector: Connector,
    topics: Sequence[str],
    first: Bounds,
    until: Bounds,
) -> Scope:
    """The scope of a run, as of now.

    Args:
        connector: the cluster.
        topics: names of topics, at least one.
        first: offsets to begin at, instead of the log starts.
        until: offsets to end at, exclusive, instead of the last stable offsets.

    Raises:
        ConfigError: a bound names a partition that is not audited, or a range ends before it
            begins.
        OffsetOutOfRangeError: a bound is outside the log.
        FatalError, SnapshotError, DecodeError, RetriableError: as `gather_evidence` raises.
    """
    evidence = await gather_evidence(
        connector, topics, outcomes_required=False, kept_markers_max=KEPT_MARKERS_MAX
    )
    logs = evidence.data
    data = narrowed(logs, first, until)
    admin = connector.admin()
    try:
        marks = await admin.end_offsets([log.data for log in logs])
        configs = await admin.topic_configs(sorted(set(topics)))
    finally:
        await admin.close()
    compacted = frozenset(name for name, config in configs.items() if compacts(config))
    return Scope(replace(evidence, data=data), logs, marks, compacted)


async def check_unmoved(admin: LogAdmin, scope: Scope) -> None:
    """Returns if the logs still hold everything that was read.

    Raises:
        FatalError: records were deleted, a log was cut off, or a topic was deleted or created
            again.
        RetriableError: the broker is away.
    """
    data = scope.evidence.data
    places = [read.data for read in data]
    starts = await admin.start_offsets(places)
    ends = await admin.end_offsets(places, committed=True)
    described = await admin.describe_topics(sorted(scope.evidence.topic_ids))
    for read in data:
        topic = described.get(read.data.topic)
        if topic is None or topic.topic_id != scope.evidence.topic_ids[read.data.topic]:
            raise FatalError(
                "the topic was deleted or created again while it was read",
                hint="start the audit again",
                topic=read.data.topic,
            )
        start, end = starts.get(read.data, -1), ends.get(read.data, -1)
        if start > read.start or end < read.end:
            raise deleted_meanwhile(read, Offset(start))
