"""The proxy between programs and brokers passes frames on, and goes wrong as it is told."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from stilltide.connectors.local.addresses import HOST
from tests.support.processes.proxy import Frames, Proxy, Way

FRAME = struct.pack(">i", 6) + b"abcdef"


@asynccontextmanager
async def echo() -> AsyncIterator[int]:
    """A server that sends back what it is sent; its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(1000):
            writer.write(piece)
        writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Proxy, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A proxy before a server, and a connection that works."""
    async with echo() as port, Proxy(port) as proxy:
        reader, writer = await asyncio.open_connection(HOST, proxy.port)
        writer.write(FRAME)
        assert await reader.readexactly(len(FRAME)) == FRAME
        yield proxy, reader, writer
        writer.transport.abort()


async def silent(reader: asyncio.StreamReader) -> bool:
    """Whether nothing comes, not even an end."""
    try:
        async with asyncio.timeout(0.1):
            await reader.read(1)
    except TimeoutError:
        return True
    return False


@pytest.mark.parametrize("way", Way)
async def test_a_dead_direction_keeps_bytes_back(way: Way):
    """What was sent meanwhile arrives when the direction is well again; nobody is told."""
    async with connected() as (proxy, reader, writer):
        proxy.valves[way].shut()
        writer.write(FRAME)
        assert await silent(reader)
        proxy.mend()
        assert await reader.readexactly(len(FRAME)) == FRAME


async def test_a_half_open_connection_passes_nothing_any_more():
    """The connection stays open for good; the next connection works at once."""
    async with connected() as (proxy, reader, writer):
        proxy.half_open()
        proxy.mend()
        writer.write(FRAME)
        assert await silent(reader)
        other, more = await asyncio.open_connection(HOST, proxy.port)
        more.write(FRAME)
        assert await other.readexactly(len(FRAME)) == FRAME
        assert proxy.connection_count == 2
        more.transport.abort()


@pytest.mark.parametrize("way", Way)
async def test_a_frame_is_cut_in_its_middle(way: Way):
    """A part of the frame arrives, then the end of the connection."""
    async with connected() as (proxy, reader, writer):
        cut = proxy.cut_next_frame(way)
        writer.write(FRAME)
        await cut
        received = await reader.read()
        assert len(received) < len(FRAME)
        assert FRAME.startswith(received)


async def test_pieces_arrive_late():
    """Each piece takes the delay of both directions; the order stays."""
    async with connected() as (proxy, reader, writer):
        for valve in proxy.valves.values():
            valve.delay_s = 0.1
        began_s = asyncio.get_running_loop().time()
        writer.write(FRAME[:3])
        writer.write(FRAME[3:])
        assert await reader.readexactly(len(FRAME)) == FRAME
        assert asyncio.get_running_loop().time() - began_s >= 0.2


async def test_the_end_of_one_side_reaches_the_other_one():
    """After the client has closed, the proxy keeps no connection."""
    async with connected() as (proxy, reader, writer):
        writer.write_eof()
        assert await reader.read() == b""
        assert proxy.connection_count == 0


def test_halves_end_within_a_frame():
    """Wherever pieces begin and end, a half is not empty and leaves a frame unfinished."""
    for before in range(len(FRAME)):
        frames = Frames()
        frames.take(FRAME + FRAME[:before])
        assert frames.are_whole == (not before)
        half = frames.half(FRAME[before:] + FRAME)
        frames.take(half)
        assert half
        assert not frames.are_whole
    frames = Frames()
    frames.take(FRAME[:-1])
    assert frames.half(FRAME[-1:]) == b""
