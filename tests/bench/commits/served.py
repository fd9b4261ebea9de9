"""A cluster of one broker with a worker, which the cases of commits measure."""

import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.ports.connector import closing
from stilltide.pipeline.demo.worker_process import STATIC_MEMBER, WorkerProcess
from stilltide.schemas.topics import TopicSpec

LINE = {"STILLTIDE_LINE_HOST": "127.0.0.1"}
"""Has a worker take requests by direct lines."""


class Served(NamedTuple):
    """A cluster whose worker serves; `directory` is its own, and is deleted with it."""

    directory: Path
    cluster: LocalCluster
    connector: KafkaConnector
    worker: WorkerProcess


async def served(
    stack: AsyncExitStack, spec: TopicSpec, environment: Mapping[str, str] = LINE
) -> Served:
    """Starts a cluster with a topic, and a worker with these variables."""
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    cluster = stack.enter_context(LocalCluster("a", directory / "a", heap="512m"))
    connector = KafkaConnector(KafkaConfig(bootstrap_servers=cluster.bootstrap))
    async with closing(connector.admin()) as admin:
        await admin.ensure_topics([spec])
    worker = WorkerProcess(
        cluster.bootstrap, directory / "worker.log", *STATIC_MEMBER, environment=dict(environment)
    )
    stack.push_async_callback(worker.stop)
    await worker.start()
    return Served(directory, cluster, connector, worker)
