"""The profile `table` of the compose file: committed records of a topic, kept as a table."""

import json
import time

import pytest

from stilltide.pipeline.client import TransactionClient
from tests.support.processes.containers import KEPT, READY_S, Compose, docker
from tests.support.processes.worker_process import create_topics

TABLE = "parquet:/tables/orders"

METRICS = (
    "import urllib.request as it;"
    "page = it.urlopen('http://127.0.0.1:6066/metrics', timeout=10).read().decode();"
    "print([line for line in page.splitlines() if line.startswith('stilltide_table_')])"
)

ROWS = f"""
import json
from stilltide.spark import SparkOptions, read_parquet_table, spark_session
with spark_session(SparkOptions(master="local[1]")) as spark:
    rows = read_parquet_table(spark, "{TABLE}").collect()
print(json.dumps(sorted(bytes(row["value"]).decode() for row in rows)))
"""


async def transactions(bootstrap: str, first: int) -> None:
    """Two transactions that are committed, with an aborted one between them."""
    async with TransactionClient(bootstrap) as client:
        for number in range(first, first + 3):
            async with client.transaction() as txn:
                await txn.send(KEPT, b"%d" % number)
                if number == first + 1:
                    await txn.abort()
                else:
                    await txn.commit(wait_visible=True)


def stored(compose: Compose, records: int) -> str:
    """Returns once so many records are in the table; the container of the command."""
    (container,) = compose("--profile", "table", "ps", "-aq", "table-follow").stdout.split()
    end_s, page = time.monotonic() + 2 * READY_S, ""
    while f"stilltide_table_records_total {records}.0" not in page:
        assert time.monotonic() < end_s, page
        page = docker("exec", container, "python", "-c", METRICS, check=False).stdout
    return container


@pytest.mark.timeout(1200)
async def test_a_table_is_kept(compose: Compose):
    """It holds what was committed before the command began and while it ran, and nothing else."""
    await create_topics(compose.bootstrap("a"), KEPT)
    await transactions(compose.bootstrap("a"), 1)
    compose("--profile", "table", "up", "--detach", "table-follow")
    stored(compose, 2)
    await transactions(compose.bootstrap("a"), 4)
    container = stored(compose, 4)
    compose("--profile", "table", "stop", "table-follow")
    assert docker("inspect", "--format", "{{.State.ExitCode}}", container).stdout == "0\n"
    image = ("run", "--rm", "-T", "--no-deps", "--entrypoint", "python", "table-follow")
    rows = compose("--profile", "table", *image, "-c", ROWS).stdout.splitlines()[-1]
    assert json.loads(rows) == ["1", "3", "4", "6"]
