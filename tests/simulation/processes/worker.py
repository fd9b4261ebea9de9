"""A worker as a simulated process: the owners of `stilltide worker` on a model of their group."""

import asyncio
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry

from stilltide.pipeline.agents.apps import worker_options
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.drivers.buffered_log.owned_log import EntryQueue
from stilltide.pipeline.drivers.service.hindrances import Hindrances
from stilltide.pipeline.drivers.service.own.direct_lines import LineServer
from stilltide.pipeline.drivers.shared.dynamic_settings import DynamicSettings
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.worker.deps import make_topics, open_deps
from stilltide.pipeline.drivers.worker.owners import Owners
from stilltide.pipeline.metrics.worker import WorkerMetrics
from tests.simulation.copying import links_of_worker
from tests.simulation.network.connector import NetworkConnector
from tests.simulation.processes.membership import Member, WorkerGroup
from tests.simulation.processes.process import PROCESS

Failed = Callable[[BaseException], None]


async def run_worker(
    connector: NetworkConnector,
    group: WorkerGroup,
    settings: Settings,
    failed: Failed,
    sources: Mapping[str, NetworkConnector],
) -> None:
    """Serves until the process dies, or a part of the worker fails.

    Args:
        connector: the cluster, as this process reaches it.
        group: the group of the workers.
        settings: settings of the worker.
        failed: called with the error that ends the worker.
        sources: clusters whose links into this one the workers share, as this process reaches them.
    """
    admin, options, name = connector.admin(), worker_options(settings), PROCESS.get().name
    await make_topics(admin, OutageGuard(admin, timeout_s=120.0), options)
    dynamic = DynamicSettings(connector)
    await dynamic.open()
    lines = LineServer(name, advertised=name, chance=connector.chance)
    await lines.start()
    deps = await open_deps(
        connector,
        admin,
        options,
        entries=EntryQueue(),
        dynamic=dynamic,
        metrics=WorkerMetrics(settings.cluster, CollectorRegistry()),
        hindrances=Hindrances(),
        lines=lines,
    )
    member = Member(connector, group)
    owners = Owners(member.follow, deps, failed)
    if sources:
        member.follow(links_of_worker(sources, (settings.cluster, connector), settings))
    try:
        async with asyncio.TaskGroup() as tasks:
            for work in (*owners.work().values(), member.run()):
                tasks.create_task(work)
    except BaseExceptionGroup as errors:
        failed(errors.exceptions[0])
