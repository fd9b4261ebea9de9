"""Text from the cluster and numbers, as HTML that shows them."""

from collections.abc import Sequence
from html import escape as html_escape

from stilltide.schemas.printable import printable


def escape(text: str) -> str:
    """Text as HTML that shows this text: no markup, no control characters, no direction marks."""
    return html_escape(printable(text))


def number(count: int) -> str:
    """A count with its digits in groups of three."""
    return f"{count:,}"


def counted(count: int, one: str, more: str = "") -> str:
    """A count with its noun, such as "1 record" or "2 records"."""
    return f"{number(count)} {one if count == 1 else more or one + 's'}"


def listed(items: Sequence[str]) -> str:
    """The items of a sentence: "a, b and c"."""
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)
