"""A relay of TCP connections to a Kafka broker that keeps chosen requests back."""

import asyncio
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from stilltide.connectors.local.addresses import HOST, free_port

METADATA = 3
INIT_PRODUCER_ID = 22
"""Kinds of requests, as Kafka numbers them."""


class WithholdingProxy:
    """Relays from entry to exit, on the event loop of its caller, all but some requests.

    Args:
        broker_port: port of the broker.
        keeps: whether a request, of this kind and with these bytes, is kept back.

    Attributes:
        port: port on which the proxy listens.
        withheld: the requests that were kept back, in the order in which they came.
        came: set when a request is kept back.
    """

    def __init__(self, broker_port: int, keeps: Callable[[int, bytes], bool]) -> None:
        self.port = free_port()
        self.withheld: list[bytes] = []
        self.came = asyncio.Event()
        self._broker_port, self._keeps = broker_port, keeps
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._begin, HOST, self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def deliver(self) -> None:
        """Brings the broker what was kept back, and waits for its answers."""
        while self.withheld:
            answers, broker = await asyncio.open_connection(HOST, self._broker_port)
            broker.write(_sized(self.withheld.pop(0)))
            await answers.readexactly(4)
            broker.close()

    def _begin(self, asked: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._relay(asked, answers))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relay(self, asked: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        from_broker, to_broker = await asyncio.open_connection(HOST, self._broker_port)
        with suppress(OSError, asyncio.IncompleteReadError, ExceptionGroup):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass_on(asked, to_broker))
                tasks.create_task(_copy(from_broker, answers))
        for end in (answers, to_broker):
            end.transport.abort()

    async def _pass_on(self, asked: asyncio.StreamReader, broker: asyncio.StreamWriter) -> None:
        while True:
            request = await asked.readexactly(*struct.unpack(">i", await asked.readexactly(4)))
            (kind,) = struct.unpack(">h", request[:2])
            if self._keeps(kind, request):
                self.withheld.append(request)
                self.came.set()
            else:
                broker.write(_sized(request))


def _sized(request: bytes) -> bytes:
    return struct.pack(">i", len(request)) + request


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while piece := await source.read(65536):
        target.write(piece)
