"""A worker's end of direct lines: it listens, and hands requests to its owners.

*Source*: docs/protocols J1, J2, J3, J4.
*Invariants*: only who has been greeted by topic, and knows the id of the client that asked, gets a
line (J2); a line carries requests of applications, never those of operators (C15); an owner that
does not serve any more ends its lines (J3).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stilltide.connectors.chance import Chance, SystemChance
from stilltide.pipeline.drivers.service.ask.batches import Neighbour
from stilltide.pipeline.drivers.service.ask.direct_line import read_frame
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.coordinator.transactions import Greeting
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.framing import encode_batch
from stilltide.schemas.service.direct_lines import (
    CLIENT,
    FRAME_BYTES_MAX,
    NONCE_BYTES,
    PING,
    PROOF_BYTES,
    WORKER,
    framed,
    proof_of,
    same,
)
from stilltide.schemas.service.envelopes import client_key
from stilltide.schemas.values import TopicPartition

log = get_logger(__name__)

PROOF_S = 1.0
"""A connection without proof is closed after this time."""

SILENT_S = 120.0
"""A line from which nothing comes for so long is closed, since its client has gone: a client that
waits for an answer sends a frame each second, and closes the line a minute after its last request.
"""

GREETED_MAX = 4096
"""Greetings that are remembered; the oldest is forgotten first."""

LINES_MAX = 1024
"""Lines of a worker; further connections are closed (J4)."""

UNPROVED_MAX = 256
"""Connections without proof at the same time; further ones are closed."""

UNSENT_BYTES_MAX = 4 * 1024 * 1024
"""Answers that wait for a client which does not read; beyond, the line is closed."""


UNREAD_BYTES = 128 * 1024
"""Answers that wait in a line whose client is slow to read."""

UNREAD_BYTES_MAX = 32 * 1024 * 1024
"""Answers that wait in all lines together; beyond, lines whose clients are slow to read close."""


class _Greeted(NamedTuple):
    client_id: bytes
    client_nonce: bytes
    owner: TopicPartition


class LineServer:
    """The direct lines of one worker; `start` first, `close` last.

    Args:
        host: address to listen on; empty: the worker takes no lines.
        port: port to listen on; 0: any free one.
        advertised: host name or address that clients connect to.
        silent_s: time without a frame after which a line is closed.
        chance: makes nonces; None: that of the operating system.

    Attributes:
        owners: the owners that may have lines, by the topic of their logs and partition.
    """

    def __init__(
        self,
        host: str = "",
        port: int = 0,
        *,
        advertised: str = "",
        silent_s: float = SILENT_S,
        chance: Chance | None = None,
    ) -> None:
        self._chance = chance or SystemChance()
        self._silent_s = silent_s
        self.owners: dict[str, Mapping[int, Neighbour]] = {}
        self._host, self._port, self._advertised = host, port, advertised
        self._server: asyncio.Server | None = None
        self._greeted: OrderedDict[bytes, _Greeted] = OrderedDict()
        self._lines: dict[bytes, dict[TopicPartition, asyncio.StreamWriter]] = {}
        self._unproved = 0

    @property
    def line_count(self) -> int:
        """How many lines there are."""
        return sum(map(len, self._lines.values()))

    @property
    def unread_bytes(self) -> int:
        """Bytes that wait in all lines; costs a walk over them."""
        return sum(
            writer.transport.get_write_buffer_size()
            for lines in self._lines.values()
            for writer in lines.values()
        )

    async def start(self) -> str:
        """Begins to listen; returns the address that clients are told, or "" without lines.

        Raises:
            OSError: the address cannot be bound.
        """
        if not self._host:
            return ""
        self._server = await asyncio.start_server(self._connected, self._host, self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return f"{self._advertised}:{self._port}"

    async def close(self) -> None:
        """Ends every line; clients go on by topic."""
        if self._server is not None:
            self._server.close()
        for lines in list(self._lines.values()):
            for writer in lines.values():
                writer.close()

    def greet(self, owner: TopicPartition, client_id: bytes, client_nonce: bytes) -> Greeting:
        """Answers a client that has asked for a line to the owner of a log (J2)."""
        if self._server is None:
            return Greeting("", 0, b"")
        nonce = self._chance.token(NONCE_BYTES)
        self._greeted[nonce] = _Greeted(client_id, client_nonce, owner)
        while len(self._greeted) > GREETED_MAX:
            self._greeted.popitem(last=False)
        return Greeting(self._advertised, self._port, nonce)

    def send(self, client_id: bytes, answers: Sequence[bytes]) -> bool:
        """Sends answers by a line of the client; False: they must go by topic."""
        lines = self._lines.get(client_id)
        if not lines:
            return False
        writer = next(iter(lines.values()))
        if writer.is_closing():
            return False
        value = encode_batch(answers)
        if len(value) > FRAME_BYTES_MAX:
            return False
        writer.write(framed(value))
        unread = writer.transport.get_write_buffer_size()
        if unread > UNSENT_BYTES_MAX or (
            unread > UNREAD_BYTES and self.unread_bytes > UNREAD_BYTES_MAX
        ):
            log.warning("direct_line_not_read", client=client_key(client_id).hex())
            writer.transport.abort()
        return True

    def owner_ended(self, owner: TopicPartition) -> None:
        """The owner of a log does not serve any more: its clients ask by topic from now on (J3)."""
        for lines in list(self._lines.values()):
            if owner in lines:
                lines[owner].close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeted: _Greeted | None = None
        try:
            if self._unproved < UNPROVED_MAX and self.line_count < LINES_MAX:
                greeted = await self._proved(reader, writer)
            if greeted is not None:
                await self._serve(greeted, reader, writer)
        except StilltideError as error:
            log.warning("direct_line_refused", why=error.primary)
        except (OSError, EOFError, TimeoutError) as error:
            # The client has ended, or is no client of ours.
            log.debug("direct_line_ended", why=str(error))
        finally:
            if greeted is not None:
                self._drop(greeted, writer)
            writer.close()

    async def _proved(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> _Greeted | None:
        """J2: the greeting whose client has proved itself; None: the proof is wrong."""
        self._unproved += 1
        try:
            async with asyncio.timeout(PROOF_S):
                frame = await read_frame(reader, NONCE_BYTES + PROOF_BYTES)
        finally:
            self._unproved -= 1
        nonce, proof = frame[:NONCE_BYTES], frame[NONCE_BYTES:]
        greeted = self._greeted.get(nonce)
        if greeted is None:
            return None
        ids = greeted.client_id, greeted.client_nonce, nonce
        if not same(proof, proof_of(CLIENT, *ids)):
            return None  # the nonce stays: others can read it, and must not use it up
        del self._greeted[nonce]
        writer.write(framed(proof_of(WORKER, *ids)))
        return greeted

    async def _serve(
        self, greeted: _Greeted, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Hands over requests until the line, or its owner, ends."""
        lines = self._lines.setdefault(greeted.client_id, {})
        if earlier := lines.get(greeted.owner):
            earlier.close()
        lines[greeted.owner] = writer
        while True:
            async with asyncio.timeout(self._silent_s):
                value = await read_frame(reader)
            owner = self.owners.get(greeted.owner.topic, {}).get(greeted.owner.partition)
            if owner is None or not owner.serving:
                return
            if value:
                owner.requests_received(value)
            else:
                writer.write(PING)

    def _drop(self, greeted: _Greeted, writer: asyncio.StreamWriter) -> None:
        lines = self._lines.get(greeted.client_id, {})
        if lines.get(greeted.owner) is writer:
            del lines[greeted.owner]
        if not lines:
            self._lines.pop(greeted.client_id, None)
