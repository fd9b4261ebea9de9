"""The committed files, parsed: what the tests of this folder share."""

import ast
import gc
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

LAYERS = ("pipeline", "connectors", "schemas")
PRODUCT = ("stilltide", *LAYERS)

_COMMENT = re.compile(r"(?:#|//) (.*)")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def committed() -> tuple[Path, ...]:
    """Every file under version control that exists; links are left out."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout.split("\0")
    paths = (ROOT / name for name in listed if name)
    return tuple(path for path in paths if path.is_file() and not path.is_symlink())


def top(path: Path) -> str:
    """The folder below the root that holds a file."""
    return path.relative_to(ROOT).parts[0]


@cache
def sources() -> tuple[Path, ...]:
    """The Python files of product and tests, without what protoc generates."""
    return tuple(
        path
        for path in committed()
        if path.suffix == ".py"
        and top(path) in (*PRODUCT, "tests")
        and not path.name.endswith("_pb2.py")
    )


def sources_of_product() -> list[Path]:
    """The Python files outside `tests`."""
    return [path for path in sources() if top(path) != "tests"]


def sources_of_tests() -> list[Path]:
    """The Python files below `tests`."""
    return [path for path in sources() if top(path) == "tests"]


def pages() -> list[Path]:
    """The Markdown files."""
    return [path for path in committed() if path.suffix == ".md"]


@cache
def tree(path: Path) -> ast.Module:
    """The parsed file."""
    # A collection in its middle may let another thread parse: CPython 3.11 then counts wrongly.
    gc.disable()
    try:
        return ast.parse(path.read_text(), path)
    finally:
        gc.enable()


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of the parsed file."""
    return tuple(ast.walk(tree(path)))


def functions(path: Path) -> Iterator[Function]:
    """Every function and method of a file."""
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def classes(path: Path) -> Iterator[ast.ClassDef]:
    """Every class of a file."""
    for node in nodes(path):
        if isinstance(node, ast.ClassDef):
            yield node


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """The docstrings of a file, strings below attributes and constants included, with lines."""
    for node in nodes(path):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.lineno, value.value


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """The comments of a file of Python, protobuf, YAML or TOML, with their lines."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if comment := _COMMENT.search(line):
            yield number, comment[1]


def at(path: Path, node: ast.AST | int) -> str:
    """The place of a node or line, as an editor takes it."""
    line = node if isinstance(node, int) else getattr(node, "lineno", 1)
    return f"{path.relative_to(ROOT)}:{line}"
