"""What Delta and Iceberg do with the batches of two writers."""

import asyncio
import json
from pathlib import Path

import pytest

from stilltide.connectors.local.jars import spark_version, table_formats
from tests.support.processes.child import Child

RUN_S = 480


@pytest.mark.slow
async def test_of_two_writers_one_stores_a_batch(tmp_path: Path):
    """K2, K4, K5: the slower one gets an error, its records are not there; a batch may be empty."""
    program = Child.of_module("tests.support.spark.lakehouses", str(tmp_path))
    async with program as child, asyncio.timeout(RUN_S):
        found = json.loads(await child.line())
    assert sorted(found) == sorted(table_formats(spark_version()))
    for said in found.values():
        assert (said["begun"], said["loaded"], said["after"]) == (0, [True, True], 3)
        assert said["history"] == [[3, 0], [2, 10], [1, 10]]
        assert said["offsets"] == list(range(20))
        assert "another writer has stored batch 2" in str(said["slower"])
        assert "without progress" in str(said["foreign"])
