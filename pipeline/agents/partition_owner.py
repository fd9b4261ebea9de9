"""Owners of assigned partitions, and the agent of a requests topic that feeds them.

*Source*: docs/protocols B (B8: an error ends one owner), C, E, F3, G. Faust's assignment decides
which worker runs an owner; the fence (B1) keeps two owners from writing. A partition that is
assigned to the same worker again after a rebalance keeps its owner.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import faust

from stilltide.pipeline.agents.placement import Placement
from stilltide.pipeline.drivers.service.ended import OwnerEnd, Tries
from stilltide.pipeline.drivers.service.ways import Neighbour
from stilltide.pipeline.drivers.shared.passed_over import PassedOver, hand_over
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.errors import StilltideError
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

    def refuse(self, value: bytes | None, end: OwnerEnd) -> None:
        """Refuses the requests of one value that only look; raises `DecodeError`.

        Called while the owner has ended. A request that may have been carried out before gets no
        answer, since a refusal says that nothing was changed; its client is told of the end.
        """
        ...


D = TypeVar("D", bound=PartitionDriver)
R = TypeVar("R", bound=RequestsDriver)


class PartitionOwners(Generic[D]):
    """Runs a driver for each assigned partition of a topic that an agent of the App reads.

    An error ends the driver of one partition; another one begins later (B8).

    Args:
        app: the App on the cluster.
        placement: placement of the owners, with the topic whose assignment they follow.
        make_driver: makes the driver of one partition.
        ended: called after an owner has ended by an error; see `ends`.
        within: what has ended within a driver that goes on by itself, by name.

    Attributes:
        joined: whether the group has assigned partitions to this worker, or none.
    """

    def __init__(
        self,
        app: faust.App,
        placement: Placement,
        make_driver: Callable[[int], D],
        ended: Callable[[], None],
        *,
        within: Callable[[D], Mapping[str, OwnerEnd]] = lambda _: {},
    ) -> None:
        self.joined = False
        self.placement = placement
        self._make_driver = make_driver
        self._ended = ended
        self._within = within
        self._drivers: dict[int, D] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._tries: dict[int, Tries] = {}
        app.on_partitions_assigned.connect(self._assigned, weak=False)
        app.on_partitions_revoked.connect(self._revoked, weak=False)

    @property
    def drivers(self) -> dict[int, D]:
        """The drivers of the partitions assigned to this worker, by partition."""
        return self._drivers

    @property
    def ends(self) -> dict[str, OwnerEnd]:
        """The owners that have ended by an error and wait for their next try, by number or name."""
        ends: dict[str, OwnerEnd] = {}
        for partition, tries in sorted(self._tries.items()):
            if tries.end is not None:
                ends[str(partition)] = tries.end
            ends |= self._within(self._drivers[partition])
        return ends

    @property
    def all_ended(self) -> bool:
        """Whether this worker has owners of this kind, and every one of them has ended."""
        return bool(self._tries) and all(it.end is not None for it in self._tries.values())

    async def stop(self) -> None:
        """Stops every owner; requests in flight are not answered."""
        await self._keep(set())

    def try_again(self) -> None:
        """Tries the owners that have ended again now."""
        for tries in self._tries.values():
            tries.at_once()

    async def _assigned(self, _app: Any, assigned: Any, *_: Any, **__: Any) -> None:
        owned = {data.partition for data in assigned if data.topic == self.placement.topic}
        self.joined = True
        await self._keep(owned)
        for partition in sorted(owned):
            task = self._tasks.get(partition)
            if task is not None and not task.done():
                self._drivers[partition].assigned = True
                self._tries[partition].at_once()
                continue
            tries = self._tries[partition] = Tries(partial(self._one_ended, partition))
            self._drivers[partition] = self._make_driver(partition)
            work = tries.run(partial(self._own, partition))
            task = asyncio.create_task(work, name=f"{self.placement.name}-{partition}")
            self._tasks[partition] = task
            task.add_done_callback(partial(self._left, partition))
        log.info("assigned", owner=self.placement.name, partitions=sorted(owned))

    async def _revoked(self, _app: Any, _taken: Any, *_: Any, **__: Any) -> None:
        # Most are assigned again at once. Until then their owners serve, and end if fenced.
        for driver in self._drivers.values():
            driver.assigned = False

    async def _own(self, partition: int) -> None:
        """Runs the driver of a partition; another one in place of a driver that has ended."""
        driver = self._drivers[partition]
        try:
            await driver.run()
        except Exception:
            another = self._make_driver(partition)
            another.assigned = driver.assigned
            self._drivers[partition] = another
            raise

    async def _keep(self, owned: set[int]) -> None:
        """Stops the owners of partitions that are not in `owned`."""
        leaving = [self._tasks.pop(it) for it in list(self._tasks) if it not in owned]
        for partition in [it for it in self._drivers if it not in owned]:
            del self._drivers[partition]
            del self._tries[partition]
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)

    def _one_ended(self, partition: int, end: OwnerEnd) -> None:
        error = end.error
        known = isinstance(error, StilltideError)
        log.error(
            "owner_ended",
            owner=self.placement.name,
            number=partition,
            place=error.place if known else "",
            why=error.primary if known else repr(error),
            detail=error.detail if known else "",
            hint=error.hint if known else "report this error; the worker serves the rest",
            again_in_s=round(end.again_s - asyncio.get_running_loop().time()),
            exc_info=None if known else error,
        )
        self._ended()

    def _left(self, partition: int, task: "asyncio.Task[None]") -> None:
        """An owner was replaced, and its partition is not assigned to this worker any more."""
        if self._tasks.get(partition) is task:
            del self._tasks[partition]
            del self._drivers[partition]
            del self._tries[partition]


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
        ended: Callable[[], None],
        *,
        undecodable: PassedOver,
    ) -> None:
        names = [it for it in (placement.topic, placement.operator_topic) if it is not None]
        source = app.topic(*names, key_type=bytes, value_type=bytes, value_serializer="raw")
        app.agent(source, name=placement.name, concurrency=1)(self._receive)
        super().__init__(app, placement, make_driver, ended)
        self._undecodable = undecodable

    async def _receive(self, stream: Any) -> None:
        # Without `noack`, Faust acknowledges an event whose agent fails, and a restart skips it.
        async for event in stream.noack().events():
            message = event.message
            driver = self._drivers.get(message.partition)
            if driver is not None:  # else revoked: clients ask the new owner again
                place = TopicPartition(message.topic, message.partition), message.offset
                operator = message.topic == self.placement.operator_topic
                take = partial(driver.requests_received, operator=operator)
                end = self._tries[message.partition].end
                if end is not None:
                    take = partial(driver.refuse, end=end)
                hand_over(take, *place, event.value, undecodable=self._undecodable)
            await stream.ack(event)
