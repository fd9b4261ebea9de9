"""What may not be large, measured; `python -m tests.tidy.measures` lowers the list of exceptions.

`ratchet.toml` lists what was over a limit when the limit was set. A number of the list may only
fall, and an entry that is within the limit leaves the list.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.tidy.markdown import prose, without_code
from tests.tidy.sources import (
    ROOT,
    Function,
    classes,
    comments,
    docstrings,
    functions,
    nodes,
    pages,
    sources,
    sources_of_product,
    top,
    tree,
)

LIST = Path(__file__).with_name("ratchet.toml")

HEAD = """\
# What is over a limit of tests/tidy. Numbers fall and entries go; nothing is added.
# `python -m tests.tidy.measures` writes lower numbers and removes entries that are not needed.
"""

WORDS = ("likewise", "whoever", "anew")
"""Words for which a plainer one exists."""

NAMES_FOR_NOTHING = frozenset({"one", "found", "it", "held", "told", "said"})
"""Names that do not say what a binding holds."""

PAGES_OF_LIBRDKAFKA = frozenset({"CONFIGURATION.md", "STATISTICS.md"})
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
TABLES = frozenset({"NamedTuple", "BaseSettings"})

_PAGE = re.compile(r"[\w./-]+\.md\b")
_WORDS = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)


def _named(path: Path, *names: str) -> str:
    return f"{path.relative_to(ROOT)} {'.'.join(names)}"


def functions_by_lines() -> dict[str, int]:
    """How many lines each function has; decorators do not count."""
    owners = {
        id(one): owner.name for path in sources() for owner in classes(path) for one in owner.body
    }
    found: dict[str, int] = {}
    for path in sources():
        for one in functions(path):
            owner = [owners[id(one)]] if id(one) in owners else []
            name = _named(path, *owner, one.name)
            found[name] = max(found.get(name, 0), _lines(one))  # nested ones may share a name
    return found


def _lines(function: Function) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


def classes_by_methods() -> dict[str, int]:
    """How many methods and properties each class of the product has."""
    return {
        _named(path, one.name): len(
            {it.name for it in one.body if isinstance(it, ast.FunctionDef | ast.AsyncFunctionDef)}
        )
        for path in sources_of_product()
        for one in classes(path)
    }


def classes_by_attributes() -> dict[str, int]:
    """How many attributes each class of the product declares or sets on `self`.

    Tables of independent fields, such as settings and the figures of a log, are left out.
    """
    return {
        _named(path, one.name): len(_declared(one) | _set_on_self(one))
        for path in sources_of_product()
        for one in classes(path)
        if not {ast.unparse(base) for base in one.bases} & TABLES
    }


def _declared(one: ast.ClassDef) -> set[str]:
    return {
        it.target.id
        for it in one.body
        if isinstance(it, ast.AnnAssign)
        and isinstance(it.target, ast.Name)
        and not ast.unparse(it.annotation).startswith("ClassVar")
    }


def _set_on_self(one: ast.ClassDef) -> set[str]:
    return {
        node.attr
        for node in ast.walk(one)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
    }


def constructors_by_parameters() -> dict[str, int]:
    """How many parameters each constructor of the product has, without `self`."""
    return {
        _named(path, owner.name): _parameters(one.args) - 1
        for path in sources_of_product()
        for owner in classes(path)
        for one in owner.body
        if isinstance(one, ast.FunctionDef) and one.name == "__init__"
    }


def _parameters(found: ast.arguments) -> int:
    named = len(found.posonlyargs) + len(found.args) + len(found.kwonlyargs)
    return named + (found.vararg is not None) + (found.kwarg is not None)


def names_by_classes() -> dict[str, int]:
    """How many public classes of the product have a name."""
    found: dict[str, int] = {}
    for path in sources_of_product():
        for one in tree(path).body:
            if isinstance(one, ast.ClassDef) and not one.name.startswith("_"):
                found[one.name] = found.get(one.name, 0) + 1
    return found


def folders_by_words() -> dict[str, int]:
    """How often the prose of pages and the docstrings of modules use one of `WORDS`."""
    found: dict[str, int] = {}
    for path in (*pages(), *sources()):
        texts = prose(path) if path.suffix == ".md" else docstrings(path)
        count = sum(len(_WORDS.findall(without_code(text))) for _, text in texts)
        found[top(path)] = found.get(top(path), 0) + count
    return found


def folders_by_missing_pages() -> dict[str, int]:
    """How often docstrings and comments name a page that no path leads to."""
    here = {str(page.relative_to(ROOT)) for page in pages()} | PAGES_OF_LIBRDKAFKA
    found: dict[str, int] = {}
    for path in sources():
        for _, text in (*docstrings(path), *comments(path)):
            missing = [name for name in _PAGE.findall(text) if name not in here]
            found[top(path)] = found.get(top(path), 0) + len(missing)
    return found


def files_by_names_for_nothing() -> dict[str, int]:
    """How many bindings of each file of the product have a name of `NAMES_FOR_NOTHING`.

    A binding is a variable, an attribute that is set, a parameter or a function. Lambdas and
    comprehensions of one line may use such a name.
    """
    counts: dict[str, int] = {}
    for path in sources_of_product():
        short = {
            id(inner)
            for node in nodes(path)
            if isinstance(node, (ast.Lambda, *COMPREHENSIONS)) and node.lineno == node.end_lineno
            for inner in ast.walk(node)
        }
        bound = [
            name
            for node in nodes(path)
            if id(node) not in short
            for name in _bound(node)
            if name in NAMES_FOR_NOTHING
        ]
        counts[str(path.relative_to(ROOT))] = len(bound)
    return counts


def _bound(node: ast.AST) -> list[str | None]:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return [name]
        case ast.arg(arg=name) | ast.ExceptHandler(name=name):
            return [name]
        case ast.MatchAs(name=name) | ast.MatchStar(name=name):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.ClassDef(name=name) | ast.alias(asname=name):
            return [name]
        case _:
            return []


class Limit(NamedTuple):
    """The most of something, how it is measured, and why there is a limit."""

    most: int
    measured: Callable[[], Mapping[str, int]]
    reason: str


LIMITS = {
    "lines of functions": Limit(
        50, functions_by_lines, "a function that does not fit on one screen is two functions"
    ),
    "methods of classes": Limit(20, classes_by_methods, "a class of many methods is two classes"),
    "attributes of classes": Limit(
        15, classes_by_attributes, "nobody keeps so many attributes in mind"
    ),
    "parameters of constructors": Limit(
        10, constructors_by_parameters, "what is given together has a name of its own"
    ),
    "public classes of one name": Limit(
        1, names_by_classes, "who reads a name must not ask which of two is meant"
    ),
    "missing pages": Limit(
        0, folders_by_missing_pages, "who looks a source up must find the page that is named"
    ),
    "bindings that are named for nothing": Limit(
        0, files_by_names_for_nothing, "a reader of one line needs to know what a name holds"
    ),
    "words to avoid": Limit(0, folders_by_words, "a reader of one sentence needs the plain word"),
}


@cache
def excess(limit: Limit) -> dict[str, int]:
    """What is over a limit."""
    return {name: count for name, count in limit.measured().items() if count > limit.most}


def listed() -> dict[str, dict[str, int]]:
    """The exceptions, by limit."""
    return tomllib.loads(LIST.read_text())


def lowered(known: Mapping[str, int], found: Mapping[str, int]) -> dict[str, int]:
    """The exceptions that are still needed, with numbers that did not rise."""
    return {name: min(known[name], found[name]) for name in known if name in found}


def written(lists: Mapping[str, Mapping[str, int]]) -> str:
    """The text of `ratchet.toml`."""
    blocks = [HEAD]
    for title, entries in lists.items():
        lines = [f'"{name}" = {count}' for name, count in sorted(entries.items())]
        blocks.append("\n".join([f'["{title}"]', *lines, ""]))
    return "\n".join(blocks)


def main() -> None:
    """Lowers the list."""
    known = listed()
    LIST.write_text(
        written({title: lowered(known.get(title, {}), excess(it)) for title, it in LIMITS.items()})
    )


if __name__ == "__main__":
    sys.exit(main())
