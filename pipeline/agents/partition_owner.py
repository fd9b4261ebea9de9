"""Owners of assigned partitions, and the agent of a requests topic that feeds them.

*Source*: docs/protocols B, C, E, F3, G. Faust's assignment decides which worker runs an owner; the
fence (B1) keeps two owners from writing. A partition that is assigned to the same worker again
after a rebalance keeps its owner.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import faust

from stilltide.pipeline.agents.placement import Placement
from stilltide.pipeline.drivers.service.passed_over import PassedOver, hand_over
from stilltide.pipeline.drivers.service.requests import Neighbour
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.values import TopicPartition

log = get_logger(__name__)


class PartitionDriver(Protocol):
    """The owner of one assigned partition.

    Attributes:
        assigned: whether the partition is assigned to this worker; if not, the driver ends when
            another owner replaces it.
    """

    assigned: bool

    @property
    def serving(self) -> bool:
        """Whether the driver has recovered, and still is the owner."""
        ...

    async def run(self) -> None:
        """Serves until cancelled, or replaced and not assigned any more."""
        ...


class RequestsDriver(PartitionDriver, Neighbour, Protocol):
    """The owner of one partition of a requests topic."""


D = TypeVar("D", bound=PartitionDriver)
R = TypeVar("R", bound=RequestsDriver)


class PartitionOwners(Generic[D]):
    """Runs a driver for each assigned partition of a topic that an agent of the App reads.

    Args:
        app: the App on the cluster.
        placement: placement of the owners, with the topic whose assignment they follow.
        make_driver: makes the driver of one partition.
        failed: called with the error of an owner that failed; the worker has to stop.

    Attributes:
        joined: whether the group has assigned partitions to this worker, or none.
    """

    def __init__(
        self,
        app: faust.App,
        placement: Placement,
        make_driver: Callable[[int], D],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.joined = False
        self.placement = placement
        self._make_driver = make_driver
        self._failed = failed
        self._drivers: dict[int, D] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        app.on_partitions_assigned.connect(self._assigned, weak=False)
        app.on_partitions_revoked.connect(self._revoked, weak=False)

    @property
    def drivers(self) -> dict[int, D]:
        """The drivers of the partitions assigned to this worker, by partition."""
        return self._drivers

    async def stop(self) -> None:
        """Stops every owner; requests in flight are not answered."""
        await self._keep(set())

    async def _assigned(self, _app: Any, assigned: Any, *_: Any, **__: Any) -> None:
        owned = {data.partition for data in assigned if data.topic == self.placement.topic}
        self.joined = True
        await self._keep(owned)
        for partition in sorted(owned):
            task = self._tasks.get(partition)
            if task is not None and not task.done():
                self._drivers[partition].assigned = True
                continue
            driver = self._drivers[partition] = self._make_driver(partition)
            task = asyncio.create_task(driver.run(), name=f"{self.placement.name}-{partition}")
            self._tasks[partition] = task
            task.add_done_callback(partial(self._ended, partition))
        log.info("assigned", owner=self.placement.name, partitions=sorted(owned))

    async def _revoked(self, _app: Any, _taken: Any, *_: Any, **__: Any) -> None:
        # Most are assigned again at once. Until then their owners serve, and end if fenced.
        for driver in self._drivers.values():
            driver.assigned = False

    async def _keep(self, owned: set[int]) -> None:
        """Stops the owners of partitions that are not in `owned`."""
        leaving = [self._tasks.pop(it) for it in list(self._tasks) if it not in owned]
        for partition in [it for it in self._drivers if it not in owned]:
            del self._drivers[partition]
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)

    def _ended(self, partition: int, task: "asyncio.Task[None]") -> None:
        if self._tasks.get(partition) is task:
            del self._tasks[partition]
            self._drivers.pop(partition, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(error)


class PartitionOwnerAgent(PartitionOwners[R]):
    """Runs a driver for each assigned partition of a requests topic, and hands it the requests.

    Args:
        As for `PartitionOwners`; the topic of the placement holds the requests.
        undecodable: counter and log of records that are no requests.
    """

    def __init__(
        self,
        app: faust.App,
        placement: Placement,
        make_driver: Callable[[int], R],
        failed: Callable[[BaseException], None],
        *,
        undecodable: PassedOver,
    ) -> None:
        names = [it for it in (placement.topic, placement.operator_topic) if it is not None]
        source = app.topic(*names, key_type=bytes, value_type=bytes, value_serializer="raw")
        app.agent(source, name=placement.name, concurrency=1)(self._receive)
        super().__init__(app, placement, make_driver, failed)
        self._undecodable = undecodable

    async def _receive(self, stream: Any) -> None:
        # Without `noack`, Faust acknowledges an event whose agent fails, and a restart skips it.
        async for event in stream.noack().events():
            message = event.message
            driver = self._drivers.get(message.partition)
            if driver is not None:  # else revoked: clients ask the new owner again
                place = TopicPartition(message.topic, message.partition), message.offset
                hand_over(
                    driver,
                    *place,
                    event.value,
                    undecodable=self._undecodable,
                    operator=message.topic == self.placement.operator_topic,
                )
            await stream.ack(event)
