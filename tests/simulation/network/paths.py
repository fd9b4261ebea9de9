"""The way between one simulated process and the brokers of one cluster.

*Invariants*: what a process has sent arrives also after its death, or never; nothing is repeated.
The way consists of timers, without tasks, since it takes most turns of a world's loop.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context, copy_context
from functools import partial
from types import CoroutineType
from typing import Any, NamedTuple, cast

from stilltide.connectors.errors import ConnectorError, RetriableError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.ports.copying import COPY_TIMEOUT_S
from stilltide.connectors.ports.readers import NewRecord
from tests.simulation.processes.loop import VirtualLoop
from tests.simulation.processes.process import (
    EVERYWHERE,
    NOBODY,
    Process,
    ProcessChance,
    ProcessClock,
)
from tests.simulation.trace import Trace

REQUEST_S = 5.0
"""Time after which a request without an answer has failed."""

AWAY_S = 3.0
"""Time after which a reader says that its broker is away."""

_TOLD_APART_S = 1e-6


class _Parcel(NamedTuple):
    """A call that has arrived where the way was closed."""

    context: Context
    call: Callable[..., None]
    args: tuple[Any, ...]


class Path:
    """The connections of one process to one cluster.

    Args:
        process: the process.
        cluster: name of the cluster.
        seed: seed of the latencies and of the chance of the process.
        trace: takes what is sent and what is answered.

    Attributes:
        loop: the loop of the world.
        clock, chance: time and chance of the process.
        to_open: whether requests arrive.
        from_open: whether answers arrive.
        slow_s: further latency of each direction.
        blind: topics of which no record arrives at readers of named partitions.
        assigned_s: when the brokers gave a group reader of the process the partitions of which it
            was told last.
        moments: by topic: what happens once a record of the process has been appended there.
    """

    def __init__(self, process: Process, cluster: str, seed: int, trace: Trace) -> None:
        self.loop = cast("VirtualLoop", asyncio.get_running_loop())
        self.process = process
        process.paths[cluster] = self
        self.trace = trace
        self.clock = ProcessClock(process)
        self.chance = process.chance = process.chance or ProcessChance(process, seed)
        self.cluster = cluster
        self.slow_s = 0.0
        self.assigned_s = 0.0
        self.blind: frozenset[str] = frozenset()
        self.moments: dict[str, asyncio.Future[None]] = {}
        self.to_open = True
        self.from_open = True
        self._latency = random.Random(f"latency of {process.name} {seed}").random
        self._moved = asyncio.Event()
        self._told_s = 0.0
        self._stuck_to: list[_Parcel] = []
        self._stuck_from: list[_Parcel] = []
        self._asked: deque[tuple[float, asyncio.Future[Any], str]] = deque()
        self._under_way: set[asyncio.Task[None]] = set()

    def change(self, *, to_open: bool, from_open: bool, slow_s: float = 0.0) -> None:
        """Sets what the path lets through."""
        self.to_open, self.from_open, self.slow_s = to_open, from_open, slow_s
        self._moved.set()
        self._moved = asyncio.Event()
        loop = self.loop
        for is_open, stuck in ((to_open, self._stuck_to), (from_open, self._stuck_from)):
            if is_open:
                for context, call, args in stuck:
                    loop.call_soon(call, *args, context=context)
                stuck.clear()

    @property
    def is_open(self) -> bool:
        """Whether requests and answers arrive."""
        return self.to_open and self.from_open

    def set_blind(self, *topics: str) -> None:
        """Holds records of these topics back from readers, and those of all others not."""
        self.blind = frozenset(topics)
        self._moved.set()
        self._moved = asyncio.Event()

    async def seen(self, topics: set[str]) -> None:
        """Returns when records of these topics arrive."""
        while self.blind & topics:
            await self._moved.wait()

    def moment(self, topic: str) -> "asyncio.Future[None]":
        """Done once a record of the process has been appended to a topic, from now on."""
        return self.moments.setdefault(topic, self.loop.create_future())

    def appended(self, topic: str) -> None:
        """A record of the process was appended to a topic."""
        moment = self.moments.pop(topic, None)
        if moment is not None and not moment.done():
            moment.set_result(None)

    def lag_s(self) -> float:
        """The latency of one direction, drawn for each."""
        chance = self._latency()
        return self.slow_s + (0.0001 + chance * 0.002 if chance < 0.98 else (chance - 0.98) * 10)

    def to(self, call: Callable[..., None], *args: Any) -> None:
        """Makes a call when a request that is sent now arrives at the brokers."""
        loop = self.loop
        loop.call_for(NOBODY, loop.now_s + self.lag_s(), self._arrive, (call, args))

    def back(self, call: Callable[..., None], *args: Any) -> None:
        """Makes a call when an answer that is sent now arrives; answers may overtake each other."""
        loop = self.loop
        loop.call_for(NOBODY, loop.now_s + self.lag_s(), self._return, (call, args))

    def tell(self, call: Callable[..., None], *args: Any) -> None:
        """Calls the process after a latency; calls arrive in order."""
        at_s = self.loop.now_s + self.lag_s()
        if at_s <= self._told_s:
            at_s = self._told_s + _TOLD_APART_S
        self._told_s = at_s
        self.loop.call_for(self.process, at_s, self._return, (call, args))

    def deliver(self, call: Callable[..., None], *args: Any) -> None:
        """Calls the process after a latency, also while `from_open` is false."""
        loop = self.loop
        loop.call_for(self.process, loop.now_s + self.lag_s(), call, args)

    async def open_in_time(self) -> None:
        """Returns when answers arrive.

        Raises:
            RetriableError: no answer has arrived for `AWAY_S`.
        """
        try:
            async with asyncio.timeout(AWAY_S):
                while not self.from_open:
                    await self._moved.wait()
        except TimeoutError:
            raise RetriableError(f"cluster {self.cluster} is away") from None

    def call(self, work: Callable[[], Any], name: str) -> "asyncio.Future[Any]":
        """Sends a request, which the broker carries out; `work` may be awaitable.

        Returns the answer, which is `RetriableError` if none has come in time: the request may have
        been carried out.
        """
        if self.trace.on:
            self.trace.note(self.process.name, f"asks for {name}")
        loop = self.loop
        answer: asyncio.Future[Any] = loop.create_future()
        loop.call_for(NOBODY, loop.now_s + self.lag_s(), self._carry_out, (answer, work, name))
        self._asked.append((loop.now_s + REQUEST_S, answer, name))
        if len(self._asked) == 1:
            self._await_first()
        return answer

    def carry(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` as a part of the network, whatever becomes of the process."""
        task = self.loop.create_task(work, context=EVERYWHERE)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard, context=EVERYWHERE)

    def _arrive(self, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.to_open:
            call(*args)
        else:
            self._stuck_to.append(_Parcel(EVERYWHERE, call, args))

    def _return(self, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.from_open:
            call(*args)
        else:
            self._stuck_from.append(_Parcel(copy_context(), call, args))

    def _carry_out(self, answer: "asyncio.Future[Any]", work: Callable[[], Any], name: str) -> None:
        if not self.to_open:
            self._stuck_to.append(_Parcel(EVERYWHERE, self._carry_out, (answer, work, name)))
            return
        if answer.done():
            if self.trace.on:
                self.trace.note(self.process.name, f"gave up {name}, which had not arrived")
            return  # the caller gave the request up before the request had arrived
        result, error = None, None
        try:
            result = work()
            if isinstance(result, CoroutineType):
                result = _result(result)
        except ConnectorError as failure:
            error = failure
        if self.trace.on:
            self.trace.note(self.process.name, f"{name} is carried out: {error or 'done'}")
        loop = self.loop
        loop.call_for(NOBODY, loop.now_s + self.lag_s(), self._answer, (answer, result, error))

    def _answer(
        self, answer: "asyncio.Future[Any]", result: Any, error: ConnectorError | None
    ) -> None:
        if not self.from_open:
            self._stuck_from.append(_Parcel(EVERYWHERE, self._answer, (answer, result, error)))
        elif answer.done() or self.process.is_dead:
            return
        elif error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    def _await_first(self) -> None:
        """Sets a timer for the oldest request without an answer."""
        self.loop.call_for(self.process, self._asked[0][0], self._look, ())

    def _look(self) -> None:
        """Fails requests without an answer whose time is up."""
        now_s = self.loop.now_s
        while self._asked and (self._asked[0][1].done() or self._asked[0][0] <= now_s):
            _, answer, name = self._asked.popleft()
            if not answer.done():
                text = f"no answer of cluster {self.cluster} to {name}"
                answer.set_exception(RetriableError(text))
        if self._asked:
            self._await_first()


def _result(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a request of the memory broker, which waits for nothing but a turn."""
    while True:
        try:
            awaited = work.send(None)
        except StopIteration as stop:
            return stop.value
        assert awaited is None, f"{work} waits in the network"


class Remote:
    """An admin or a transactional writer whose calls travel."""

    def __init__(self, inner: Any, path: Path) -> None:
        self._inner = inner
        self._path = path

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method, path = getattr(self._inner, name), self._path
        call = self.__dict__[name] = lambda *args, **kwargs: path.call(
            partial(method, *args, **kwargs), name
        )
        return call

    async def close(self) -> None:
        """Ends the admin or the writer, without a way to the broker."""
        await self._inner.close()


class RemoteTransactionalWriter(Remote):
    """A writer of sets of records, whose moments are those at which a set is sent."""

    def write(self, records: Sequence[NewRecord]) -> "asyncio.Future[Any]":
        """Writes all of the records, or none; see `TransactionalWriter.write`."""
        for topic in {it.data.topic for it in records}:
            self._path.appended(topic)
        return self._path.call(lambda: self._inner.write(records), "write")


class RemoteCopyWriter(Remote):
    """A copy writer: the broker aborts in time what a writer has left open that died or failed."""

    def __init__(self, inner: Any, path: Path, broker: MemoryBroker, transactional_id: str) -> None:
        super().__init__(inner, path)
        self._broker = broker
        self._id = transactional_id
        self._epoch = 0
        path.process.on_death.append(self._time_out)

    def fence(self) -> "asyncio.Future[Any]":
        """Takes the transactional id over; see `CopyWriter.fence`."""
        return self._path.call(self._fence, "fence")

    async def close(self) -> None:
        """Ends the writer, without a way to the broker."""
        await super().close()
        self._time_out()

    async def _fence(self) -> None:
        await self._inner.fence()
        self._epoch = self._broker.transactions.epoch_of(self._id)

    def _time_out(self) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(COPY_TIMEOUT_S, self._abort, context=EVERYWHERE)

    def _abort(self) -> None:
        if self._broker.transactions.epoch_of(self._id) == self._epoch:
            self._broker.transactions.end_open(self._id, committed=False)
