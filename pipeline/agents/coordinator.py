"""The coordinator agent: requests of the assigned partitions go to their coordinators.

*Source*: system.md, Process shapes; protocols.md B (ownership is the Faust assignment, safety is
the fence's), C. An assignment that comes straight back after a rebalance keeps its coordinator.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import faust
import structlog

from pipeline.drivers.coordinator import CoordinatorDriver
from schemas import topics
from schemas.errors import DecodeError

log = structlog.get_logger(__name__)


class CoordinatorAgent:
    """Runs a `CoordinatorDriver` for each assigned partition of txn-requests.

    Args:
        app: the App on the cluster.
        make_driver: makes the driver of one coordinator.
        failed: called with what a coordinator failed with; the worker cannot go on.

    Attributes:
        joined: the group has said which partitions are this worker's.
    """

    def __init__(
        self,
        app: faust.App,
        make_driver: Callable[[int], CoordinatorDriver],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.joined = False
        self._make_driver = make_driver
        self._failed = failed
        self._drivers: dict[int, CoordinatorDriver] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        topic = app.topic(
            topics.TXN_REQUESTS, key_type=bytes, value_type=bytes, value_serializer="raw"
        )
        app.agent(topic, name="coordinator", concurrency=1)(self._receive)
        app.on_partitions_assigned.connect(self._assigned, weak=False)
        app.on_partitions_revoked.connect(self._revoked, weak=False)

    @property
    def drivers(self) -> dict[int, CoordinatorDriver]:
        """By coordinator: those assigned to this worker."""
        return self._drivers

    async def stop(self) -> None:
        """Stops every coordinator; what is in flight is not acknowledged."""
        await self._keep(set())

    async def _receive(self, stream: Any) -> None:
        # Faust acknowledges an event whose agent fails, and would pass it over after a restart.
        async for event in stream.noack().events():
            message = event.message
            driver = self._drivers.get(message.partition)
            if driver is not None:  # else revoked: its new owner serves it, clients ask again
                try:
                    driver.requests_received(event.value)
                except DecodeError as error:
                    self._failed(error.at(message.topic, message.partition, message.offset))
                    await asyncio.get_running_loop().create_future()
            await stream.ack(event)

    async def _assigned(self, _app: Any, assigned: Any, *_: Any, **__: Any) -> None:
        owned = {data.partition for data in assigned if data.topic == topics.TXN_REQUESTS}
        self.joined = True
        await self._keep(owned)
        for coordinator in sorted(owned):
            task = self._tasks.get(coordinator)
            if task is not None and not task.done():
                self._drivers[coordinator].assigned = True
                continue
            driver = self._drivers[coordinator] = self._make_driver(coordinator)
            task = asyncio.create_task(driver.run(), name=f"coordinator-{coordinator}")
            self._tasks[coordinator] = task
            task.add_done_callback(partial(self._ended, coordinator))
        log.info("coordinators_assigned", coordinators=sorted(owned))

    async def _revoked(self, _app: Any, _taken: Any, *_: Any, **__: Any) -> None:
        # Most come straight back. Until then they serve, and stop for good when fenced.
        for driver in self._drivers.values():
            driver.assigned = False

    async def _keep(self, owned: set[int]) -> None:
        """Stops the coordinators that are not in `owned`."""
        leaving = [self._tasks.pop(c) for c in list(self._tasks) if c not in owned]
        for coordinator in [c for c in self._drivers if c not in owned]:
            del self._drivers[coordinator]
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)

    def _ended(self, coordinator: int, task: "asyncio.Task[None]") -> None:
        if self._tasks.get(coordinator) is task:
            del self._tasks[coordinator]
            self._drivers.pop(coordinator, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(error)
