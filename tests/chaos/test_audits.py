"""Fifty sound topics, each audited alone: an alarm that is false would make every other one idle.

*Source*: rules C6, D, F. `make chaos ARGS="-k sound"` runs it; `SEED=7` draws others.
"""

import os

import pytest

from tests.support.spark.sound_topics import assert_sound

SEED = int(os.environ.get("SEED", "1"))
RUNS = 50


@pytest.mark.usefixtures("spark")
def test_sound_topics_raise_nothing(bootstrap: str, topic_name: str):
    """Valid, and every figure is what was written."""
    assert_sound(bootstrap, topic_name, range(SEED * RUNS, (SEED + 1) * RUNS))
