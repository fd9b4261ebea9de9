"""The plan of an audit: topics, checks, bounds, and the size of the report."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stilltide.pipeline.core.replicas import AUTOMATIC, WantedReplicas
from stilltide.pipeline.jobs.audits.report import Check
from stilltide.pipeline.jobs.bounds import Bounds

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

    def share(self, done: float) -> None:
        """Shows the share of the step that is done, from 0 to 1."""
        ...


class Silent:
    """An `AuditProgress` that shows nothing."""

    def step(self, text: str) -> None:
        """Shows nothing."""

    def share(self, done: float) -> None:
        """Shows nothing."""


@dataclass(frozen=True)
class AuditPlan:
    """What to audit.

    Attributes:
        topics: names of topics, at least one.
        checks: which checks to run. `Check.LEAKS` runs only with `tables`.
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
