"""What is known of brokers, workers, transactions, links, groups, snapshots and audits: values.

*Source*: docs/operating.md, Status. Times are milliseconds since 1970. `SystemStatus` is the state
of all clusters at one moment; each part of it is an `Aged`, which says when the value was read, and
why a newer one could not be read.

*Invariants*: a value that could not be read again stays, with the time when it was read; nothing
that was never read looks like an empty result.

Refuses: to judge; `findings` does that.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from stilltide.pipeline.core.groups.group import Standing
from stilltide.pipeline.core.native.hanging import is_own
from stilltide.pipeline.core.outside_log import OutsideLog
from stilltide.schemas.values import ClusterName, EndOffset, Offset, TopicPartition


class BrokersStatus(NamedTuple):
    """The brokers of a cluster.

    Attributes:
        up: number of brokers that are up, >= 1.
        registered: number of brokers that the cluster knows; 0: it cannot tell (before Kafka 4.0).
    """

    up: int
    registered: int

    @property
    def missing(self) -> int:
        """Number of brokers that are known and not up."""
        return max(0, self.registered - self.up)


class WorkerStatus(NamedTuple):
    """A worker: a member of the workers' group.

    Attributes:
        member: Kafka's id of the member.
        host: address from which the worker is connected.
        version: version of Stilltide; None: the member has another name.
        coordinators: numbers of the coordinators that are assigned to the worker.
    """

    member: str
    host: str
    version: str | None
    coordinators: tuple[int, ...]


class CoordinatorStatus(NamedTuple):
    """A transaction coordinator.

    Attributes:
        number: number of the coordinator.
        serving: whether it has answered.
        problem: why it does not serve, with the place (B8, C17); empty: it serves, or is silent.
        epoch: offset of its owner's fence; None: it has not answered.
        commit_count, abort_count: transactions that have ended so since that fence; None: it has
            not answered, or an earlier worker does not tell.
    """

    number: int
    serving: bool
    problem: str = ""
    epoch: Offset | None = None
    commit_count: int | None = None
    abort_count: int | None = None


class EndedStatus(NamedTuple):
    """An owner or link of a worker that does not run, since an error has ended it (B8).

    Attributes:
        kind: kind of the owner, such as `links`.
        name: number of the owner's partition, or name of the link's source.
        ended_ms: when it has ended first.
        why: place and cause, and when it is tried again.
        hint: the next step; may be empty.
    """

    kind: str
    name: str
    ended_ms: int
    why: str
    hint: str

    @property
    def shown(self) -> str:
        """The owner in words."""
        return f"the link from {self.name}" if self.kind == "links" else f"{self.kind} {self.name}"


class CompactedStatus(NamedTuple):
    """A topic with records of coordinated transactions that compacts (C18).

    Attributes:
        topic: name of the topic.
        seen_ms: when a worker that runs has seen that first.
    """

    topic: str
    seen_ms: int


TIME_OUT = "time-out"
"""Who aborts a transaction that was open for too long."""


class OldestTransaction(NamedTuple):
    """A transaction that has not ended.

    Attributes:
        txn: coordinator and sequence, such as `0:17`.
        state: OPEN, PREPARED, COMMITTING or ABORTING.
        opened_ms: when it was opened.
        timeout_ms: time after which its coordinator aborts it.
        client: name and key of its client; empty if unknown.
        partition_count: number of partitions that it may write to.
        aborted_by: who aborts it: `its client`, `time-out`, `an operator`, `the holder of its
            token`; empty: nobody, or that is not known.
        prepared_ms: when it was prepared (L1); None: it was not.
        decider: name of what decides a prepared one when its client does not; may be empty.
    """

    txn: str
    state: str
    opened_ms: int
    timeout_ms: int
    client: str
    partition_count: int
    aborted_by: str = ""
    prepared_ms: int | None = None
    decider: str = ""


LISTED_MAX = 100
"""Transactions of a cluster that are listed one by one; the others are counted."""


class TransactionsStatus(NamedTuple):
    """The transactions of a cluster that have not ended.

    Attributes:
        open_count, committing_count, aborting_count, prepared_count: number in each state.
        oldest: the oldest of them; None: there are none.
        silent: coordinators that are not counted, since they did not answer.
        listed: the oldest of them by age, at most `LISTED_MAX`.
        aborted_by: who has aborted the last transactions, as in `OldestTransaction`.
        reasons: what operators and resolvers have decided of the last prepared ones: who, and why.
    """

    open_count: int
    committing_count: int
    aborting_count: int
    oldest: OldestTransaction | None
    silent: tuple[int, ...]
    listed: tuple[OldestTransaction, ...] = ()
    aborted_by: Mapping[str, str] = MappingProxyType({})
    prepared_count: int = 0
    reasons: Mapping[str, str] = MappingProxyType({})


class ReaderHold(NamedTuple):
    """A transaction without outcome, beyond whose first record no reader of committed data comes.

    Attributes:
        data: the partition.
        offset: first record of the transaction that readers wait at.
        behind: offsets from there to the end of the log.
        native: whether it is one of Kafka's own transactions.
        holder: the transaction: `0:17`, or the transactional id or producer of a native one.
        client: name and key of the client of a coordinated transaction; else empty.
        since_ms: when it was opened, or last written to if it is native; None: unknown.
        hanging: whether no coordinator will ever end it.
        prepared: whether it is prepared: only a decision ends it (L7).
    """

    data: TopicPartition
    offset: Offset
    behind: int
    native: bool
    holder: str
    client: str
    since_ms: int | None
    hanging: bool
    prepared: bool = False

    @property
    def is_own(self) -> bool:
        """Whether it is a native one of a link, publish or index of Stilltide."""
        return self.native and is_own(self.holder)


class LinkPartition(NamedTuple):
    """A data partition of a link.

    Attributes:
        data: the partition, by its name on the target.
        source_to: end offset on the source up to which the link has passed.
        lag: offsets of the source that are not passed; None: the source is away, or its topic was
            created again.
    """

    data: TopicPartition
    source_to: EndOffset
    lag: int | None


class LinkStatus(NamedTuple):
    """A link: copying from one cluster to another, or to another topic of the same cluster.

    Attributes:
        source: name of the source, or of the publish, such as `publish:orders:orders.committed`.
        target: cluster to which the link copies.
        beat_ms: when the link was last heard of; None: a link that writes no beats, or has written
            none yet.
        running: whether its last beat is young enough (I13); True for a link that has copied and
            writes no beats; None: not known, since `away` does not answer.
        partitions: by topic and number.
        problem: why a worker has ended the link, with the place; empty: none has said so.
        rate: offsets of the source that the link passes in a second, over the last ten seconds;
            None: not watched for so long.
        last_error: the last error of the link, with the place (H9), wherever and however often it
            has run since; empty: none.
        last_error_ms: when it happened, by the link's clock; None: see `last_error`.
        last_error_hint: the next step that the error named; may be empty.
        away: its source or target, which does not answer; empty: both do.
    """

    source: str
    target: ClusterName
    beat_ms: int | None
    running: bool | None
    partitions: tuple[LinkPartition, ...]
    problem: str = ""
    rate: float | None = None
    last_error: str = ""
    last_error_ms: int | None = None
    last_error_hint: str = ""
    away: str = ""

    @property
    def sign_ms(self) -> int | None:
        """When the link last gave any sign of life; None: of a link that writes no beats."""
        return max(
            (it for it in (self.beat_ms, self.last_error_ms) if it is not None), default=None
        )

    @property
    def lag(self) -> int | None:
        """Offsets that are not passed, over all partitions; None: not known of one of them."""
        lags = [partition.lag for partition in self.partitions]
        return None if None in lags else sum(lag or 0 for lag in lags)


class GroupPartition(NamedTuple):
    """A replicated group on one data partition of one cluster.

    Attributes:
        partition: number of the data partition.
        offset: committed offset; None: none.
        decided_end: offset up to which readers come.
        standing: why the position is what it is.
        read_again: records that a `Subscription` reads again if it begins here now.
        read_again_others: most records that any other consumer reads again.
        why: what keeps the position from advancing, with the next step.
        urgent: whether that needs a person, and does not pass by itself.
    """

    partition: int
    offset: Offset | None
    decided_end: EndOffset
    standing: Standing
    read_again: int
    read_again_others: int
    why: str
    urgent: bool


class GroupStatus(NamedTuple):
    """A replicated group on one topic of one cluster.

    Attributes:
        topic: the topic.
        group: name of the group.
        cluster: the cluster.
        active: whether the group has members there.
        partitions: by number; empty if they could not be read.
        read_ms: when they were read; None: never.
        problem: why they could not be read again; empty: they were.
    """

    topic: str
    group: str
    cluster: ClusterName
    active: bool
    partitions: tuple[GroupPartition, ...]
    read_ms: int | None
    problem: str = ""

    @property
    def read_again(self) -> int:
        """Records that a fail-over to this cluster reads again now, over all partitions."""
        return sum(partition.read_again for partition in self.partitions)

    @property
    def read_again_others(self) -> int:
        """The same, for any consumer that is no `Subscription`."""
        return sum(partition.read_again_others for partition in self.partitions)


class SnapshotStatus(NamedTuple):
    """The snapshot of a data partition.

    Attributes:
        data: the data partition.
        max_read_position: every transaction with a record below has ended; None: no end.
        behind: offsets from there to the end of the partition; None: unknown.
        parts: number of sealed parts.
        bytes: size of end and parts.
        aborted: number of aborted transactions; None: a part is missing.
        written_ms: when the end was written; None: no end.
        problem: why readers cannot use it; empty: they can.
    """

    data: TopicPartition
    max_read_position: EndOffset | None
    behind: int | None
    parts: int
    bytes: int
    aborted: int | None
    written_ms: int | None
    problem: str


class IndexStatus(NamedTuple):
    """The index of aborted native transactions of a data partition.

    Attributes:
        data: the data partition.
        covered_to: end of the offsets that the index covers.
        lag: offsets from there to the last stable offset; None: the partition does not exist.
        ranges: number of ranges of aborted batches.
        problem: why the index cannot be used; empty: it can.
    """

    data: TopicPartition
    covered_to: EndOffset
    lag: int | None
    ranges: int
    problem: str


class AuditStatus(NamedTuple):
    """The last audit in a directory of reports.

    Attributes:
        verdict: `valid`, `invalid`, `unknown` or `empty`.
        findings: number of findings.
        topics: the topics that were checked.
        ended_ms: when the audit ended.
    """

    verdict: str
    findings: int
    topics: tuple[str, ...]
    ended_ms: int


STANDING_WORDS = MappingProxyType(
    {
        Standing.AT_THE_PREFIX: "in sync",
        Standing.NOTHING_CLAIMED: "nothing read",
        Standing.MOVING: "moving",
        Standing.ACTIVE: "reads here",
        Standing.RESET_BY_HAND: "reset by hand",
        Standing.BEYOND_THE_END: "beyond the end",
        Standing.BEYOND_WHAT_IS_DECIDED: "beyond the decided end",
        Standing.RESET_REFUSED: "reset refused",
        Standing.PUBLISHED_LATELY: "just published",
    }
)
"""Each standing of a group in two or three words; JSON has the whole sentence."""


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
        sign_ms: when it last answered, or a link has told of it last; None: not known, or it
            answers.
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
    sign_ms: int | None = None

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
        links: links into each cluster, by name of the target; of a cluster that is away those that
            were read before, or that other clusters tell of.
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
