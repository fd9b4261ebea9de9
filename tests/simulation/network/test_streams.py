"""Connections between simulated processes behave as TCP does."""

import asyncio

from tests.simulation.network.paths import Path
from tests.simulation.network.streams import Streams
from tests.simulation.processes.guards import new_loop
from tests.simulation.processes.process import Process
from tests.simulation.trace import Trace


async def serve(told: list[bytes], address: "asyncio.Future[int]") -> None:
    """Answers each line with the line itself."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            told.append(line)
            writer.write(line)
        told.append(b"end")
        writer.close()

    server = await asyncio.start_server(connected, "a-server.1", 0)
    address.set_result(server.sockets[0].getsockname()[1])
    await asyncio.Event().wait()


async def ask(port: int, path: Path) -> list[bytes]:
    """Sends lines, two of them while the way is closed."""
    reader, writer = await asyncio.open_connection("a-server.1", port)
    writer.write(b"1\n")
    answers = [await reader.readline()]
    path.change(to_open=False, from_open=False)
    writer.write(b"2\n")
    writer.write(b"3\n")
    await asyncio.sleep(5)
    path.change(to_open=True, from_open=True)
    return [*answers, await reader.readline(), await reader.readline()]


def test_bytes_keep_their_order_and_a_death_ends_the_connection():
    """What was held back by a way arrives later; the peer of a dead process reads an end."""
    told: list[bytes] = []

    async def world() -> list[bytes]:
        server, client = Process("a-server.1"), Process("a-client.1")
        Path(server, "a", 1, Trace(on=False))
        path = Path(client, "a", 1, Trace(on=False))
        address = asyncio.get_running_loop().create_future()
        serving = server.start(serve(told, address))
        port, answers = await address, []

        async def asking() -> None:
            answers.extend(await ask(port, path))

        await client.start(asking())
        client.kill()
        await asyncio.sleep(1)
        assert told[-1] == b"end"
        serving.cancel()
        return answers

    with new_loop() as loop:
        loop.streams = Streams()
        assert loop.run_until_complete(world()) == [b"1\n", b"2\n", b"3\n"]
    assert told == [b"1\n", b"2\n", b"3\n", b"end"]


def test_where_nobody_listens_a_connection_is_refused():
    """So is one to a process that has died."""

    async def world() -> bool:
        client = Process("a-client.1")
        Path(client, "a", 1, Trace(on=False))
        refused: list[bool] = []

        async def asking() -> None:
            try:
                await asyncio.open_connection("a-server.1", 7)
            except ConnectionRefusedError:
                refused.append(True)

        await client.start(asking())
        return refused == [True]

    with new_loop() as loop:
        loop.streams = Streams()
        assert loop.run_until_complete(world())
