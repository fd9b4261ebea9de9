"""What Faust's consumer runs on."""

import threading
from pathlib import Path
from typing import Any

from stilltide.pipeline.agents.apps import cluster_app
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
