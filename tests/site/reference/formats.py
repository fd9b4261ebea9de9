"""The reference of wire formats, from the `.proto` sources and their comments."""

import re
from pathlib import Path

from tests.site.reference.text import with_rules
from tests.site.repository import ROOT

SOURCES = ROOT / "schemas/v1"

_HEAD = """\
# Wire formats

Records of system topics hold messages of protobuf. A field that a reader does not know is passed
over; an unknown version is an error. Golden tests keep the bytes: data that a version of Stilltide
has written is read by every later one. [Log entries](../protocols/a-log-entries.md#the-format)
describes how messages share a record, and [visibility](../protocols/d-visibility.md) the header
`txn` of the records of applications.

"""
_BLOCK = re.compile(
    r"((?:^//[^\n]*\n)*)^(?:message|enum) (\w+) \{(?:\}|.*?^\})$", re.MULTILINE | re.DOTALL
)


def sources() -> list[Path]:
    """The `.proto` files."""
    return sorted(SOURCES.glob("*.proto"))


def messages(text: str) -> list[tuple[str, str, str]]:
    """Name, comment and source of each message at the top of a file."""
    return [
        (found[2], _prose(found[1]), found[0].removeprefix(found[1]))
        for found in _BLOCK.finditer(text)
    ]


def page() -> str:
    """The text of the page."""
    parts = [_HEAD]
    for path in sources():
        text = path.read_text()
        head = re.match(r"(?:^//.*\n)+", text)
        assert head, path
        parts.append(f"## {path.name}\n\n{with_rules(_prose(head[0]))}\n\n")
        for name, comment, source in messages(text):
            parts.append(f"### {name}\n\n{with_rules(comment)}\n\n```protobuf\n{source}\n```\n\n")
    return "".join(parts)


def _prose(comment: str) -> str:
    return " ".join(line.removeprefix("//").strip() for line in comment.splitlines())
