"""TCP between simulated processes: what asyncio's streams ask of a loop.

*Invariants*: bytes of a connection keep their order, and travel on the ways of both processes, so
that who is cut off from its cluster is cut off from its peer. What is held back by a way arrives
later, as TCP repeats it. A process that dies closes its connections.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.simulation.network.paths import Path
from tests.simulation.processes.process import PROCESS

Factory = Callable[[], Any]
"""Makes the protocol of a connection."""


class _Listener(NamedTuple):
    factory: Factory
    path: Path


class _Socket(NamedTuple):
    port: int

    def getsockname(self) -> tuple[str, int]:
        """The address."""
        return "", self.port


class Listening:
    """Takes the place of asyncio's server."""

    def __init__(self, streams: "Streams", address: tuple[str, int]) -> None:
        self._streams = streams
        self._address = address
        self.sockets = (_Socket(address[1]),)

    def close(self) -> None:
        """Takes no further connections."""
        self._streams.listeners.pop(self._address, None)


class Side(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.peer: Side
        self._path = path
        self._protocol: Any = None
        self._under_way: deque[bytes] = deque()  # empty bytes: the end
        self._closed = False
        path.process.on_death.append(self._end)

    def made(self, protocol: Any) -> None:
        """The connection is there for this process."""
        self._protocol = protocol
        protocol.connection_made(self)

    def arrived(self) -> None:
        """The oldest bytes under way to the peer of this side have left this side's network."""
        self.peer.take(self._under_way.popleft())

    def take(self, data: bytes) -> None:
        """Bytes are at the network of this side."""
        self._path.tell(self._deliver, data)

    def _deliver(self, data: bytes) -> None:
        if self._closed or self._protocol is None:
            return
        if data:
            self._protocol.data_received(data)
        else:
            self._protocol.eof_received()

    def _end(self) -> None:
        if not self._closed:
            self._send(b"")
            self._closed = True

    def _send(self, data: bytes) -> None:
        self._under_way.append(data)
        self._path.to(self.arrived)

    # What asyncio's streams call.

    def write(self, data: Any) -> None:
        """Sends bytes."""
        if data and not self._closed:
            self._send(bytes(data))

    def get_write_buffer_size(self) -> int:
        """How many bytes have not left the network of this side."""
        return sum(map(len, self._under_way))

    def is_closing(self) -> bool:
        """Whether this side was closed."""
        return self._closed

    def close(self) -> None:
        """Closes the connection; what was sent before arrives."""
        if self._closed or self._path.process.is_dead:
            return
        self._end()
        if self._protocol is not None:
            self._path.process.call(self._protocol.connection_lost, None)

    def abort(self) -> None:
        """Closes the connection."""
        self.close()

    def pause_reading(self) -> None:
        """Does nothing: the limit of a stream's buffer is no matter of these worlds."""

    def resume_reading(self) -> None:
        """Does nothing."""


class Streams:
    """The listening processes of a world, and connections to them.

    Attributes:
        listeners: by host and port; the host is the name of the process.
    """

    def __init__(self) -> None:
        self.listeners: dict[tuple[str, int], _Listener] = {}
        self._ports = 0

    def listen(self, factory: Factory) -> Listening:
        """Has the process that calls take connections."""
        self._ports += 1
        process = PROCESS.get()
        address = process.name, self._ports
        path = process.paths[process.name.partition("-")[0]]  # of its own cluster
        self.listeners[address] = _Listener(factory, path)
        server = Listening(self, address)
        process.on_death.append(server.close)
        return server

    async def connect(self, factory: Factory, host: str, port: int) -> tuple[Side, Any]:
        """Connects the process that calls.

        Raises:
            ConnectionRefusedError: nobody listens.
        """
        paths = PROCESS.get().paths
        path = paths[host.partition("-")[0]]
        answer: asyncio.Future[Side] = path.loop.create_future()
        path.to(self._arrive, path, answer, (host, port))
        side = await answer
        protocol = factory()
        side.made(protocol)
        return side, protocol

    def _arrive(self, path: Path, answer: "asyncio.Future[Side]", address: tuple[str, int]) -> None:
        listener = self.listeners.get(address)
        if listener is None:
            path.tell(_refuse, answer)
        else:
            listener.path.back(self._accept, listener, path, answer)

    def _accept(self, listener: _Listener, path: Path, answer: "asyncio.Future[Side]") -> None:
        process = listener.path.process
        if process.is_dead:
            path.tell(_refuse, answer)
            return
        side, peer = Side(path), Side(listener.path)
        side.peer, peer.peer = peer, side
        process.call(lambda: peer.made(listener.factory()))
        path.tell(_connected, answer, side)


def _refuse(answer: "asyncio.Future[Side]") -> None:
    if not answer.done():
        answer.set_exception(ConnectionRefusedError("nobody listens"))


def _connected(answer: "asyncio.Future[Side]", side: Side) -> None:
    if answer.done():  # the caller has given up
        side.abort()
    else:
        answer.set_result(side)
