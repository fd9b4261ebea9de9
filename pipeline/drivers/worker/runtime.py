"""Runs the owners of one kind for the partitions that are assigned to this worker.

*Source*: docs/protocols B4, B8, C10. Kafka's coordinator runtime and its shards are the model.

*Invariants*:
- An ownership begins only while its partition is assigned to this worker. After a fence, or after a
  failure that passes, the next one begins after a random delay (B4): the fence may be that of a
  dead process, written late.
- Any other error ends one owner, never its neighbours (B8). The owner is tried again at the
  distances of a `Retry`, and at once when its partition is assigned again or the cluster is back,
  so that it serves after a repair without a restart.
- A partition that is assigned again after a rebalance keeps its owner.
"""

import asyncio
from collections.abc import Callable, Collection, Hashable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar, cast

from stilltide.connectors.chance import Chance
from stilltide.connectors.errors import ConnectorError, FencedError, RecordRefusedError
from stilltide.pipeline.drivers.service.ask.batches import Neighbour
from stilltide.pipeline.drivers.service.ended import OwnerEnd
from stilltide.pipeline.drivers.service.hindrances import Seldom, reason_of
from stilltide.pipeline.drivers.shared.outages import Tries
from stilltide.pipeline.drivers.shared.passed_over import PassedOver, hand_over
from stilltide.pipeline.drivers.shared.tasks import cancelled
from stilltide.pipeline.drivers.worker.placement import Placement
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.retry import OWNER_ENDED, OWNERSHIP, Retry
from stilltide.schemas.values import Offset, TopicPartition

log = get_logger(__name__)


class Owner(Protocol):
    """The owner of one partition, or of one link."""

    @property
    def serving(self) -> bool:
        """Whether it has recovered, and still is the owner."""
        ...

    async def run(self) -> None:
        """One ownership, from its beginning to its end; after a return the next begins at once."""
        ...

    def passes(self, error: StilltideError) -> bool:
        """Counts what has ended an ownership; whether the next ownership may well succeed."""
        ...


class AskedOwner(Owner, Neighbour, Protocol):
    """The owner of one partition of a topic of requests."""

    def refuse(self, value: bytes | None, end: OwnerEnd) -> None:
        """Refuses the requests of one value that only look; raises `DecodeError`.

        Called while the owner has ended. A request that may have been carried out before gets no
        answer, since a refusal says that nothing was changed; its client is told of the end.
        """
        ...


K = TypeVar("K", bound=Hashable)
O = TypeVar("O", bound=Owner)  # noqa: E741 - the letter of what it stands for


@dataclass(slots=True)
class _Tenure:
    """The time for which an owner's partition is assigned to this worker.

    Attributes:
        assigned: set while the partition is assigned; not between a revocation and the assignment
            that follows.
        woken: set to try the owner again now.
        end: why the owner has ended; None: it has not, or it has served again.
        waits: whether the owner has ended, and its next try is not due.
        task: the task that runs the owner.
    """

    assigned: asyncio.Event = field(default_factory=asyncio.Event)
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    end: OwnerEnd | None = None
    waits: bool = False
    task: "asyncio.Task[None] | None" = None


def _own_number(partition: int) -> Collection[int]:
    return [partition]


