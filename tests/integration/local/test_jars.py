"""Maven and Ivy bring the same, locked jars; from the network or from their own caches."""

import shutil
from pathlib import Path

import pytest

from stilltide.connectors.local.jars import (
    LOCK_PATH,
    SPARK_VERSIONS,
    Fetch,
    fetch_with_ivy,
    fetch_with_maven,
    jar_set,
    spark_lock_path,
)

# Maven is not required, so where it is missing there is one road only, and nothing is skipped.
ROADS = [fetch_with_ivy, *([fetch_with_maven] if shutil.which("mvn") else [])]


@pytest.mark.parametrize("fetch", ROADS)
@pytest.mark.parametrize(
    ("name", "lock"),
    [
        pytest.param("broker", LOCK_PATH, marks=pytest.mark.slow),
        ("spark", spark_lock_path(SPARK_VERSIONS[0])),
    ],
)
def test_each_road_brings_the_locked_jars(tmp_path: Path, name: str, lock: Path, fetch: Fetch):
    """Either resolver fills an empty directory with exactly the jars of the lock."""
    paths = jar_set(name, tmp_path, fetch, lock=lock)
    assert sorted(paths) == sorted(tmp_path.glob("*.jar"))
