"""How much code there is: lines, files and imports of each layer.

Run by `make lines`. A line of code is neither blank nor part of a docstring or an import. An arrow
is a pair of files of which the first imports the second.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.figures.imports import IMPORT_NAME, LAYERS, layer_of, sources

ROOT = Path(__file__).parents[2]


def code_lines(text: str) -> int:
    """The lines of a module that are code or comments."""
    tree = ast.parse(text)
    left_out = {line for first, last in _left_out(tree) for line in range(first, last + 1)}
    return sum(
        1 for n, line in enumerate(text.splitlines(), 1) if line.strip() and n not in left_out
    )


def _left_out(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """First and last line of each docstring and each import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno, node.end_lineno or node.lineno


def imported_modules(text: str) -> Iterator[str]:
    """Dotted names below the import name that a module imports; some name no module."""
    prefix = f"{IMPORT_NAME}."
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        yield from (name.removeprefix(prefix) for name in names if name.startswith(prefix))


def main() -> None:
    """Print lines, files and arrows of each layer."""
    texts = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text()
        for path in sources(ROOT)
    }
    arrows = {
        name: {other for other in imported_modules(text) if other in texts} - {name}
        for name, text in texts.items()
    }
    _say(f"{'layer':<28}{'code lines':>12}{'files':>8}{'arrows':>8}")
    titles = [layer.title for layer in LAYERS]
    for title in [*titles, "above the layers", "all"]:
        names = [name for name in texts if title in (_title(name, titles), "all")]
        lines = sum(code_lines(texts[name]) for name in names)
        _say(f"{title:<28}{lines:>12}{len(names):>8}{sum(len(arrows[name]) for name in names):>8}")
    tests = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    _say(f"{'tests':<28}{sum(map(code_lines, tests)):>12}{len(tests):>8}")


def _title(name: str, titles: list[str]) -> str:
    layer = layer_of(name.replace(".", "/"))
    return "above the layers" if layer is None else titles[layer]


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
