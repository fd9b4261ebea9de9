"""The way between one simulated process and the brokers of one cluster.

*Invariants*: what a process has sent arrives also after its death, or never; nothing is repeated.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from stilltide.connectors.errors import ConnectorError, RetriableError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.ports.copying import COPY_TIMEOUT_S
from tests.simulation.processes.process import EVERYWHERE, Process, ProcessChance, ProcessClock
from tests.simulation.trace import Trace

REQUEST_S = 5.0
"""Time after which a request without an answer has failed."""

AWAY_S = 3.0
"""Time after which a reader says that its broker is away."""


class Path:
    """The connections of one process to one cluster.

    Args:
        process: the process.
        cluster: name of the cluster.
        seed: seed of the latencies and of the chance of the process.
        trace: takes what is sent and what is answered.

    Attributes:
        clock, chance: time and chance of the process.
        to_open: whether requests arrive.
        from_open: whether answers arrive.
        slow_s: further latency of each direction.
    """

    def __init__(self, process: Process, cluster: str, seed: int, trace: Trace) -> None:
        self.process = process
        self.trace = trace
        self.clock = ProcessClock(process)
        self.chance = ProcessChance(process, seed)
        self.cluster = cluster
        self.slow_s = 0.0
        self.to_open = True
        self.from_open = True
        self._latency = random.Random(f"latency of {process.name} {seed}")
        self._moved = asyncio.Event()
        self._told_s = 0.0
        self._under_way: set[asyncio.Task[None]] = set()
        self._look_at = 100

    def change(self, *, to_open: bool, from_open: bool, slow_s: float = 0.0) -> None:
        """Sets what the path lets through."""
        self.to_open, self.from_open, self.slow_s = to_open, from_open, slow_s
        self._moved.set()
        self._moved = asyncio.Event()

    def lag_s(self) -> float:
        """The latency of one direction, drawn for each."""
        chance = self._latency.random()
        return self.slow_s + (0.0001 + chance * 0.002 if chance < 0.98 else (chance - 0.98) * 10)

    async def to(self) -> None:
        """Returns when a request that is sent now arrives."""
        await asyncio.sleep(self.lag_s())
        while not self.to_open:
            await self._moved.wait()

    async def back(self) -> None:
        """Returns when an answer that is sent now arrives."""
        await asyncio.sleep(self.lag_s())
        while not self.from_open:
            await self._moved.wait()

    async def back_in_time(self) -> None:
        """As `back`, for a reader.

        Raises:
            RetriableError: nothing has arrived for `AWAY_S`.
        """
        try:
            async with asyncio.timeout(AWAY_S):
                await self.back()
        except TimeoutError:
            raise RetriableError(f"cluster {self.cluster} is away") from None

    async def call(self, work: Callable[[], Any], name: str) -> Any:
        """Has the broker carry out a request, and returns its answer; `work` may be awaitable.

        Raises:
            RetriableError: no answer; the request may have been carried out.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self.trace.note(self.process.name, f"asks for {name}")
        self.carry(self._carry(work, answer, name))
        try:
            async with asyncio.timeout(REQUEST_S):
                return await answer
        except TimeoutError:
            raise RetriableError(f"no answer of cluster {self.cluster} to {name}") from None

    def carry(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` as a part of the network, whatever becomes of the process."""
        if len(self._under_way) >= self._look_at:  # cheaper than a callback of each task
            self._under_way = {it for it in self._under_way if not it.done()}
            self._look_at = 2 * len(self._under_way) + 100
        self._under_way.add(asyncio.get_running_loop().create_task(work, context=EVERYWHERE))

    def tell(self, call: Callable[..., None], *args: Any) -> None:
        """Calls the process after a latency; calls arrive in order."""
        loop = asyncio.get_running_loop()
        self._told_s = max(self._told_s + 1e-6, loop.time() + self.lag_s())
        loop.call_at(self._told_s, call, *args, context=self.process.context)

    async def _carry(
        self, work: Callable[[], Any], answer: "asyncio.Future[Any]", name: str
    ) -> None:
        await self.to()
        if answer.done():
            self.trace.note(self.process.name, f"gave up {name}, which had not arrived")
            return  # the caller gave the request up before the request had arrived
        try:
            result, error = work(), None
            if asyncio.iscoroutine(result):
                result = await result
        except ConnectorError as failure:
            result, error = None, failure
        self.trace.note(self.process.name, f"{name} is carried out: {error or 'done'}")
        await self.back()
        if answer.done() or self.process.is_dead:
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)


class Remote:
    """An admin or a transactional writer whose calls travel."""

    def __init__(self, inner: Any, path: Path) -> None:
        self._inner = inner
        self._path = path

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._path.call(lambda: method(*args, **kwargs), name)

        return call

    async def close(self) -> None:
        """Ends the admin or the writer, without a way to the broker."""
        await self._inner.close()


class RemoteCopyWriter(Remote):
    """A copy writer: the broker aborts what a dead process has left open."""

    def __init__(self, inner: Any, path: Path, broker: MemoryBroker, transactional_id: str) -> None:
        super().__init__(inner, path)
        self._broker = broker
        self._id = transactional_id
        path.process.on_death.append(self._died)

    def _died(self) -> None:
        loop = asyncio.get_running_loop()
        epoch = self._broker.transactions.epoch_of(self._id)
        loop.call_later(COPY_TIMEOUT_S, self._abort, epoch, context=EVERYWHERE)

    def _abort(self, epoch: int) -> None:
        if self._broker.transactions.epoch_of(self._id) == epoch:
            self._broker.transactions.end_open(self._id, committed=False)
