"""A client's end of the direct lines to the workers of its owners.

*Source*: docs/protocols J1, J2, J4 (rules in `core.service.direct_line`).
*Invariants*: whatever happens to a line, its requests are repeated by topic, and a caller sees
nothing of it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from stilltide.connectors.chance import Chance
from stilltide.pipeline.core.service.direct_line import (
    Close,
    Connect,
    DirectLine,
    Greet,
    LineEffect,
    Ping,
    Repeat,
    Way,
)
from stilltide.pipeline.drivers.shared.alarm import Alarm
from stilltide.pipeline.drivers.shared.tasks import cancelled
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.coordinator.transactions import Greeting
from stilltide.schemas.errors import DecodeError, OversizeError, StilltideError
from stilltide.schemas.framing import decode_value
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


async def read_frame(reader: asyncio.StreamReader, bytes_max: int = FRAME_BYTES_MAX) -> bytes:
    """The next frame's value; empty: a ping.

    Raises:
        OversizeError: the frame is longer than `bytes_max`.
        IncompleteReadError, OSError: the line has ended.
    """
    size_bytes = int.from_bytes(await reader.readexactly(4), "big")
    if size_bytes > bytes_max:
        raise OversizeError(f"a frame of {size_bytes} bytes; the most is {bytes_max}")
    return await reader.readexactly(size_bytes)


log = get_logger(__name__)

CONNECT_S = 3.0
"""Longest time until both sides have proved that they know the client's id."""

UNSENT_BYTES_MAX = 4 * 1024 * 1024
"""Bytes that wait for a worker which does not read; beyond, the line is given up."""


class ClientLine:
    """The direct line to one owner.

    Args:
        client_id: the client's id, which both sides must know.
        ask: asks the owner by topic for a line, with a nonce; raises `StilltideError`.
        answered: takes answers; raises `DecodeError`.
        repeat: sends every request that has no answer again.
        pending: whether a request has no answer.
        chance: makes nonces.
    """

    def __init__(
        self,
        client_id: bytes,
        *,
        ask: Callable[[bytes], Awaitable[Any]],
        answered: Callable[[Sequence[bytes]], None],
        repeat: Callable[[], None],
        pending: Callable[[], bool],
        chance: Chance,
    ) -> None:
        self._chance = chance
        self._client_id = client_id
        self._ask = ask
        self._answered = answered
        self._repeat = repeat
        self._pending = pending
        self._machine = DirectLine()
        self._nonce = b""
        self._writer: asyncio.StreamWriter | None = None
        self._connection = 0  # number of the present one
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarm = Alarm(self._tick)

    @property
    def way(self) -> Way:
        """The state of the line."""
        return self._machine.way

    def send(self, value: bytes) -> bool:
        """Sends the value of a requests record by line; False: it must go by topic."""
        now_ms = self._now_ms()
        self._run(self._machine.used(now_ms))
        if self._machine.way is not Way.LINE or len(value) > FRAME_BYTES_MAX:
            return False
        assert self._writer is not None
        self._writer.write(framed(value))
        self._arm()
        if self._writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self._run(self._machine.lost(now_ms))
        return True

    async def close(self) -> None:
        """Closes the line; nothing is repeated."""
        self._alarm.cancel()
        self._disconnect()
        await cancelled(*self._tasks)

    def _run(self, effects: Sequence[LineEffect]) -> None:
        for effect in effects:
            match effect:
                case Greet():
                    self._start(self._greet())
                case Connect(greeting):
                    self._start(self._connected(greeting))
                case Ping():
                    if self._writer is not None:
                        self._writer.write(PING)
                case Close():
                    self._disconnect()
                case Repeat():
                    self._repeat()

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work, name="direct-line")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _greet(self) -> None:
        self._nonce = self._chance.token(NONCE_BYTES)
        try:
            answer = await self._ask(self._nonce)
        except StilltideError as error:
            log.info("no_direct_line", why=error.primary)
            answer = None
        greeting = answer if isinstance(answer, Greeting) else None
        self._run(self._machine.greeted(greeting, self._now_ms()))

    async def _connected(self, greeting: Greeting) -> None:
        """Connects, and reads until the line ends."""
        writer: asyncio.StreamWriter | None = None
        self._connection = number = self._connection + 1
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(greeting.host, greeting.port)
                await self._prove(reader, writer, greeting)
            self._writer = writer
            self._machine.connected(self._now_ms())
            log.info("direct_line", host=greeting.host, port=greeting.port)
            await self._read(reader)
        except (OSError, EOFError, TimeoutError, StilltideError) as error:
            log.info("direct_line_ended", host=greeting.host, port=greeting.port, why=str(error))
        finally:
            if writer is not None:
                writer.close()
            if self._connection == number:  # else this line was closed
                self._run(self._machine.lost(self._now_ms()))

    async def _prove(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, greeting: Greeting
    ) -> None:
        """J2: proves this side to the worker, and has the worker prove itself."""
        made = partial(
            proof_of,
            client_id=self._client_id,
            client_nonce=self._nonce,
            worker_nonce=greeting.nonce,
        )
        writer.write(framed(greeting.nonce + made(CLIENT)))
        if not same(await read_frame(reader, PROOF_BYTES), made(WORKER)):
            raise DecodeError("what answers at the worker's address does not know the client's id")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while True:
            value = await read_frame(reader)
            self._machine.heard(self._now_ms())
            if value:
                self._answered(decode_value(value))
            self._arm()

    def _disconnect(self) -> None:
        self._connection += 1
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _tick(self) -> None:
        self._machine.awaits(pending=self._pending())
        self._run(self._machine.tick(self._now_ms()))
        self._arm()

    def _arm(self) -> None:
        self._machine.awaits(pending=self._pending())
        self._alarm.arm(self._machine.deadline_ms, self._now_ms())

    @staticmethod
    def _now_ms() -> float:
        return asyncio.get_running_loop().time() * 1000
