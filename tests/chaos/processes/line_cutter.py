"""A relay between clients and a worker's direct lines that cuts lines at named points.

The worker tells clients an address at which the relay listens, with the same port as the worker's.
"""

import asyncio
from contextlib import suppress
from enum import StrEnum
from typing import Self

from stilltide.connectors.local.addresses import free_port
from stilltide.pipeline.drivers.service.ask.direct_line import read_frame
from stilltide.schemas.service.direct_lines import framed

WORKER_HOST, RELAY_HOST = "127.0.0.1", "127.0.0.2"


class Cut(StrEnum):
    """Where a line is cut.

    The first frame of each side is a proof; each further one is a request or an answer.
    """

    PROVING = "after the client's proof"
    HALF_A_REQUEST = "in the middle of a request"
    REQUEST = "after a request"
    HALF_AN_ANSWER = "in the middle of an answer"
    BEFORE_AN_ANSWER = "before an answer"
    ANSWER = "after an answer"
    SILENT = "nothing passes any more, and both ends stay open"


_OF_A_REQUEST = {Cut.HALF_A_REQUEST, Cut.REQUEST, Cut.SILENT}
_HALF = {Cut.HALF_A_REQUEST, Cut.HALF_AN_ANSWER}
_PASSES = {Cut.PROVING, Cut.REQUEST, Cut.ANSWER}


class LineCutter:
    """Relays the lines of one worker from entry to exit, on the event loop of its caller.

    Attributes:
        port: of the relay and of the worker.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self._server: asyncio.Server | None = None
        self._wanted: tuple[Cut, asyncio.Future[None]] | None = None
        self._lines: set[asyncio.Task[None]] = set()

    @property
    def settings(self) -> dict[str, object]:
        """Settings of the worker behind the relay."""
        return {
            "line_host": WORKER_HOST,
            "line_port": self.port,
            "line_advertised": RELAY_HOST,
        }

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, RELAY_HOST, self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for line in list(self._lines):
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)

    async def cut(self, where: Cut) -> None:
        """Cuts the next line that comes to this point; returns once it is cut."""
        done = asyncio.get_running_loop().create_future()
        self._wanted = where, done
        await done

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._lines.add(task)
        try:
            with suppress(OSError, EOFError):
                await self._relay(reader, writer)
        finally:
            self._lines.discard(task)
            writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, worker = await asyncio.open_connection(WORKER_HOST, self.port)
        ways = [
            asyncio.create_task(self._pass_on(reader, worker, of_client=True)),
            asyncio.create_task(self._pass_on(answers, writer, of_client=False)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            worker.close()

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, of_client: bool
    ) -> None:
        """Passes frames on until the line is cut or ends."""
        proof = True
        while True:
            value = await read_frame(source)
            cut = self._struck(of_client=of_client, proof=proof) if value else None
            proof = False
            data = framed(value)
            if cut is None or cut in _PASSES:
                target.write(data)
            elif cut in _HALF:
                target.write(data[: len(data) // 2])
            if cut is Cut.SILENT:
                await asyncio.get_running_loop().create_future()  # until one of both ends closes
            await target.drain()
            if cut is not None:
                return

    def _struck(self, *, of_client: bool, proof: bool) -> Cut | None:
        """The cut that is wanted at this frame."""
        if self._wanted is None:
            return None
        where, done = self._wanted
        if proof != (where is Cut.PROVING) or (not proof and of_client != (where in _OF_A_REQUEST)):
            return None
        if proof and not of_client:
            return None
        self._wanted = None
        done.set_result(None)
        return where
