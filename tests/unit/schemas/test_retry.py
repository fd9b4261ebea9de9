"""Waits between tries."""

import math

from stilltide.schemas.retry import Retry


def test_waits_grow_up_to_the_longest_one():
    """However many failures there are."""
    retry = Retry(1, 2, 5)
    assert [retry.wait_s(number) for number in (1, 2, 3, 4, 10**6)] == [1, 2, 4, 5, 5]


def test_a_wait_without_growth_stays():
    """One number is enough for a policy."""
    assert Retry(0.25).wait_s(7) == 0.25
    assert Retry(0.25).wait_ms() == 250


def test_chance_shortens_a_wait_by_a_share_at_most():
    """B4: two processes do not act in step."""
    assert Retry(4, jitter=0.5).wait_s(1, 1) == 2
    assert Retry(4, jitter=0.5).wait_s(1, 0) == 4
    assert Retry(1, jitter=1).wait_s(1, 1) == 0


def test_a_first_wait_above_the_longest_one_counts():
    """A user's first wait may be longer than the table's longest one."""
    assert Retry(8, 2, 8)._replace(first_s=60).wait_s(3) == 60


def test_one_call_is_limited_as_a_whole():
    """A try that takes long is no success of the call."""
    limited = Retry(1, sound_s=30).limited(60)
    assert (limited.give_up_s, limited.sound_s) == (60, math.inf)


def test_the_unit_of_waits_can_be_another_time():
    """Such as an option of a user."""
    assert [Retry(1, 2, 12).scaled(5).wait_s(number) for number in (1, 2, 9)] == [5, 10, 60]
