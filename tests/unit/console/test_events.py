"""Events that are compressed once for all viewers."""

import zlib

import pytest

from stilltide.pipeline.console.feed import Shot
from stilltide.pipeline.console.render import GZIP_HEAD, Events, PageLook, Renderer
from tests.support.console.states import BUSY, CLUSTER_AWAY
from tests.support.status.samples import WELL

_GZIP = 31
"""Has zlib read a gzip stream."""

LINKS, TRANSACTIONS = PageLook("links", {}, {}), PageLook("transactions", {}, {})
SHOTS = tuple(Shot(number, it, ()) for number, it in enumerate((WELL, BUSY, CLUSTER_AWAY, WELL), 1))


@pytest.mark.parametrize("came", range(len(SHOTS)))
def test_a_viewer_may_come_at_any_state(came: int):
    """The events from then on are one gzip stream, of which each event can be read at once."""
    events = Events(Renderer())
    seen = [(events.plain(LINKS, it), events.packed(LINKS, it)) for it in SHOTS][came:]
    stream = zlib.decompressobj(_GZIP)
    assert stream.decompress(GZIP_HEAD) == b""
    for plain, packed in seen:
        assert stream.decompress(packed) == plain
        assert plain.endswith(b"\n\n")


def test_an_event_is_compressed_once():
    """The second viewer gets the same bytes, and few of them."""
    events = Events(Renderer())
    first = events.packed(TRANSACTIONS, SHOTS[1])
    assert events.packed(TRANSACTIONS, SHOTS[1]) is first
    assert len(first) < len(events.plain(TRANSACTIONS, SHOTS[1])) / 8
