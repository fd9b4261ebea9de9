"""The state of all clusters at one moment, as values: what `stilltide status` shows.

*Source*: docs/operating.md, Status. Every value is part of a `Aged`, which says when the value was
read, and why a newer one could not be read.

*Invariants*: a value that could not be read again stays, with the time when it was read; nothing
that was never read looks like an empty result.

Refuses: to judge; `findings` does that.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from stilltide.pipeline.core.outside_log import OutsideLog
from stilltide.pipeline.core.status.values import (
    AuditStatus,
    BrokersStatus,
    CompactedStatus,
    CoordinatorStatus,
    EndedStatus,
    GroupStatus,
    IndexStatus,
    LinkStatus,
    ReaderHold,
    SnapshotStatus,
    TransactionsStatus,
    WorkerStatus,
)
from stilltide.schemas.values import ClusterName

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)  # with slots, `Aged[int]()` fails
class Aged(Generic[T]):
    """A part of the state, when it was read, and why it could not be read again.

    Attributes:
        value: what the last read that succeeded has found; None: none has succeeded yet.
        read_ms: end of that read, milliseconds since 1970; None: none has succeeded yet.
        problem: why the newest read has failed; empty: it succeeded, or there was none yet.
        hint: the next step to end the problem; may be empty.
    """

    value: T | None = None
    read_ms: int | None = None
    problem: str = ""
    hint: str = ""

    def age_ms(self, now_ms: int) -> int | None:
        """Age of the value; None without a value."""
        return None if self.read_ms is None else max(0, now_ms - self.read_ms)

    def of(self, pick: Callable[[T], U]) -> "Aged[U]":
        """A part of the value, with the same age and problem."""
        value = None if self.value is None else pick(self.value)
        return Aged(value, self.read_ms, self.problem, self.hint)


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """One cluster.

    Attributes:
        name: name of the cluster in the settings.
        address: addresses of its brokers in the settings.
        brokers: the brokers; a problem means that the cluster is away, and that no other part of
            this cluster was asked for.
        workers: members of the workers' group, by host and member id.
        coordinators: the transaction coordinators, by number.
        ended: owners and links of the workers that an error has ended; their workers try them again
            by themselves.
        transactions: transactions that have not ended.
        holds: what holds readers of committed data back, the longest hold first.
        snapshots: snapshots of aborted transactions, by topic and partition.
        index: the index of aborted native transactions, by topic and partition.
        outside: commits of groups, replicated or not, that lie outside of their logs.
        compacted: topics that compact although they hold records of coordinated transactions.
    """

    name: ClusterName
    address: str
    brokers: Aged[BrokersStatus] = field(default_factory=Aged[BrokersStatus])
    workers: Aged[tuple[WorkerStatus, ...]] = field(default_factory=Aged[tuple[WorkerStatus, ...]])
    coordinators: Aged[tuple[CoordinatorStatus, ...]] = field(
        default_factory=Aged[tuple[CoordinatorStatus, ...]]
    )
    ended: Aged[tuple[EndedStatus, ...]] = field(default_factory=Aged[tuple[EndedStatus, ...]])
    transactions: Aged[TransactionsStatus] = field(default_factory=Aged[TransactionsStatus])
    holds: Aged[tuple[ReaderHold, ...]] = field(default_factory=Aged[tuple[ReaderHold, ...]])
    snapshots: Aged[tuple[SnapshotStatus, ...]] = field(
        default_factory=Aged[tuple[SnapshotStatus, ...]]
    )
    index: Aged[tuple[IndexStatus, ...]] = field(default_factory=Aged[tuple[IndexStatus, ...]])
    outside: Aged[tuple[OutsideLog, ...]] = field(default_factory=Aged[tuple[OutsideLog, ...]])
    compacted: Aged[tuple[CompactedStatus, ...]] = field(
        default_factory=Aged[tuple[CompactedStatus, ...]]
    )

    @property
    def away(self) -> bool:
        """Whether no broker answered the newest question."""
        return bool(self.brokers.problem)

    def parts(self) -> Iterator[tuple[str, Aged[Any]]]:
        """The parts with their names, in the order of the attributes."""
        yield "brokers", self.brokers
        yield "workers", self.workers
        yield "coordinators", self.coordinators
        yield "ended", self.ended
        yield "transactions", self.transactions
        yield "holds", self.holds
        yield "snapshots", self.snapshots
        yield "index", self.index
        yield "outside", self.outside
        yield "compacted", self.compacted


@dataclass(frozen=True, slots=True)
class SystemStatus:
    """All clusters at one moment.

    Attributes:
        now_ms: when the state was put together, milliseconds since 1970; ages count from here.
        clusters: in the order of the settings.
        links: links into each cluster, by name of the target.
        groups: replicated groups on each cluster, by name of the cluster.
        audits: the last audit in each directory of reports that was named, by directory.
    """

    now_ms: int
    clusters: tuple[ClusterSeen, ...]
    links: Mapping[ClusterName, Aged[tuple[LinkStatus, ...]]]
    groups: Aged[tuple[GroupStatus, ...]] = field(default_factory=Aged[tuple[GroupStatus, ...]])
    audits: Mapping[str, Aged[AuditStatus]] = field(default_factory=dict[str, Aged[AuditStatus]])

    def cluster(self, name: ClusterName) -> ClusterSeen | None:
        """The cluster of this name; None: the settings do not name it."""
        return next((cluster for cluster in self.clusters if cluster.name == name), None)
