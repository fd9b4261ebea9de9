"""Markdown of the generated pages: tables, and text that must not be read as markup."""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path

from tests.site.repository import ROOT
from tests.tidy.markdown import headings, slug

_RULE = re.compile(r"(?<![\w.])([A-J])(\d{1,2}b?)(?!\w)")
_BETWEEN_TAGS = re.compile(r">[^<>]+<")
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
    return _RULE.sub(lambda found: _linked(found[0], "[{rule}](../protocols/{page}.md#{at})"), text)


def with_rules_in_html(html: str) -> str:
    """The same for a page that is HTML already: only what stands between tags is text."""
    link = '<a href="../protocols/{page}.html#{at}">{rule}</a>'
    return _BETWEEN_TAGS.sub(
        lambda text: _RULE.sub(lambda found: _linked(found[0], link), text[0]), html
    )


def _linked(rule: str, form: str) -> str:
    found = _rules().get(rule)
    return form.format(rule=rule, page=found[0], at=found[1]) if found else rule


@cache
def _rules() -> dict[str, tuple[str, str]]:
    """The page and the anchor of each rule."""
    found: dict[str, tuple[str, str]] = {}
    for page in sorted(Path(ROOT / "docs/protocols").glob("[a-j]-*.md")):
        for heading in headings(page):
            if entry := _HEADING.match(heading):
                found[entry[1]] = (page.stem, slug(heading))
    return found
