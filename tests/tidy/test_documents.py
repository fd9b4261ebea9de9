"""Pages and code name only what exists: rules, links, modules."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.markdown import anchors, headings, links, prose
from tests.tidy.sources import LAYERS, ROOT, at, comments, committed, docstrings, pages, sources

PROTOCOLS = ROOT / "docs" / "protocols"

_RULE = re.compile(r"(?<![\w.])[A-L]\d{1,2}b?(?!\w)")
"""A letter and a number. Codes of ruff (`D401`) have three digits, so they do not match."""

_ENTRY = re.compile(r"([A-L]\d{1,2}b?) \S")
_PATH = re.compile(rf"`((?:{'|'.join((*LAYERS, 'tests', 'docs', 'stilltide'))})/[\w./-]+)`")
_OUTSIDE = re.compile(r"[a-z]+:")
_KEPT = re.compile(
    r"^### ([A-L]\d{1,2}b?) (?:(?!^#).)*?^- \*Kept in\*: (.*?)(?=^- |^#|\Z)",
    re.MULTILINE | re.DOTALL,
)
"""An entry with the modules that keep its rule."""

_MAPPED = re.compile(r"^\| [^|]+ \| (`[^|]+) \| ([A-L]\d[^|]*?) \|$", re.MULTILINE)
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


def kept_in() -> dict[str, str]:
    """What the entry of each rule says of the modules that keep the rule."""
    return {
        found[1]: found[2]
        for page in sorted(PROTOCOLS.glob("*.md"))
        for found in _KEPT.finditer(page.read_text())
    }


def test_the_map_of_the_code_names_a_file_that_keeps_each_rule():
    """Each rule is once in ARCHITECTURE.md, and its entry names one of the files of that row."""
    text = (ROOT / "ARCHITECTURE.md").read_text().partition("## Where the rules are kept")[2]
    rows = _MAPPED.findall(text)
    modules = {rule: _PATH.findall(files) for files, rules in rows for rule in rules.split(", ")}
    entry = kept_in()
    assert sorted(rule for _, rules in rows for rule in rules.split(", ")) == sorted(entry)
    assert [
        rule for rule, names in modules.items() if not any(name in entry[rule] for name in names)
    ] == []
