"""Notebooks of `docs/notebooks`: their cells, and their pages on the site.

*Source*: the notebook format 4.5, of which pages need texts, programs and what programs print.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.site.repository import DOCS, ROOT

NOTEBOOKS = tuple(sorted((ROOT / DOCS / "notebooks").glob("*.ipynb")))


class Cell(NamedTuple):
    """A cell: Markdown, or a program and what it prints."""

    text: str
    is_program: bool
    printed: str


def cells(notebook: Path) -> Iterator[Cell]:
    """The cells of a notebook, in order."""
    for cell in json.loads(notebook.read_text())["cells"]:
        outputs = cell.get("outputs", [])
        printed = "".join(line for one in outputs for line in one["text"])
        yield Cell("".join(cell["source"]), cell["cell_type"] == "code", printed)


def page(notebook: Path) -> str:
    """A page of the site with the cells of a notebook, and a link to the notebook itself."""
    parts: list[str] = []
    for cell in cells(notebook):
        if not cell.is_program:
            parts.append(cell.text)
            continue
        parts.append(f"```python\n{cell.text}\n```")
        if cell.printed:
            parts.append(f"It prints:\n\n```text\n{cell.printed}```")
    title, *rest = parts
    link = f"[Download this page as a notebook]({notebook.name})"
    return "\n\n".join([title, link, *rest]) + "\n"
