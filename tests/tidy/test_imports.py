"""Every module is used: entry points reach those of the product, and those of tests load."""

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.tidy.sources import (
    LAYERS,
    PRODUCT,
    ROOT,
    committed,
    nodes,
    pages,
    sources_of_product,
    sources_of_tests,
)

PUBLIC = ("", ".databases", ".errors", ".faststream", ".spark", ".sync", ".testing")
ENTRIES = ("stilltide.__main__", *(f"stilltide{one}" for one in PUBLIC))
"""What applications import, and the program."""

UNREACHED = {
    "stilltide.connectors.memory": "the broker of tests, which keeps the promises of the ports",
}
"""Modules and packages that no entry point needs, with the reason; the list only shrinks."""

_STARTED = re.compile(r"(?:python -m|from|import) (stilltide[\w.]*\w)")
_NAMED = re.compile(r"\bstilltide(?:\.\w+)+")
_BESIDE = re.compile(r"[a-z_.]+(?=:[a-z_]+\Z)")


def module_name(path: Path) -> str:
    """The name that a file is imported by."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    first = ("stilltide",) if parts[0] in LAYERS else ()
    return ".".join((*first, *parts)).removesuffix(".__init__")


@cache
def modules() -> dict[str, Path]:
    """The files of the product by module name, generated ones included."""
    return {
        module_name(path): path
        for path in committed()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in PRODUCT
    }


def uses(path: Path) -> Iterator[str]:
    """The names that a file imports, or names in a string: `stilltide.a.b`, or `b:attribute`."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _NAMED.findall(node.value.partition(":")[0])
            if beside := _BESIDE.match(node.value):
                yield f"{module_name(path.parent)}.{beside[0]}"


def named_for_users(pattern: re.Pattern[str]) -> set[str]:
    """What the Makefile and the pages name by a pattern."""
    texts = [path.read_text() for path in (ROOT / "Makefile", *pages())]
    return {name for text in texts for name in pattern.findall(text)}


def reached() -> set[str]:
    """The modules that an entry point imports, directly or not, with the packages above them."""
    known = modules()
    found: set[str] = set()
    left = [*ENTRIES, *named_for_users(_NAMED)]
    while left:
        name = left.pop()
        if name in known and name not in found:
            found.add(name)
            left += [*uses(known[name]), name.rpartition(".")[0]]
    return found


def unreached() -> set[str]:
    """The modules that no entry point imports; those of a listed package count as the package."""
    left = set(map(module_name, sources_of_product())) - reached()
    return {
        next((one for one in UNREACHED if f"{name}.".startswith(f"{one}.")), name) for name in left
    }


def test_an_entry_point_reaches_every_module_of_the_product():
    """A module that only tests import is no part of the product."""
    assert unreached() - set(UNREACHED) == set()


def test_no_reason_is_left_for_a_module_that_is_reached():
    """An exception that is no longer needed goes."""
    assert set(UNREACHED) - unreached() == set()


def test_modules_that_pages_start_or_import_exist():
    """The Makefile and the pages start and import modules that are there."""
    assert named_for_users(_STARTED) - set(modules()) == set()


def started_by_hand() -> list[str]:
    """The modules of tests that `make test` does not load, except programs."""
    folders = ("bench", "chaos", "containers", "figures")
    return [
        module_name(path)
        for path in sources_of_tests()
        if path.relative_to(ROOT).parts[1] in folders and path.name != "__main__.py"
    ]


@pytest.mark.parametrize("name", started_by_hand())
def test_a_module_of_tests_that_are_started_by_hand_can_be_imported(name: str):
    """An import of a module that has moved fails in this test, not only when a benchmark runs."""
    assert importlib.import_module(name).__name__ == name
