"""`core.sizing`: what a load needs, and that more of anything never needs less."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stilltide.pipeline.core.sizing import (
    COORDINATORS_MAX,
    RESERVE,
    Load,
    Need,
    needs,
    next_limit,
    worker_us,
)
from stilltide.pipeline.errors import ConfigError

MILLION = Load(transactions_per_s=1_000_000, partitions=100_000, groups=1000, clusters=3)

loads = st.builds(
    Load,
    transactions_per_s=st.floats(0, 3_000_000),
    partitions=st.integers(1, 1_000_000),
    groups=st.integers(0, 10_000),
    clusters=st.integers(1, 5),
    open_s=st.floats(0.001, 60),
)


def by_name(load: Load) -> dict[str, Need]:
    """What the load needs, by name."""
    return {it.what: it for it in needs(load)}


def test_a_small_load_needs_two_workers():
    """So that one can take over; coordinators and partitions stay at their defaults."""
    needed = by_name(Load(transactions_per_s=100, partitions=100))
    assert needed["workers"].each == 2
    assert needed["coordinators"].each == needed["partitions of system topics"].each == 4


def test_workers_carry_the_load_at_the_reserve_without_one_of_them():
    """The sum of the page on sizing, by hand."""
    needed = by_name(replace(MILLION, groups=0, clusters=1))
    coordinators = needed["coordinators"].each
    used_us = worker_us(1_000_000 * MILLION.open_s / coordinators)
    assert needed["workers"].each - 1 >= 1_000_000 * used_us / 1e6 / RESERVE
    assert coordinators == COORDINATORS_MAX


def test_the_bound_that_is_used_most_comes_next():
    """A load beyond it does not fit."""
    needed = needs(MILLION)
    limit = next_limit(needed)
    assert limit.used is not None
    assert all((it.used or 0) <= limit.used for it in needed)
    beyond = next_limit(needs(replace(MILLION, transactions_per_s=10_000_000)))
    assert beyond.used is not None
    assert limit.used < 1 < beyond.used


def test_a_single_cluster_has_no_links_and_no_pairs():
    """Nothing is copied, and groups stay where they are."""
    needed = by_name(replace(MILLION, clusters=1))
    alone = by_name(replace(MILLION, clusters=1, groups=0))
    assert needed["processes of each link that leaves"].each == 0
    assert needed["workers"].each == alone["workers"].each


@given(loads, st.integers(1, 16))
def test_more_transactions_never_need_less(load: Load, times: int):
    """Of workers, coordinators, link processes and brokers."""
    more = by_name(replace(load, transactions_per_s=load.transactions_per_s * times))
    for what, need in by_name(load).items():
        if what in ("workers", "coordinators", "processes of each link that leaves"):
            assert more[what].each >= need.each, what


@pytest.mark.parametrize(
    "wrong",
    [{"partitions": 0}, {"transactions_per_s": -1.0}, {"clusters": 0}, {"open_s": float("nan")}],
)
def test_a_load_that_there_cannot_be_is_refused(wrong: dict[str, float]):
    """The error names the number."""
    (name,) = wrong
    with pytest.raises(ConfigError, match=name):
        replace(MILLION, **wrong)
