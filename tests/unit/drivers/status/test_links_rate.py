"""How many offsets a link passes in a second."""

from stilltide.pipeline.drivers.status.links import RATE_MS, PassedOffsets


def test_the_rate_is_that_of_the_last_seconds():
    """Unknown at first; what was long ago does not count."""
    passed = PassedOffsets()
    assert passed.rate(1000, 0) is None
    assert passed.rate(1100, 500) is None
    assert passed.rate(3000, 1000) == 2000
    for second in range(2, 40):
        rate = passed.rate(3000, second * 1000)
    assert rate == 0
    assert passed.rate(3000 + RATE_MS, 40_000) == 1000


def test_a_topic_that_was_created_again_begins_again():
    """Fewer offsets than before are no negative rate."""
    passed = PassedOffsets()
    passed.rate(9000, 0)
    assert passed.rate(10, 2000) is None
    assert passed.rate(2010, 4000) == 1000
