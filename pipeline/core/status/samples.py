"""The last half hour of all clusters, as samples of their state; pure.

*Source*: docs/console.md. Times are milliseconds since 1970.

*Invariants*: nothing is read for a sample; the number of samples is bounded. What was not known at
a sample is None there, and never a zero: a cluster that was away leaves a gap.
"""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from stilltide.pipeline.core.status.values import Aged, ClusterSeen, SystemStatus
from stilltide.schemas.values import ClusterName

EVERY_MS = 10_000
"""Least time between two samples."""

SPAN_MS = 30 * 60 * 1000
"""Age up to which samples are kept."""

REST_MS = 60_000
"""Time between two samples while nobody looks: a question wakes a worker at rest for seconds."""

OLD_MS = REST_MS + 3 * EVERY_MS
"""Age from which on a value says nothing of the time of a sample; a longer silence is a gap."""

T = TypeVar("T")


class ClusterSample(NamedTuple):
    """The figures of a cluster; None: not known.

    Attributes:
        commits_s, aborts_s: transactions that ended so in a second, since the sample before.
        open: transactions that are open or prepared.
        oldest_ms: age of the oldest transaction that has not ended; 0: all have ended.
        lag: offsets that the links into the cluster have not passed; None, too: no link.
        read_again: records that a fail-over to the cluster reads again, by a `Subscription`; None,
            too: no replicated group.
    """

    commits_s: float | None
    aborts_s: float | None
    open: int | None
    oldest_ms: int | None
    lag: int | None
    read_again: int | None


class Sample(NamedTuple):
    """The figures of all clusters at one moment."""

    at_ms: int
    clusters: Mapping[ClusterName, ClusterSample]


class EndedCounts(NamedTuple):
    """Transactions that have ended, as the owners of a cluster's coordinators have counted them.

    Attributes:
        read_ms: when the owners were asked.
        by_owner: commits and aborts, by number of the coordinator and epoch of its owner.
    """

    read_ms: int
    by_owner: Mapping[tuple[int, int], tuple[int, int]]


class Samples:
    """The samples of the last `SPAN_MS`."""

    def __init__(self) -> None:
        self._kept: deque[Sample] = deque()
        self._counts: dict[ClusterName, EndedCounts] = {}
        self._rates: dict[ClusterName, tuple[float, float] | None] = {}

    @property
    def kept(self) -> tuple[Sample, ...]:
        """The samples, the oldest first."""
        return tuple(self._kept)

    def add(self, status: SystemStatus) -> bool:
        """Takes a sample of a state, unless the last one is younger than `EVERY_MS`."""
        now_ms = status.now_ms
        if self._kept and 0 <= now_ms - self._kept[-1].at_ms < EVERY_MS:
            return False
        if self._kept and now_ms < self._kept[-1].at_ms:  # the clock was set back
            self._kept.clear()
        self._kept.append(
            Sample(now_ms, {it.name: self._cluster(it, status) for it in status.clusters})
        )
        while self._kept[0].at_ms < now_ms - SPAN_MS:
            self._kept.popleft()
        return True

    def _cluster(self, cluster: ClusterSeen, status: SystemStatus) -> ClusterSample:
        now_ms = status.now_ms
        transactions = _fresh(cluster, cluster.transactions, now_ms)
        if transactions is not None and transactions.silent:
            transactions = None
        rates = self._rates_of(cluster, now_ms)
        oldest = transactions.oldest if transactions is not None else None
        return ClusterSample(
            None if rates is None else rates[0],
            None if rates is None else rates[1],
            None if transactions is None else transactions.open_count + transactions.prepared_count,
            None
            if transactions is None
            else max(0, now_ms - oldest.opened_ms)
            if oldest is not None
            else 0,
            _lag(cluster, status),
            _read_again(cluster, status),
        )

    def _rates_of(self, cluster: ClusterSeen, now_ms: int) -> tuple[float, float] | None:
        """Commits and aborts a second, between the last two answers of the same owners."""
        if _fresh(cluster, cluster.coordinators, now_ms) is None:
            return None
        counts, before = _counts(cluster), self._counts.get(cluster.name)
        if counts is None:
            self._counts.pop(cluster.name, None)
            return None
        if before is not None and counts.read_ms == before.read_ms:
            return self._rates.get(cluster.name)
        self._counts[cluster.name] = counts
        rates = None
        if before is not None and counts.by_owner.keys() == before.by_owner.keys():
            seconds = (counts.read_ms - before.read_ms) / 1000
            if 0 < seconds <= OLD_MS / 1000:
                pairs = [(pair, before.by_owner[of]) for of, pair in counts.by_owner.items()]
                commits = sum(pair[0] - earlier[0] for pair, earlier in pairs)
                aborts = sum(pair[1] - earlier[1] for pair, earlier in pairs)
                rates = commits / seconds, aborts / seconds
        self._rates[cluster.name] = rates
        return rates


def _fresh(cluster: ClusterSeen, part: Aged[T], now_ms: int) -> T | None:
    """The value of a part, if it is one of the time of the sample."""
    age_ms = part.age_ms(now_ms)
    return None if cluster.away or age_ms is None or age_ms > OLD_MS else part.value


def _counts(cluster: ClusterSeen) -> EndedCounts | None:
    """What the owners have counted; None: one does not tell."""
    by_owner: dict[tuple[int, int], tuple[int, int]] = {}
    for owner in cluster.coordinators.value or ():
        if owner.epoch is None or owner.commit_count is None or owner.abort_count is None:
            return None
        by_owner[owner.number, owner.epoch] = owner.commit_count, owner.abort_count
    read_ms = cluster.coordinators.read_ms
    return EndedCounts(read_ms, by_owner) if by_owner and read_ms is not None else None


def _lag(cluster: ClusterSeen, status: SystemStatus) -> int | None:
    links = _fresh(cluster, status.links.get(cluster.name, Aged()), status.now_ms)
    lags = [link.lag for link in links or ()]
    return sum(lag or 0 for lag in lags) if lags and None not in lags else None


def _read_again(cluster: ClusterSeen, status: SystemStatus) -> int | None:
    if cluster.away:
        return None
    groups = [group for group in status.groups.value or () if group.cluster == cluster.name]
    ages = [status.now_ms - (group.read_ms or 0) for group in groups]
    return sum(it.read_again for it in groups) if groups and max(ages) <= OLD_MS else None
