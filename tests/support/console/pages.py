"""Pages of the console as HTML, without a server or a browser."""

from html.parser import HTMLParser

from yarl import URL

from stilltide.pipeline.console.feed import Shot
from stilltide.pipeline.console.render import PAGES, PageLook, Renderer, query_of
from stilltide.pipeline.core.status.findings import findings
from stilltide.pipeline.core.status.samples import Sample
from stilltide.pipeline.core.status.values import SystemStatus
from tests.support.console.answers import Answering, unread


class Seen(HTMLParser):
    """The tags, attributes and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes the tag."""
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        """Notes the text."""
        self.texts.append(data)


def look(address: str, status: SystemStatus, answer: Answering = unread) -> PageLook:
    """What a viewer of an address looks at."""
    url = URL(address)
    name = url.path.lstrip("/")
    query = query_of(name, url.query)
    return PageLook(name, query, {ask: answer(ask) for ask in PAGES[name].asks(status, query)})


def shown(
    address: str,
    status: SystemStatus,
    answer: Answering = unread,
    samples: tuple[Sample, ...] = (),
) -> str:
    """A page of a state."""
    seen = look(address, status, answer)
    return Renderer().page(seen, Shot(1, status, findings(status), samples))


def text(address: str, status: SystemStatus, answer: Answering = unread) -> str:
    """The words of a page."""
    return " ".join(" ".join(Seen(shown(address, status, answer)).texts).split())
