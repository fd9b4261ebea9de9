"""Bodies of pages as server-sent events, each compressed once for all viewers.

*Source*: the HTML standard, section 9.2 (server-sent events); RFC 1951 (deflate), RFC 1952 (gzip).

*Invariants*: an event is compressed without looking back at earlier ones, and ends at a whole byte.
So the same bytes continue the gzip stream of every viewer, whenever the viewer has come.
"""

import zlib

from stilltide.pipeline.console.feed import Shot
from stilltide.pipeline.console.render import PageLook, Rendered, Renderer

GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""What begins a gzip stream: deflate, no name, no time, any system."""

_RAW_WINDOW = -15
"""Has zlib write deflate's bytes without a header of their own, with the largest window."""


class Events:
    """The events of the newest state.

    Args:
        renderer: renders the bodies.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._packed = Rendered[bytes]()

    def plain(self, look: PageLook, shot: Shot) -> bytes:
        """The event of a page."""
        lines = self._renderer.body(look, shot).split("\n")
        return b"".join(b"data: %s\n" % line.encode() for line in lines) + b"\n"

    def packed(self, look: PageLook, shot: Shot) -> bytes:
        """The same, compressed; follows `GZIP_HEAD` or another packed event."""
        return self._packed.get(look, shot, self._pack)

    def _pack(self, look: PageLook, shot: Shot) -> bytes:
        packer = zlib.compressobj(wbits=_RAW_WINDOW)
        return packer.compress(self.plain(look, shot)) + packer.flush(zlib.Z_FULL_FLUSH)
