"""A listener before a real broker, which passes requests on and keeps answers back.

The broker's address in answers becomes the listener's, so that a client stays with the listener.
"""

import asyncio
import struct
from collections.abc import Collection
from contextlib import closing, suppress
from typing import Any, Self

from kafka.protocol.admin.cluster import DescribeClusterRequest, DescribeClusterResponse
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest, MetadataResponse
from kafka.protocol.metadata.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

GREETING = ApiVersionsRequest.API_KEY
METADATA = MetadataRequest.API_KEY

_NAMING_BROKERS: dict[int, Any] = {
    METADATA: MetadataResponse,
    DescribeClusterRequest.API_KEY: DescribeClusterResponse,
    FindCoordinatorRequest.API_KEY: FindCoordinatorResponse,
}


class MutedBroker:
    """Serves from entry to exit, on the event loop of its caller.

    Args:
        bootstrap: address of the broker.

    Attributes:
        muted: whether answers are kept back now.
        heard: numbers of requests that are answered though it is muted.
        lists_brokers: whether answers to requests for metadata list brokers.
        asked: set when an answer is kept back; the caller may clear it.
    """

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._broker = host, int(port)
        self.muted = False
        self.heard: Collection[int] = ()
        self.lists_brokers = True
        self.asked = asyncio.Event()
        self._kept: list[tuple[asyncio.StreamWriter, bytes]] = []
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def bootstrap(self) -> str:
        """The listener's address."""
        return f"127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def release(self) -> None:
        """Sends the answers that were kept back, and keeps none from now on."""
        self.muted = False
        kept, self._kept = self._kept, []
        for answers, answer in kept:
            answers.write(answer)

    def _accept(self, asked: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(asked, answers))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, asked: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        # Either side may close whenever it likes.
        with closing(answers), suppress(asyncio.IncompleteReadError, ConnectionError):
            answered, requests = await asyncio.open_connection(*self._broker)
            with closing(requests):
                under_way: dict[int, tuple[int, int]] = {}
                async with asyncio.TaskGroup() as tasks:
                    back = tasks.create_task(self._answer(answered, answers, under_way))
                    await self._pass_on(asked, requests, under_way)
                    back.cancel()

    async def _pass_on(
        self,
        asked: asyncio.StreamReader,
        requests: asyncio.StreamWriter,
        under_way: dict[int, tuple[int, int]],
    ) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await _frame(asked)
                key, version, number = struct.unpack(">hhi", request[:8])
                under_way[number] = key, version
                requests.write(struct.pack(">i", len(request)) + request)

    async def _answer(
        self,
        answered: asyncio.StreamReader,
        answers: asyncio.StreamWriter,
        under_way: dict[int, tuple[int, int]],
    ) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                answer = await _frame(answered)
                (number,) = struct.unpack(">i", answer[:4])
                key, version = under_way.pop(number)
                framed = self._renamed(key, version, number, answer)
                if self.muted and key not in self.heard:
                    self._kept.append((answers, framed))
                    self.asked.set()
                else:
                    answers.write(framed)

    def _renamed(self, key: int, version: int, number: int, answer: bytes) -> bytes:
        """The answer in its frame, with the listener as the only broker, or without brokers."""
        if key not in _NAMING_BROKERS:
            return struct.pack(">i", len(answer)) + answer
        response = _NAMING_BROKERS[key][version].decode(answer, header=True)
        for broker in getattr(response, "brokers", None) or getattr(response, "coordinators", []):
            broker.host, broker.port = "127.0.0.1", self._port
        if key == METADATA and not self.lists_brokers:
            response.brokers, response.controller_id = [], -1
        response.with_header(correlation_id=number)
        return bytes(response.encode(header=True, framed=True))


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)
