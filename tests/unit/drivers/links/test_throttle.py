"""A throttle: over any stretch no more than its rate, one second's worth and one batch."""

from hypothesis import given
from hypothesis import strategies as st

from stilltide.pipeline.drivers.links.link_driver import Throttle


def test_without_a_limit_nothing_waits():
    """Whatever is spent."""
    throttle = Throttle(None, lambda: 0)
    throttle.spend(10**12)
    assert throttle.delay_s() == 0


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.integers(0, 500), st.floats(0, 3)), max_size=50),
)
def test_the_rate_holds_over_any_stretch(rate: int, spent: list[tuple[int, float]]):
    """For whoever waits out the delay before each batch, and rests besides."""
    now_s = 0.0
    throttle = Throttle(rate, lambda: now_s)
    history: list[tuple[float, int]] = []
    for size, rest_s in spent:
        now_s += rest_s + throttle.delay_s()
        throttle.spend(size)
        history.append((now_s, size))
    for at, (began_s, _) in enumerate(history):
        total = 0
        for when_s, size in history[at:]:
            total += size
            assert total <= rate * (when_s - began_s + 1) + 500 + 1e-6


def test_it_says_how_long_to_wait():
    """As long as it takes to have earned what was overspent."""
    now_s = 0.0
    throttle = Throttle(100, lambda: now_s)
    throttle.spend(350)
    assert throttle.delay_s() == 2.5
    now_s = 2.0
    assert throttle.delay_s() == 0.5
    now_s = 2.5
    assert throttle.delay_s() == 0
