"""Pages as HTML: one rendering of each page and state, however many look.

*Source*: docs/console.md; WCAG 2.2 for what people with a screen reader or keyboard need.

*Invariants*: every text is escaped and printable; a page needs nothing but the style sheet and the
script of the console itself, and says everything without the script.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from stilltide.pipeline.console.feed import Shot
from stilltide.pipeline.console.pages.audits import audits
from stilltide.pipeline.console.pages.groups import groups
from stilltide.pipeline.console.pages.links import links
from stilltide.pipeline.console.pages.overview import overview
from stilltide.pipeline.console.pages.stored import snapshots
from stilltide.pipeline.console.pages.transactions import transactions
from stilltide.pipeline.console.views import PageSection
from stilltide.pipeline.core.status.findings import StatusFinding, Weight
from stilltide.pipeline.core.status.state import SystemStatus
from stilltide.schemas.printable import printable

HERE = Path(__file__).parent


class PageKind(NamedTuple):
    """A page of the console.

    Attributes:
        title: its name in the navigation.
        sections: what it shows of a state.
    """

    title: str
    sections: Callable[[SystemStatus, Sequence[StatusFinding]], tuple[PageSection, ...]]


PAGES = {
    "overview": PageKind("Overview", overview),
    "transactions": PageKind("Transactions", lambda status, _: transactions(status)),
    "groups": PageKind("Groups", lambda status, _: groups(status)),
    "links": PageKind("Links", lambda status, _: links(status)),
    "snapshots": PageKind("Snapshots", lambda status, _: snapshots(status)),
    "audits": PageKind("Audits", lambda status, _: audits(status)),
}
"""By the last part of the address; `/` is the overview."""


class Renderer:
    """Renders pages, and keeps what was rendered of the newest state."""

    def __init__(self) -> None:
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_finalized,
        )
        self._number = 0
        self._bodies: dict[str, str] = {}

    def page(self, name: str, shot: Shot) -> str:
        """A whole page."""
        body = Markup(self.body(name, shot))  # noqa: S704 - rendered with escapes
        return self._templates.get_template("page.html").render(
            body=body, title=title(name, shot), name=name
        )

    def body(self, name: str, shot: Shot) -> str:
        """What changes of a page from state to state."""
        if shot.number != self._number:
            self._number, self._bodies = shot.number, {}
        if name not in self._bodies:
            self._bodies[name] = self._body(name, shot)
        return self._bodies[name]

    def door(self, *, is_wrong: bool) -> str:
        """The page that asks for the token."""
        return self._templates.get_template("door.html").render(is_wrong=is_wrong)

    def _body(self, name: str, shot: Shot) -> str:
        status, found = shot.status, shot.found
        act = sum(one.weight is Weight.ACT for one in found)
        return self._templates.get_template("body.html").render(
            name=name,
            pages={path: kind.title for path, kind in PAGES.items()},
            title=title(name, shot),
            heading=PAGES[name].title,
            act=act,
            watch=len(found) - act,
            away=[one.name for one in status.clusters if one.away],
            at=datetime.fromtimestamp(status.now_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            sections=PAGES[name].sections(status, found),
        )


def title(name: str, shot: Shot) -> str:
    """The title of a page, with the number of findings that need a person."""
    act = sum(one.weight is Weight.ACT for one in shot.found)
    return f"{f'({act}) ' if act else ''}{PAGES[name].title} - Stilltide"


def _finalized(value: Any) -> Any:
    """Text of strangers as printable text, before it is escaped."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return printable(value)
