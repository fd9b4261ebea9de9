"""Runs notebooks of the documentation cell by cell: `python -m ... NOTEBOOK BROKER`."""

import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from tests.site.notebooks import cells

ADDRESS = "127.0.0.1:9092"


def run_notebook(notebook: Path, bootstrap: str) -> None:
    """Runs the programs with the address exchanged; each prints what the notebook says.

    The active Spark session, if there is one, takes the place of the notebook's own.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells(notebook)):
        if cell.is_program:
            source = cell.text.replace(ADDRESS, bootstrap)
            with redirect_stdout(StringIO()) as printed:
                exec(compile(source, f"{notebook.name}, cell {number}", "exec"), names)  # noqa: S102 - a program of ours
            assert printed.getvalue() == cell.printed, source


if __name__ == "__main__":
    run_notebook(Path(sys.argv[1]), sys.argv[2])
