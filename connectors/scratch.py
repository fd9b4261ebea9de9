"""A temporary directory that keeps the files which an error names.

*Source*: docs/internals/style.md, Errors: a hint names the next step, and a file that is gone is
none.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stilltide.schemas.errors import StilltideError


@contextmanager
def scratch(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A directory for the length of the block, removed at its end.

    If an error of Stilltide leaves the block, the files in the directory stay whose paths the
    error's text contains, and a directory that it names stays as it is.

    Args:
        prefix: beginning of the directory's name.
        parent: where the directory is made; by default where the system has temporary files.
    """
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    text = ""
    try:
        yield directory
    except StilltideError as error:
        text = str(error)
        raise
    finally:
        _remove(directory, text)


def _remove(path: Path, text: str) -> None:
    """Removes a file or directory, except what a text names."""
    if _is_named(str(path), text):
        return
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
    elif f"{path}{os.sep}" in text:  # a part of it may be named
        for each in path.iterdir():
            _remove(each, text)
        if not any(path.iterdir()):
            path.rmdir()
    else:
        shutil.rmtree(path, ignore_errors=True)


def _is_named(path: str, text: str) -> bool:
    """Whether a text contains a path itself, not only paths below it."""
    begin = text.find(path)
    while begin >= 0:
        if text[begin + len(path) : begin + len(path) + 1] != os.sep:
            return True
        begin = text.find(path, begin + 1)
    return False
