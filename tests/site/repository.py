"""Where files of the repository are on the site, and Markdown as the site's parser takes it.

Pages are written for readers of the repository: their links lead to any of its files, and what is
nested in a list stands below the text of its item. The site has the folder `docs` as its top.
"""

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

from tests.tidy.markdown import headings, slug

ROOT = Path(__file__).parents[2]
DOCS = "docs"
PROJECT = "project"
"""Folder of the site for the pages at the top of the repository."""

SOURCES = "files"
"""Folder of the site for the other files of the repository that pages link to."""

_FENCE = re.compile(r"^( *)(```|~~~)")
_CODE = re.compile(r"(`+[^`]*`+)")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_OUTSIDE = re.compile(r"[a-z]+:")


def site_path(path: str) -> str:
    """The place on the site of a file, given as its path in the repository."""
    folder, _, name = path.rpartition("/")
    if path.startswith(f"{DOCS}/"):
        return path.removeprefix(f"{DOCS}/")
    if not folder and path.endswith(".md"):
        return f"{PROJECT}/{name.lower()}"
    return f"{SOURCES}/{path}"


def linked(path: str, target: str) -> str | None:
    """The file or folder of the repository that a link of a page leads to; None: another place."""
    if _OUTSIDE.match(target) or target.startswith("#"):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target.partition("#")[0]))


def moved(text: str, path: str) -> str:
    """A page of the repository with its links as they are on the site.

    A link to a folder becomes its text: the site lists no folders.
    """
    here = posixpath.dirname(site_path(path))

    def replace(found: re.Match[str]) -> str:
        bang, label, target = found.groups()
        if (goal := linked(path, target)) is None:
            return found[0]
        if (ROOT / goal).is_dir():
            return label
        anchor = target.partition("#")[2]
        shown = called(goal, anchor) if label in (goal, posixpath.basename(goal)) else label
        place = posixpath.relpath(site_path(goal), here or ".")
        return f"{bang}[{shown}]({place}{anchor and '#' + anchor})"

    return _outside_of_fences(text, lambda prose: _outside_of_code(prose, replace))


def called(goal: str, anchor: str) -> str:
    """What a link is called that the page calls by its file: the headings of its goal."""
    if not goal.endswith(".md"):
        return goal
    found = [*headings(ROOT / goal)]
    section = next((one for one in found if anchor and slug(one) == anchor), "")
    return ": ".join(dict.fromkeys(one for one in (found[0], section) if one))


def _outside_of_code(prose: str, replace: Callable[[re.Match[str]], str]) -> str:
    # The text of a link may hold code, so only code that holds a whole link is left alone.
    kept = [part for part in _CODE.findall(prose) if _LINK.search(part)]
    for number, part in enumerate(kept):
        prose = prose.replace(part, f"\0{number}\0")
    prose = _LINK.sub(replace, prose)
    for number, part in enumerate(kept):
        prose = prose.replace(f"\0{number}\0", part)
    return prose


def _outside_of_fences(text: str, change: Callable[[str], str]) -> str:
    done: list[str] = []
    prose: list[str] = []
    fence = ""
    for line in text.splitlines(keepends=True):
        found = _FENCE.match(line)
        if fence:
            done.append(line)
            fence = "" if found and found[2] == fence else fence
        elif found:
            done += [change("".join(prose)), line]
            prose = []
            fence = found[2]
        else:
            prose.append(line)
    return "".join([*done, change("".join(prose))])


def nested(text: str) -> str:
    """A page whose code in lists is indented by four, which Python-Markdown wants."""
    done: list[str] = []
    deeper = 0
    inside = False
    for line in text.splitlines(keepends=True):
        if found := _FENCE.match(line):
            if not inside:
                deeper = 4 - len(found[1]) if 0 < len(found[1]) < 4 else 0
            inside = not inside
            done.append(" " * deeper + line)
        else:
            done.append(" " * deeper + line if inside and line.strip() else line)
    return "".join(done)
