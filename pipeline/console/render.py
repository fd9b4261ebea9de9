"""Pages as HTML: one rendering of each page and state, however many look.

*Source*: docs/console.md; WCAG 2.2 for what people with a screen reader or keyboard need.

*Invariants*: every text is escaped and printable; a page needs nothing but the style sheet and the
script of the console itself, and says everything without the script.

Bodies of pages as server-sent events, each compressed once for all viewers.

*Source*: the HTML standard, section 9.2 (server-sent events); RFC 1951 (deflate), RFC 1952 (gzip).

*Invariants*: an event is compressed without looking back at earlier ones, and ends at a whole byte.
So the same bytes continue the gzip stream of every viewer, whenever the viewer has come.
"""

import sys
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from markupsafe import Markup

from stilltide.pipeline.console import charts
from stilltide.pipeline.console.feed import Shot
from stilltide.pipeline.console.pages import groups as groups_page
from stilltide.pipeline.console.pages import logs, native, stored, topic
from stilltide.pipeline.console.pages import transactions as txns
from stilltide.pipeline.console.pages.links import PARAMS as LINK_PARAMS
from stilltide.pipeline.console.pages.links import links
from stilltide.pipeline.console.pages.logs import logs_asks, logs_page
from stilltide.pipeline.console.pages.native import native_asks, native_page
from stilltide.pipeline.console.pages.overview import overview
from stilltide.pipeline.console.pages.topic import topic_asks, topic_page
from stilltide.pipeline.console.pages.transactions import transactions, transactions_asks
from stilltide.pipeline.console.views import WIDTH, PageSection, PageView, Query, address
from stilltide.pipeline.core.status.asks import Answers, Ask
from stilltide.pipeline.core.status.findings import Weight
from stilltide.pipeline.core.status.values import SystemStatus
from stilltide.pipeline.templates import templates

HERE = Path(__file__).parent


Asks = Callable[[SystemStatus, Query], tuple[Ask, ...]]


class PageKind(NamedTuple):
    """A page of the console.

    Attributes:
        title: its name in the navigation.
        sections: what it shows of a view.
        asks: what must be read for this page only.
        params: names of what a viewer can choose, as in the address of the page.
    """

    title: str
    sections: Callable[[PageView], tuple[PageSection, ...]]
    asks: Asks = lambda _status, _query: ()
    params: tuple[str, ...] = ()


PAGES = {
    "overview": PageKind("Overview", overview),
    txns.NAME: PageKind("Transactions", transactions, transactions_asks, txns.PARAMS),
    topic.NAME: PageKind("Topics", topic_page, topic_asks, topic.PARAMS),
    groups_page.NAME: PageKind(
        "Groups", groups_page.groups, groups_page.groups_asks, groups_page.PARAMS
    ),
    "links": PageKind("Links", links, params=LINK_PARAMS),
    stored.NAME: PageKind("Snapshots", stored.snapshots, params=stored.PARAMS),
    logs.NAME: PageKind("Logs", logs_page, logs_asks),
    native.NAME: PageKind("Native", native_page, native_asks, native.PARAMS),
    "audits": PageKind("Audits", lambda view: stored.audits(view.status)),
}
"""By the last part of the address; `/` is the overview."""

PARAM_CHARS_MAX = 300
"""Characters of a choice; what is longer names nothing that exists."""

RENDERED_BYTES_MAX = 2 * 1024 * 1024
"""Bytes of what is rendered of one state and kept; viewers of one page mostly choose the same."""


def query_of(name: str, given: Query) -> Query:
    """The choices in an address that the page knows, in its own order."""
    return {
        param: given[param]
        for param in PAGES[name].params
        if given.get(param) and len(given[param]) <= PARAM_CHARS_MAX
    }


class PageLook(NamedTuple):
    """What one or more viewers look at: a page, what they have chosen, and what was read for it.

    Attributes:
        name: name of the page.
        query: what they have chosen, of `query_of`.
        answers: what was read for this page only.
    """

    name: str
    query: Query
    answers: Answers

    @property
    def key(self) -> tuple[str, ...]:
        """Equal for viewers who look at the same."""
        return (self.name, *(text for pair in self.query.items() for text in pair))


T = TypeVar("T", str, bytes)


class Rendered(Generic[T]):
    """What was rendered of the newest state, by look; all is dropped where it takes too much."""

    def __init__(self) -> None:
        self._number = self._bytes = 0
        self._kept: dict[tuple[str, ...], T] = {}

    def get(self, look: PageLook, shot: Shot, render: Callable[[PageLook, Shot], T]) -> T:
        """The rendering of a look, made by `render` unless it is there."""
        if shot.number != self._number or self._bytes > RENDERED_BYTES_MAX:
            self._number, self._bytes, self._kept = shot.number, 0, {}
        if look.key not in self._kept:
            self._kept[look.key] = made = render(look, shot)
            self._bytes += sys.getsizeof(made)
        return self._kept[look.key]


class Renderer:
    """Renders pages, and keeps what was rendered of the newest state."""

    def __init__(self) -> None:
        self._templates = templates(HERE / "templates")
        self._bodies = Rendered[str]()

    def page(self, look: PageLook, shot: Shot) -> str:
        """A whole page."""
        body = Markup(self.body(look, shot))  # noqa: S704 - rendered with escapes
        return self._templates.get_template("page.html").render(
            body=body,
            title=title(look.name, shot),
            events=address(f"events/{look.name}", **look.query),
        )

    def body(self, look: PageLook, shot: Shot) -> str:
        """What changes of a page from state to state."""
        return self._bodies.get(look, shot, self._body)

    def door(self, *, is_wrong: bool) -> str:
        """The page that asks for the token."""
        return self._templates.get_template("door.html").render(is_wrong=is_wrong)

    def _body(self, look: PageLook, shot: Shot) -> str:
        status, findings = shot.status, shot.findings
        act = sum(one.weight is Weight.ACT for one in findings)
        return self._templates.get_template("body.html").render(
            name=look.name,
            pages={path: kind.title for path, kind in PAGES.items()},
            title=title(look.name, shot),
            heading=PAGES[look.name].title,
            act=act,
            watch=len(findings) - act,
            away=[cluster.name for cluster in status.clusters if cluster.away],
            at=datetime.fromtimestamp(status.now_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            sections=PAGES[look.name].sections(
                PageView(status, findings, look.query, look.answers, shot.samples)
            ),
            newline=Markup("\n"),
            strip_width=WIDTH,
            chart_width=charts.WIDTH,
            chart_height=charts.HEIGHT,
        )


def title(name: str, shot: Shot) -> str:
    """The title of a page, with the number of findings that need a person."""
    act = sum(one.weight is Weight.ACT for one in shot.findings)
    return f"{f'({act}) ' if act else ''}{PAGES[name].title} - Stilltide"


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
