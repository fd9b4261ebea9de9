"""HTML from templates: the console's pages, and an audit's report.

*Invariants*: every text is escaped, and what a stranger wrote is printable: no markup, no control
characters, no marks of direction.
"""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from stilltide.schemas.printable import printable


def templates(folder: Path) -> Environment:
    """The templates of a folder; a name that a template uses and nobody gives is an error."""
    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )


def _finalized(value: Any) -> Any:
    """Text of strangers as printable text, before it is escaped."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return printable(value)