class Runtime(Generic[K, O]):
    """Runs an owner for each assigned partition of a topic, or several named ones.

    Args:
        placement: which topic's assignment counts.
        make: makes the owner of a partition, or of a name.
        ended: called after an owner has ended by an error; see `ends`.
        chance: chooses the time to the next ownership.
        keys: the owners of a partition; by default one, with the number of the partition. An owner
            of several partitions is this worker's while one of them is.
        shares: called with all numbers that are assigned, before their owners begin (H12).
        retry: from the end of an owner by an error to its next try.
        around: surrounds the time for which an owner is this worker's.
        undecodable: counter and log of records that are no requests; None: nobody asks.

    Attributes:
        placement: as above.
        joined: whether the group has assigned partitions to this worker, or none.
        owners: the owners that are this worker's.
    """

    def __init__(
        self,
        placement: Placement,
        make: Callable[[K], O],
        ended: Callable[[], None] = lambda: None,
        *,
        chance: Chance,
        keys: Callable[[int], Collection[K]] = _own_number,  # type: ignore[assignment]
        shares: Callable[[Collection[int]], None] = lambda _: None,
        retry: Retry = OWNER_ENDED,
        around: Callable[[K], AbstractAsyncContextManager[object]] = nullcontext,
        undecodable: PassedOver | None = None,
    ) -> None:
        self.placement = placement
        self.joined = False
        self.owners: dict[K, O] = {}
        self._make = make
        self._ended = ended
        self._chance = chance
        self._keys = keys
        self._shares = shares
        self._retry = retry
        self._around = around
        self._undecodable = undecodable
        self._tenures: dict[K, _Tenure] = {}
        self._seldom = Seldom()

    @property
    def ends(self) -> dict[str, OwnerEnd]:
        """The owners that an error has ended and that do not serve again, by number or name."""
        return {
            str(key): tenure.end
            for key, tenure in sorted(self._tenures.items(), key=str)
            if tenure.end is not None and not self.owners[key].serving
        }

    @property
    def all_ended(self) -> bool:
        """Whether this worker has owners of this kind, and every one of them has ended."""
        return bool(self._tenures) and all(tenure.waits for tenure in self._tenures.values())

    async def assign(self, partitions: Iterable[int]) -> None:
        """The group has assigned these partitions to this worker, and no others."""
        numbers = sorted(set(partitions))
        wanted = {key for number in numbers for key in self._keys(number)}
        self.joined = True
        self._shares(numbers)
        await self._leave(key for key in list(self._tenures) if key not in wanted)
        for key in sorted(wanted, key=str):
            tenure = self._tenures.get(key)
            if tenure is None:
                tenure = self._tenures[key] = _Tenure()
                self.owners[key] = self._make(key)
                name = f"{self.placement.name}-{key}"
                tenure.task = asyncio.create_task(self._own(key, tenure), name=name)
            tenure.assigned.set()
            tenure.woken.set()
        log.info("assigned", owner=self.placement.name, partitions=numbers)

    def revoke(self) -> None:
        """All partitions were taken away; most are assigned again at once.

        Until then their owners serve; one that is fenced does not begin again.
        """
        for tenure in self._tenures.values():
            tenure.assigned.clear()

    def retry_now(self) -> None:
        """Tries the owners that have ended again now."""
        for tenure in self._tenures.values():
            tenure.woken.set()

    async def stop(self) -> None:
        """Stops every owner; requests in flight are not answered."""
        await self._leave(list(self._tenures))

    def received(self, data: TopicPartition, offset: Offset, value: bytes | None) -> None:
        """Hands a record of a topic of requests to its owner; an undecodable one is passed over."""
        number = cast("K", data.partition)
        tenure = self._tenures.get(number)
        if tenure is None:
            return  # revoked: clients ask the new owner again
        owner = cast("AskedOwner", self.owners[number])
        if tenure.waits and tenure.end is not None:
            take = partial(owner.refuse, end=tenure.end)
        else:
            operator = data.topic == self.placement.operator_topic
            take = partial(owner.requests_received, operator=operator)
        assert self._undecodable is not None
        hand_over(take, data, offset, value, undecodable=self._undecodable)

    async def _leave(self, keys: Iterable[K]) -> None:
        left = list(keys)
        for key in left:
            del self.owners[key]
        await cancelled(*(self._tenures.pop(key).task for key in left))

    async def _own(self, key: K, tenure: _Tenure) -> None:
        """Runs one ownership after the other, until cancelled."""
        soon, later = Tries(OWNERSHIP, self._chance), Tries(self._retry, self._chance)
        async with self._around(key):
            while True:
                await tenure.assigned.wait()
                owner = self.owners[key]
                try:
                    await owner.run()
                    continue
                except Exception as error:  # noqa: BLE001 - whatever ends one owner must not end others
                    failure = error
                if isinstance(failure, StilltideError) and owner.passes(failure):
                    tenure.end = None
                    self._tell(key, failure)
                    soon.failed()
                    await soon.pause()
                    continue
                later.failed()
                tenure.end = OwnerEnd(failure, later.failing_since_s, later.due_s)
                self.owners[key] = self._make(key)
                tenure.waits = True
                self._tell_end(key, tenure.end)
                self._ended()
                tenure.woken.clear()
                await later.pause(tenure.woken)
                tenure.waits = False

    def _tell(self, key: K, error: StilltideError) -> None:
        """Logs the end of an ownership after which the next one begins soon."""
        if isinstance(error, FencedError):
            log.warning("owner_fenced", owner=self.placement.name, number=key, why=str(error))
            return
        cause = reason_of(error) if isinstance(error, ConnectorError) else error.primary
        # What is refused is counted and told by the writer (C17).
        is_news = not isinstance(error, RecordRefusedError) and self._seldom.due(cause)
        tell = log.warning if is_news else log.debug
        tell("owner_begins_again", owner=self.placement.name, number=key, why=str(error))

    def _tell_end(self, key: K, end: OwnerEnd) -> None:
        error = end.error
        known = isinstance(error, StilltideError)
        log.error(
            "owner_ended",
            owner=self.placement.name,
            number=key,
            place=error.place if known else "",
            why=error.primary if known else repr(error),
            detail=error.detail if known else "",
            hint=error.hint if known else "report this error; the worker serves the rest",
            again_in_s=round(end.again_s - asyncio.get_running_loop().time()),
            exc_info=None if known else error,
        )
