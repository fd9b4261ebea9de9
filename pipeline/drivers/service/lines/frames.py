"""Reads the frames of a direct line from a stream."""

import asyncio

from stilltide.schemas.errors import OversizeError
from stilltide.schemas.service.lines import FRAME_BYTES_MAX


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
