"""Makes a Faust App the membership of owners: its assignments, and the requests that it reads.

*Source*: docs/protocols B. Faust's assignment decides which worker runs an owner; the fence (B1)
keeps two owners from writing.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import faust

from stilltide.pipeline.core.buffered_log.accumulator import WriteEntry
from stilltide.pipeline.drivers.buffered_log.owned_log import OwnedLog
from stilltide.pipeline.drivers.worker.runtime import Runtime
from stilltide.schemas.values import TopicPartition


def follow(app: faust.App, runtime: Runtime[Any, Any]) -> None:
    """Has owners follow the App's assignments, and take the requests that the App reads.

    Owners that nobody asks follow the assignment of a topic that another agent reads.
    """
    placement = runtime.placement

    async def assigned(_app: Any, partitions: Any, *_: Any, **__: Any) -> None:
        await runtime.assign(it.partition for it in partitions if it.topic == placement.topic)

    async def revoked(_app: Any, _partitions: Any, *_: Any, **__: Any) -> None:
        runtime.revoke()

    app.on_partitions_assigned.connect(assigned, weak=False)
    app.on_partitions_revoked.connect(revoked, weak=False)
    if placement.is_asked:
        names = [it for it in (placement.topic, placement.operator_topic) if it is not None]
        source = app.topic(*names, key_type=bytes, value_type=bytes, value_serializer="raw")
        app.agent(source, name=placement.name, concurrency=1)(_receiving(runtime))


def _receiving(runtime: Runtime[Any, Any]) -> Callable[[Any], Coroutine[Any, Any, None]]:
    async def receive(stream: Any) -> None:
        # Without `noack`, Faust acknowledges an event whose agent fails, and a restart skips it.
        async for event in stream.noack().events():
            message = event.message
            data = TopicPartition(message.topic, message.partition)
            runtime.received(data, message.offset, event.value)
            await stream.ack(event)

    return receive


Submitted = tuple[OwnedLog, WriteEntry]


class BufferedWriter:
    """Takes entries of the logs that this worker owns, and writes them in a Faust agent.

    The number of waiting entries is bounded by the accumulators: in eager mode one for each log and
    each `delay_ms_max`.
    """

    def __init__(self, app: faust.App) -> None:
        self._channel: Any = app.channel()  # typed for events, but accepts any object
        self._submitted: deque[Submitted] = deque()
        self._wake = asyncio.Event()
        app.agent(self._channel, name="buffered-writer")(self._write)

    def submit(self, log: OwnedLog, entry: WriteEntry) -> None:
        """Queues one entry; the entries of a log are written in the order of these calls."""
        self._submitted.append((log, entry))
        self._wake.set()

    async def run(self) -> None:
        """Feeds the channel until cancelled; a channel takes events only from a coroutine."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._submitted:
                await self._channel.put(self._submitted.popleft())

    async def _write(self, stream: Any) -> None:
        async for log, entry in stream:
            await log.write_entry(entry)
