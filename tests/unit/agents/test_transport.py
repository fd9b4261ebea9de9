"""What Faust's consumer runs on, and how long its fetches wait."""

import threading
from pathlib import Path
from typing import Any

from aiokafka.protocol.types import Int32

from stilltide.pipeline.agents.apps import cluster_app
from stilltide.pipeline.agents.transport import (
    FETCH_WAIT_MS,
    REST_AFTER_S,
    REST_FETCH_WAIT_MS,
    FetchWait,
)
from stilltide.pipeline.config.settings import Settings


async def test_requests_cross_no_thread(tmp_path: Path):
    """What Faust would call on a thread of its consumer's is called by the one that asks."""

    async def nothing(*_: object) -> None: ...

    def where() -> int:
        return threading.get_ident()

    app = cluster_app(Settings(bootstrap_servers="nowhere:1", cluster="a"), tmp_path)
    consumer: Any = app.transport.create_consumer(
        nothing, on_partitions_revoked=nothing, on_partitions_assigned=nothing
    )
    assert await consumer._thread.call_thread(where) == threading.get_ident()


def test_fetches_wait_longer_at_rest():
    """Records end the rest at once; the rest begins some seconds after the last record."""
    now_s = 100.0
    wait: Any = FetchWait(lambda: now_s)

    def encoded_ms() -> int:
        return int.from_bytes(Int32.encode(wait), "big")

    assert encoded_ms() == FETCH_WAIT_MS
    now_s += REST_AFTER_S
    assert encoded_ms() == FETCH_WAIT_MS
    now_s += 0.1
    assert encoded_ms() == REST_FETCH_WAIT_MS
    wait.records_came()
    assert encoded_ms() == FETCH_WAIT_MS
