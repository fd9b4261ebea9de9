"""The plan of an audit: topics, checks, bounds, and the size of the report.

Resolves the partitions and offsets of an audit, and the evidence known before data is read.

*Source*: docs/protocols F4, E4. Every bound is resolved to an offset once, since Spark resolves
"latest" at each evaluation again.

*Invariants*: no end is above the last stable offset that was read with it.

Refuses: topics that do not exist, offsets outside the log, bounds of partitions that are not
audited.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from stilltide.connectors.errors import FatalError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector, closing
from stilltide.pipeline.core.replicas import AUTOMATIC, WantedReplicas
from stilltide.pipeline.drivers.native.evidence import deleted_meanwhile
from stilltide.pipeline.drivers.snapshots.outcomes import Progress, TopicOutcomes, gather_evidence
from stilltide.pipeline.jobs.audits.report import Check
from stilltide.pipeline.jobs.bounds import Bounds, narrowed
from stilltide.schemas.topics import compacts
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

EVIDENCE_MAX = 20
"""Findings of each kind that a report lists by default; all findings are counted."""

STEPS = 7
"""Calls of `AuditProgress.step` in a run of all checks."""

COORDINATED = frozenset({Check.HEADERS, Check.ORPHANS, Check.LATE, Check.COUNTS, Check.ATOMICITY})
"""The checks of coordinated transactions: one scan by Spark decides all of them."""


class AuditProgress(Protocol):
    """Shows the progress of a run."""

    def step(self, text: str) -> None:
        """Begins the next step; a run has `STEPS` steps at most."""
        ...

    def note(self, text: str) -> None:
        """Says what the step is about to do."""
        ...

    def share(self, done: float) -> None:
        """Shows the share of the step that is done, from 0 to 1."""
        ...


class Silent:
    """An `AuditProgress` that shows nothing."""

    def step(self, text: str) -> None:
        """Shows nothing."""

    def note(self, text: str) -> None:
        """Shows nothing."""

    def share(self, done: float) -> None:
        """Shows nothing."""


@dataclass(frozen=True)
class AuditPlan:
    """What to audit.

    Attributes:
        topics: names of topics, at least one.
        checks: which checks to run. `Check.LEAKS` is empty without `tables`.
        first: offsets to begin at, instead of the log starts.
        until: offsets to end at, exclusive, instead of the last stable offsets.
        tables: paths of Parquet tables that were made from the topics.
        digest: whether to compute each partition's content digest, which costs as much as a scan.
        accept_unchecked: whether `Check.COUNTS` names the offsets below which record counts of
            committed transactions are gone without being unknown (C6). For a caller that knows the
            records from elsewhere, or has audited the offsets while their markers were kept.
        allow_compacted: names and patterns of topics that may compact although they hold records of
            coordinated transactions, because none of their keys is written again (C18).
        index_partitions: partition count of aborted-index if the topic is missing; the run first
            brings the topic up to date. None: the run leaves the topic as it is.
        index_replicas: replica count of aborted-index if the run creates the topic.
        evidence_max: number of findings of each kind that the report lists, >= 0; all findings are
            counted.
    """

    topics: Sequence[str]
    checks: Collection[Check] = frozenset(Check)
    first: Bounds = field(default_factory=dict)
    until: Bounds = field(default_factory=dict)
    tables: Sequence[str] = ()
    digest: bool = False
    accept_unchecked: bool = False
    allow_compacted: Sequence[str] = ()
    index_partitions: int | None = None
    index_replicas: WantedReplicas = AUTOMATIC
    evidence_max: int = EVIDENCE_MAX


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
    progress: Progress = lambda _: None,
) -> Scope:
    """The scope of a run, as of now.

    Args:
        connector: the cluster.
        topics: names of topics, at least one.
        first: offsets to begin at, instead of the log starts.
        until: offsets to end at, exclusive, instead of the last stable offsets.
        progress: called at the beginning of each slow step.

    Raises:
        ConfigError: a bound names a partition that is not audited, or a range ends before it
            begins.
        OffsetOutOfRangeError: a bound is outside the log.
        FatalError, SnapshotError, DecodeError, RetriableError: as `gather_evidence` raises.
    """
    evidence = await gather_evidence(
        connector,
        topics,
        progress,
        outcomes_required=False,
        kept_markers_max=KEPT_MARKERS_MAX,
    )
    logs = evidence.data
    data = narrowed(logs, first, until)
    async with closing(connector.admin()) as admin:
        marks = await admin.end_offsets([log.data for log in logs])
        configs = await admin.topic_configs(sorted(set(topics)))
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
