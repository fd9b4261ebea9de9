"""How many examples Hypothesis makes of a test.

A test names the number that finds what its invariants are there for. `make test` makes a share of
them, the same ones each time in continuous integration. `make test EXAMPLES=100
ARGS=tests/stateful` makes all of them, `EXAMPLES=1000` ten times as many.
"""

import os

SHARE_PERCENT = int(os.environ.get("EXAMPLES", "30"))


def examples(count: int) -> int:
    """The share of `count` that this run makes, at least ten."""
    return max(10, count * SHARE_PERCENT // 100)
