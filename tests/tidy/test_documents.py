"""Pages and code name only what exists: rules, links, modules."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.markdown import anchors, headings, links, prose
from tests.tidy.sources import LAYERS, ROOT, at, comments, committed, docstrings, pages, sources

PROTOCOLS = ROOT / "docs" / "protocols"

_RULE = re.compile(r"(?<![\w.])[A-L]\d{1,2}b?(?!\w)")
"""A letter and a number. Codes of ruff (`D401`) have three digits, so they do not match."""

_RANGE = re.compile(r"(?<![\w.])[A-L]\d{1,2}b?-[A-L]?\d{1,2}(?!\w)")

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


def kept_in() -> dict[str, str]:
    """What the entry of each rule says of the modules that keep the rule."""
    return {
        found[1]: found[2]
        for page in sorted(PROTOCOLS.glob("*.md"))
        for found in _KEPT.finditer(page.read_text())
    }


def mapped() -> dict[str, list[str]]:
    """The files that the map in ARCHITECTURE.md names for each rule."""
    text = (ROOT / "ARCHITECTURE.md").read_text().partition("## Where the rules are kept")[2]
    files: dict[str, list[str]] = {}
    for named, rules in _MAPPED.findall(text):
        for rule in rules.split(", "):
            assert rule not in files, f"{rule} has two rows"
            files[rule] = _PATH.findall(named)
    return files


def test_the_map_of_the_code_begins_with_the_first_file_of_each_rule():
    """Each rule is once in ARCHITECTURE.md, and row and entry name the same file to open first."""
    first = {rule: _PATH.findall(kept)[0] for rule, kept in kept_in().items()}
    assert {rule: files[0] for rule, files in mapped().items()} == first


def test_files_that_keep_a_rule_cite_it():
    """Who looks for the id of a rule finds each file of its row and of its entry."""
    kept = {rule: {*mapped()[rule], *_PATH.findall(text)} for rule, text in kept_in().items()}
    modules = {name for names in kept.values() for name in names if (ROOT / name).is_file()}
    cited = {name: set(_RULE.findall((ROOT / name).read_text())) for name in modules}
    assert [
        f"{name} {rule}"
        for rule, names in kept.items()
        for name in sorted(names & modules)
        if rule not in cited[name]
    ] == []
