"""A relay of TCP connections between a program and a Kafka broker, which goes wrong on demand.

Kafka's frames, in both directions, are four bytes of length and so many bytes.
"""

import asyncio
import struct
from contextlib import suppress
from enum import StrEnum
from typing import Self

from stilltide.connectors.local.addresses import HOST, free_port
from tests.support.looks import lasting

_READ_BYTES = 64 * 1024
_QUEUE_MAX = 64
"""Pieces of one direction that are on their way; at the limit the sender waits."""


class Way(StrEnum):
    """A direction."""

    TO_BROKER = "to the broker"
    FROM_BROKER = "from the broker"


class Valve:
    """What happens to the bytes of one direction of all connections of a proxy.

    Attributes:
        delay_s: how much later each piece arrives.
    """

    def __init__(self) -> None:
        self.delay_s = 0.0
        self._open = asyncio.Event()
        self._open.set()

    def shut(self) -> None:
        """Nothing passes any more; connections stay open."""
        self._open.clear()

    def open(self) -> None:
        """What was kept back passes, and all that follows."""
        self._open.set()

    async def passed(self) -> None:
        """Returns while bytes pass."""
        await self._open.wait()


class Frames:
    """Follows the frames of one direction of a connection."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0

    def take(self, piece: bytes) -> None:
        """A piece was passed on."""
        at = 0
        while at < len(piece):
            if self._left:
                step = min(self._left, len(piece) - at)
                self._left -= step
            else:
                step = min(4 - len(self._head), len(piece) - at)
                self._head += piece[at : at + step]
                if len(self._head) == 4:
                    (self._left,) = struct.unpack(">i", self._head)
                    self._head = b""
            at += step

    @property
    def are_whole(self) -> bool:
        """Whether the next byte begins a frame."""
        return not self._left and not self._head

    def half(self, piece: bytes) -> bytes:
        """A beginning of a piece, at least a byte of it, that ends within a frame.

        Empty if there is none: the piece is a single byte that ends a frame.
        """
        for size in range(max(1, len(piece) // 2), len(piece) + 1):
            after = Frames()
            after._head, after._left = self._head, self._left
            after.take(piece[:size])
            if not after.are_whole:
                return piece[:size]
        return b""


class Proxy:
    """Relays from entry to exit, on the event loop of its caller.

    Args:
        port: port of the broker.

    Attributes:
        port: port on which the proxy listens; nobody else chooses the port meanwhile.
        valves: what happens in each direction.
    """

    def __init__(self, port: int) -> None:
        self.port = free_port()
        self.valves = {way: Valve() for way in Way}
        self._broker_port = port
        self._cut: asyncio.Future[None] | None = None
        self._cut_way = Way.TO_BROKER
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """Where programs find the broker."""
        return f"{HOST}:{self.port}"

    @property
    def connection_count(self) -> int:
        """Connections that are open, also those that are half open."""
        return len(self._connections)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._begin, HOST, self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def mend(self) -> None:
        """All is well again, except for connections that `half_open` has met."""
        for valve in self.valves.values():
            valve.delay_s = 0.0
            valve.open()
        self._cut = None

    def half_open(self) -> None:
        """Nothing passes on the connections that are open now, for good; new ones are well.

        Neither side is told, as when a firewall forgets its connections.
        """
        for connection in self._connections:
            for valve in connection.valves.values():
                valve.shut()

    def reset(self) -> None:
        """Ends all connections at once."""
        for connection in list(self._connections):
            connection.reset()

    def cut_next_frame(self, way: Way) -> "asyncio.Future[None]":
        """Ends the connection of the next frame in this direction in the middle of the frame."""
        self._cut, self._cut_way = asyncio.get_running_loop().create_future(), way
        return self._cut

    def take_cut(self, way: Way) -> "asyncio.Future[None] | None":
        """The cut that waits for a frame of this direction; the caller carries it out, or not."""
        return self._cut if self._cut_way is way else None

    def cut_done(self) -> None:
        """The cut that waited was carried out."""
        if self._cut is not None and not self._cut.done():
            self._cut.set_result(None)
        self._cut = None

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of asyncio's own would log that it was cancelled.
        task = asyncio.create_task(self._connected(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                await self._relay(reader, writer)
        finally:
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for valve in self.valves.values():
            await valve.passed()  # a connection needs both directions
        answers, broker = await asyncio.open_connection(HOST, self._broker_port)
        connection = _Connection(self, (writer, broker))
        self._connections.add(connection)
        try:
            await connection.run((reader, broker), (answers, writer))
        finally:
            self._connections.discard(connection)
            broker.transport.abort()


class _Connection:
    """One connection of a program, and that to the broker which belongs to it."""

    def __init__(self, proxy: Proxy, ends: tuple[asyncio.StreamWriter, ...]) -> None:
        self.valves = {way: Valve() for way in Way}
        self._proxy, self._ends = proxy, ends

    def reset(self) -> None:
        """Ends it, without what is under way."""
        for end in self._ends:
            end.transport.abort()

    async def run(
        self,
        to_broker: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        from_broker: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Relays until one side has ended."""
        running: list[asyncio.Task[None]] = []
        for way, (reader, writer) in zip(Way, (to_broker, from_broker), strict=True):
            pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUE_MAX)
            running.append(asyncio.create_task(self._take(way, reader, pieces)))
            running.append(asyncio.create_task(self._give(way, writer, pieces)))
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            self.reset()

    async def _take(
        self, way: Way, reader: asyncio.StreamReader, pieces: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        now_s = asyncio.get_running_loop().time
        while piece := await reader.read(_READ_BYTES):
            await pieces.put((now_s() + self._proxy.valves[way].delay_s, piece))
        # The end arrives after what was sent before it, and as late.
        await pieces.put((now_s() + self._proxy.valves[way].delay_s, b""))
        await asyncio.get_running_loop().create_future()

    async def _give(
        self, way: Way, writer: asyncio.StreamWriter, pieces: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        frames, now_s = Frames(), asyncio.get_running_loop().time
        while True:
            due_s, piece = await pieces.get()
            if due_s > now_s():
                await lasting(due_s - now_s())
            await self.valves[way].passed()
            await self._proxy.valves[way].passed()
            if not piece:
                return
            if self._proxy.take_cut(way) is not None and (half := frames.half(piece)):
                writer.write(half)
                await writer.drain()
                self._proxy.cut_done()
                return
            frames.take(piece)
            writer.write(piece)
            await writer.drain()
