"""Markdown of the generated pages: tables, and text that must not be read as markup."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from tests.site.repository import ROOT
from tests.tidy.markdown import headings, slug

_RULE = re.compile(r"(?<![\w.])([A-J])(\d{1,2}b?)(?!\w)")
_HEADING = re.compile(r"([A-J]\d{1,2}b?) ")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells hold no line breaks."""
    lines = [columns, ["---"] * len(columns), *([_cell(one) for one in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    assert "\n" not in text, text
    return text.replace("|", "&#124;")


def code(text: object) -> str:
    """A name or value as code; nothing for nothing."""
    if "|" in str(text):  # choices; a table may break the line behind each
        return f"<code>{escape(str(text)).replace('|', '|<wbr>')}</code>"
    return f"`{text}`" if str(text) else ""


def with_rules(text: str) -> str:
    """A text with links from the numbers of rules to their entries."""
    places = _rules()

    def replace(found: re.Match[str]) -> str:
        place = places.get(found[0])
        return f"[{found[0]}](../protocols/{place})" if place else found[0]

    return _RULE.sub(replace, text)


def _rules() -> dict[str, str]:
    found: dict[str, str] = {}
    for page in sorted(Path(ROOT / "docs/protocols").glob("[a-j]-*.md")):
        for heading in headings(page):
            if entry := _HEADING.match(heading):
                found[entry[1]] = f"{page.name}#{slug(heading)}"
    return found
