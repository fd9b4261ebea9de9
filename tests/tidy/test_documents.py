"""Pages and code name only what exists: rules, links, modules."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.markdown import anchors, headings, links, prose
from tests.tidy.sources import (
    LAYERS,
    ROOT,
    at,
    comments,
    committed,
    docstrings,
    pages,
    sources,
    tree,
)

PROTOCOLS = ROOT / "docs" / "protocols"

_RULE = re.compile(r"(?<![\w.])[A-L]\d{1,2}b?(?!\w)")
"""A letter and a number. Codes of ruff (`D401`) have three digits, so they do not match."""

_RANGE = re.compile(r"(?<![\w.])[A-L]\d{1,2}b?-[A-L]?\d{1,2}(?!\w)")

_ENTRY = re.compile(r"([A-L]\d{1,2}b?) \S")
_PATH = re.compile(rf"`((?:{'|'.join((*LAYERS, 'tests', 'docs', 'stilltide'))})/[\w./-]+)`")
_OUTSIDE = re.compile(r"[a-z]+:")
_SECTION = re.compile(r"^##+ (.+)\n((?:(?!#).*\n)*)", re.MULTILINE)
"""A heading of a page, and the text below it."""

_KEPT = re.compile(r"^- \*Kept in\*: (.*?)(?=^- |\Z)", re.MULTILINE | re.DOTALL)
"""The modules that keep the rule of an entry."""

_MAPPED = re.compile(r"^\| [^|]+ \| (`[^|]+) \| ([A-L][^|]*?) \|$", re.MULTILINE)
"""A row of the map in ARCHITECTURE.md: files, and the rules that they keep."""


def entries() -> dict[str, list[Path]]:
    """The rules that have an entry in docs/protocols, with the pages that hold it."""
    found: dict[str, list[Path]] = {}
    for page in sorted(PROTOCOLS.glob("*.md")):
        for heading in headings(page):
            if entry := _ENTRY.match(heading):
                found.setdefault(entry[1], []).append(page)
    return found


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """What a file says to its readers, with lines: prose of pages, docstrings and comments."""
    if path.suffix == ".md":
        yield from prose(path)
        return
    if path.suffix == ".py":
        yield from docstrings(path)
    yield from comments(path)


def test_every_cited_rule_has_an_entry():
    """A rule that code, tests or pages cite by letter and number is explained in docs/protocols."""
    known = entries()
    protos = [path for path in committed() if path.suffix in (".proto", ".toml", ".yml")]
    assert [
        f"{at(path, line)} {rule}"
        for path in (*sources(), *pages(), *protos)
        for line, text in texts(path)
        for rule in _RULE.findall(text)
        if rule not in known
    ] == []


def test_rules_are_cited_one_by_one():
    """Who looks for the id of a rule finds it, since no range of ids stands for the ids between."""
    assert [
        f"{at(path, line)} {cited[0]}"
        for path in (*sources(), *pages())
        for line, text in texts(path)
        for cited in _RANGE.finditer(text)
    ] == []


def test_a_rule_has_one_entry_on_the_page_of_its_letter():
    """An id names one rule, and its letter names the page."""
    found = entries()
    assert found, "no entry found"
    assert {
        rule: [page.name for page in where]
        for rule, where in found.items()
        if [page.name[0].upper() for page in where] != [rule[0]]
    } == {}


MISSING: set[str] = set()
"""Pages that are linked to and not yet written; the list only shrinks."""


def broken(page: Path, target: str) -> bool:
    """Whether a relative link leads nowhere."""
    name, _, anchor = target.partition("#")
    goal = (page.parent / name).resolve() if name else page
    if not goal.exists():
        return goal not in {ROOT / one for one in MISSING}
    return bool(anchor) and goal.suffix == ".md" and anchor not in anchors(goal)


def test_relative_links_resolve():
    """Each link to a file leads to a file of the repository, and each anchor to a heading."""
    assert [
        f"{at(page, line)} {target}"
        for page in pages()
        for line, target in links(page)
        if not _OUTSIDE.match(target) and broken(page, target)
    ] == []


def test_no_page_is_called_missing_that_is_there():
    """An exception that is no longer needed goes."""
    assert [name for name in MISSING if (ROOT / name).exists()] == []


def test_pages_name_files_that_exist():
    """A path in backticks is a file or folder; a module may be named without its suffix."""
    assert [
        f"{at(page, line)} {name}"
        for page in pages()
        for line, text in prose(page)
        for name in _PATH.findall(text)
        if not (ROOT / name).exists() and not (ROOT / f"{name}.py").exists()
    ] == []


def id_of(page: Path, heading: str) -> str:
    """How an entry is cited: `C4`, or by letter and first word if it has no number: `G Claims`."""
    numbered = _ENTRY.match(heading)
    return numbered[1] if numbered else f"{page.name[0].upper()} {heading.partition(' ')[0]}"


def kept_in() -> dict[str, list[str]]:
    """The files that the entry of each rule names, entries without a number included."""
    return {
        id_of(page, heading): _PATH.findall(kept[1])
        for page in sorted(PROTOCOLS.glob("*-*.md"))
        for heading, text in _SECTION.findall(page.read_text())
        if (kept := _KEPT.search(text))
    }


def mapped() -> dict[str, list[str]]:
    """The files that the map in ARCHITECTURE.md names for each rule."""
    text = (ROOT / "ARCHITECTURE.md").read_text().partition("## Where the rules are kept\n")[2]
    files: dict[str, list[str]] = {}
    for named, rules in _MAPPED.findall(text):
        for rule in rules.split(", "):
            assert rule not in files, f"{rule} has two rows"
            files[rule] = _PATH.findall(named)
    return files


def below_docstring(path: Path) -> str:
    """The text of a module below its docstring."""
    lines = path.read_text().splitlines(keepends=True)
    if path.suffix == ".py" and ast.get_docstring(tree(path)) is not None:
        del lines[: tree(path).body[0].end_lineno]
    return "".join(lines)


def cites(text: str, rule: str) -> bool:
    """Whether a text names a rule by its id."""
    return re.search(rf"(?<![\w.]){rule}(?!\w)", text) is not None


def test_the_map_of_the_code_begins_with_the_first_file_of_each_rule():
    """Each entry with *Kept in* has one row in ARCHITECTURE.md, with the same first file."""
    first = {rule: names[0] for rule, names in kept_in().items()}
    assert {rule: files[0] for rule, files in mapped().items()} == first


def test_files_that_keep_a_rule_cite_it():
    """Who looks for the id of a rule finds each file that its entry names."""
    assert [
        f"{name} {rule}"
        for rule, names in kept_in().items()
        for name in names
        if (ROOT / name).is_file() and not cites((ROOT / name).read_text(), rule)
    ] == []


def test_files_of_the_map_cite_a_rule_where_they_decide():
    """Who looks for the id of a rule in a file of the map is led to a function, class or constant.

    The docstring of the module alone does not say where in the file the rule is.
    """
    assert [
        f"{name} {rule}"
        for rule, names in mapped().items()
        for name in names
        if not cites(below_docstring(ROOT / name), rule)
    ] == []
