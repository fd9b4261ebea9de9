"""Links, headings and prose of Markdown pages."""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_FENCE = re.compile(r"^\s*(```|~~~)")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")
_LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)")
"""The text of a link may begin on the line before."""

_DEFINITION = re.compile(r"^\s*\[[^\]]+\]:\s*(\S+)")
_TAG = re.compile(r"<(?:a|img)\b[^>]*?\b(?:href|src)=\"([^\"]+)\"")
_NAMED = re.compile(r"<a\b[^>]*?\b(?:id|name)=\"([^\"]+)\"")
_CODE = re.compile(r"`[^`]*`")


@cache
def prose(page: Path) -> tuple[tuple[int, str], ...]:
    """The lines outside fenced code, with their numbers from 1."""
    kept: list[tuple[int, str]] = []
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            kept.append((number, line))
    return tuple(kept)


def without_code(line: str) -> str:
    """A line without what stands in backticks."""
    return _CODE.sub("", line)


def headings(page: Path) -> Iterator[str]:
    """The texts of the headings."""
    for _, line in prose(page):
        if found := _HEADING.match(line):
            yield found[1]


def slug(heading: str) -> str:
    """The anchor of a heading that no earlier one of its page has."""
    return re.sub(r"[^\w\- ]", "", _LINK_TEXT.sub(r"\1", heading).lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    """What a link to a place of the page may name, by GitHub's rule for headings."""
    named: set[str] = set()
    seen: Counter[str] = Counter()
    for text in headings(page):
        anchor = slug(text)
        named.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return frozenset(named | {name for _, line in prose(page) for name in _NAMED.findall(line)})


_LINK_TEXT = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def links(page: Path) -> Iterator[tuple[int, str]]:
    """The targets of the links and pictures of a page, with their lines."""
    for number, line in prose(page):
        text = without_code(line)
        for pattern in (_LINK, _DEFINITION, _TAG):
            yield from ((number, target) for target in pattern.findall(text))
