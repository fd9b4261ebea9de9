"""Samples of the last half hour."""

from dataclasses import replace

from stilltide.pipeline.core.status.samples import EVERY_MS, OLD_MS, SPAN_MS, Samples
from stilltide.pipeline.core.status.values import (
    Aged,
    ClusterSeen,
    CoordinatorStatus,
    SystemStatus,
    TransactionsStatus,
)
from stilltide.schemas.values import Offset
from tests.support.status.samples import AWAY, NOW_MS, WELL, A, B, cluster, group, link


def seen(at_ms: int, commits: int | None = 0, aborts: int = 0, epoch: int = 7) -> ClusterSeen:
    """Cluster a, whose coordinator has counted so many ended transactions."""
    counted = CoordinatorStatus(0, True, "", Offset(epoch), commits, aborts)
    return replace(
        cluster(A),
        brokers=Aged(cluster(A).brokers.value, at_ms),
        coordinators=Aged((counted,), at_ms),
        transactions=Aged(cluster(A).transactions.value, at_ms),
    )


def state(at_ms: int, one: ClusterSeen) -> SystemStatus:
    """The state at a time, read then."""
    return replace(
        WELL,
        now_ms=at_ms,
        clusters=(one,),
        links={A: Aged((link("b", A),), at_ms)},
        groups=Aged((group(A)._replace(read_ms=at_ms), group(B)._replace(read_ms=0)), at_ms),
    )


def test_a_sample_has_the_figures_of_its_time():
    """Rates are those since the sample before; the first one has none."""
    samples = Samples()
    assert samples.add(state(NOW_MS, seen(NOW_MS, 100, 9)))
    later_ms = NOW_MS + EVERY_MS
    samples.add(state(later_ms, seen(later_ms, 150, 14)))
    first, second = (sample.clusters[A] for sample in samples.kept)
    assert (first.commits_s, first.aborts_s) == (None, None)
    assert (second.commits_s, second.aborts_s) == (5.0, 0.5)
    assert (first.open, first.oldest_ms, first.lag, first.read_again) == (2, 3000, 3, 0)
    assert second.oldest_ms == 3000 + EVERY_MS


def test_samples_are_taken_rarely_and_forgotten():
    """However often a state is collected, and for however long."""
    samples = Samples()
    taken = [samples.add(state(NOW_MS + it, seen(NOW_MS + it))) for it in range(0, 30_000, 1000)]
    assert sum(taken) == 3
    for at_ms in range(NOW_MS, NOW_MS + 2 * SPAN_MS, EVERY_MS):
        samples.add(state(at_ms, seen(at_ms)))
    times = [sample.at_ms for sample in samples.kept]
    assert len(times) == SPAN_MS // EVERY_MS + 1
    assert times[-1] - times[0] == SPAN_MS


def test_another_owner_and_a_long_silence_leave_a_gap():
    """Counts begin with the owner; what an earlier worker does not tell is unknown."""
    samples = Samples()
    steps = [
        seen(NOW_MS, 100),
        seen(NOW_MS + EVERY_MS, 7, epoch=99),
        seen(NOW_MS + 2 * EVERY_MS, 17, epoch=99),
        seen(NOW_MS + 3 * EVERY_MS, None),
        seen(NOW_MS + 4 * EVERY_MS, 20, epoch=99),
        seen(NOW_MS + 14 * EVERY_MS, 30, epoch=99),
    ]
    for one in steps:
        at_ms = one.coordinators.read_ms
        assert at_ms is not None
        samples.add(state(at_ms, one))
    rates = [sample.clusters[A].commits_s for sample in samples.kept]
    assert rates == [None, None, 1.0, None, None, None]


def test_what_was_not_read_is_unknown():
    """Of a cluster that is away, and of values that are older than the sample."""
    old_ms = NOW_MS - OLD_MS - 1
    unknown = (None, None, None, None, None, None)
    samples = Samples()
    gone = replace(seen(NOW_MS), brokers=AWAY)
    stale = replace(seen(old_ms), brokers=Aged(cluster(A).brokers.value, NOW_MS))
    samples.add(state(NOW_MS, gone))
    without = replace(state(NOW_MS + EVERY_MS, stale), links={}, groups=Aged())
    samples.add(without)
    assert [sample.clusters[A] for sample in samples.kept] == [unknown, unknown]


def test_a_count_that_lacks_a_coordinator_is_unknown():
    """And without a transaction the oldest is none."""
    samples = Samples()
    silent = replace(
        seen(NOW_MS), transactions=Aged(TransactionsStatus(0, 0, 0, None, (3,)), NOW_MS)
    )
    samples.add(state(NOW_MS, silent))
    at_ms = NOW_MS + EVERY_MS
    none = replace(seen(at_ms), transactions=Aged(TransactionsStatus(0, 0, 0, None, ()), at_ms))
    samples.add(state(at_ms, none))
    figures = [sample.clusters[A] for sample in samples.kept]
    assert [(it.open, it.oldest_ms) for it in figures] == [(None, None), (0, 0)]


def test_a_clock_that_is_set_back_begins_anew():
    """Samples of a time to come would be drawn beyond the edge."""
    samples = Samples()
    for at_ms in (NOW_MS, NOW_MS - 3_600_000):
        samples.add(state(at_ms, seen(at_ms)))
    assert [sample.at_ms for sample in samples.kept] == [NOW_MS - 3_600_000]
