"""A worker as a simulated process: the owners and agents of `stilltide worker` on a model of Faust.

*Source*: pipeline/agents/worker.py, whose `_serve` this module repeats without what only a real
process has: signals, and the web site.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from prometheus_client import CollectorRegistry

from stilltide.pipeline.agents.buffered_writer import BufferedWriter
from stilltide.pipeline.agents.deps import WorkerDeps
from stilltide.pipeline.agents.owners import Owners
from stilltide.pipeline.agents.worker import Worker
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.drivers.coordinator.end_offsets import EndOffsets
from stilltide.pipeline.drivers.coordinator.growth import grow_coordinators
from stilltide.pipeline.drivers.service.hindrances import Hindrances
from stilltide.pipeline.drivers.service.kinds.pending_ack import PENDING_ACK_OPERATOR_SERVICE
from stilltide.pipeline.drivers.service.lines.server import LineServer
from stilltide.pipeline.drivers.service.replies import Replies
from stilltide.pipeline.drivers.service.requests import COORDINATOR_OPERATOR_SERVICE
from stilltide.pipeline.drivers.service.watches.watched_writer import WatchedWriter
from stilltide.pipeline.drivers.shared.dynamic_settings import DynamicSettings
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.topic_findings import ensure_replicated
from stilltide.pipeline.metrics.worker import WorkerMetrics
from stilltide.schemas.topics import system_topics
from tests.simulation.network.connector import NetworkConnector
from tests.simulation.processes.membership import ModelApp, WorkerGroup
from tests.simulation.processes.process import PROCESS

Failed = Callable[[BaseException], None]


async def run_worker(
    connector: NetworkConnector, group: WorkerGroup, settings: Settings, failed: Failed
) -> None:
    """Serves until the process dies, or a part of the worker fails.

    Args:
        connector: the cluster, as this process reaches it.
        group: the group of the workers.
        settings: settings of the worker.
        failed: called with the error that ends the worker.
    """
    admin, writers, cluster = connector.admin(), ModelApp(), ModelApp()
    specs = system_topics(coordinators=settings.coordinators, partitions=settings.partitions)
    outages = OutageGuard(admin, timeout_s=120.0)
    await outages.call(lambda: grow_coordinators(admin, settings.coordinators))
    await outages.call(lambda: ensure_replicated(admin, specs, settings.replicas))
    deps = await _deps(connector, settings, outages, writers)
    owners = Owners(cast("Any", cluster), deps, failed)
    try:
        async with asyncio.TaskGroup() as tasks:
            for work in (
                owners.follow_settings(),
                deps.ends.run(),
                owners.look_up_topics(),
                deps.acks.failed(),
                deps.barriers.failed(),
                deps.buffered_writer.run(),
                writers.run_agents(),
                cluster.run_agents(),
                cluster.run(connector, group),
            ):
                tasks.create_task(work)
    except BaseExceptionGroup as errors:
        failed(errors.exceptions[0])


async def _deps(
    connector: NetworkConnector, settings: Settings, outages: OutageGuard, writers: ModelApp
) -> WorkerDeps:
    """Opens what the owners of a worker share."""
    admin, dynamic = connector.admin(), DynamicSettings(connector)
    await dynamic.open()
    metrics = WorkerMetrics(settings.cluster, CollectorRegistry())
    hindrances = Hindrances()
    writer = WatchedWriter(connector.writer("worker"), hindrances)
    acks = Worker._asking(PENDING_ACK_OPERATOR_SERVICE, connector, writer)
    barriers = Worker._asking(COORDINATOR_OPERATOR_SERVICE, connector, writer)
    partitions = settings.partitions
    for asking, count in ((acks, partitions), (barriers, settings.coordinators)):
        opened: Any = asking
        await outages.call(
            lambda opened=opened, count=count: opened.open(
                partition_count=count, response_partition_count=partitions
            )
        )
    name = PROCESS.get().name
    lines = LineServer(name, advertised=name, chance=connector.chance)
    await lines.start()
    return WorkerDeps(
        connector=connector,
        batches=cast("Any", None),
        admin=admin,
        writer=writer,
        replies=Replies(writer, [acks, barriers], lines=lines),
        marker_writer=WatchedWriter(connector.writer("worker-markers"), hindrances),
        ends=EndOffsets(admin),
        acks=acks,
        barriers=barriers,
        buffered_writer=BufferedWriter(cast("Any", writers)),
        settings=settings,
        dynamic=dynamic,
        metrics=metrics,
        lines=lines,
    )
