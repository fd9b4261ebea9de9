"""Which layer imports which, read in the sources."""

import ast
import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

IMPORT_NAME = "stilltide"


class Layer(NamedTuple):
    """Folders or modules on one level; `packages` are paths below the import name."""

    title: str
    packages: tuple[str, ...]


LAYERS = (
    Layer("cli", ("pipeline/cli",)),
    Layer(
        "demo, testing, console",
        ("pipeline/demo", "pipeline/testing", "pipeline/console"),
    ),
    Layer("databases, faststream", ("pipeline/databases", "pipeline/faststream")),
    Layer("agents, jobs, client", ("pipeline/agents", "pipeline/jobs", "pipeline/client")),
    Layer("drivers", ("pipeline/drivers",)),
    Layer(
        "for all layers of pipeline",
        (
            "pipeline/metrics",
            "pipeline/config",
            "pipeline/errors",
            "pipeline/extras",
            "pipeline/interpreter",
            "pipeline/log_folding",
            "pipeline/reaper",
            "pipeline/logging",
            "pipeline/templates",
            "pipeline/tracing",
        ),
    ),
    Layer("core", ("pipeline/core",)),
    Layer("connectors", ("connectors",)),
    Layer("schemas", ("schemas",)),
)
"""From top to bottom. A module of two layers is an error of `layer_of`."""


def layer_of(path: str) -> int | None:
    """The layer of a path below the import name; None for a package above all layers."""
    found = [
        number
        for number, layer in enumerate(LAYERS)
        if any(path == one or path.startswith(f"{one}/") for one in layer.packages)
    ]
    assert len(found) <= 1, f"{path} is in more than one layer"
    if not found and "/" in path:
        raise LookupError(f"{path} is in no layer of tests/figures/imports.py")
    return found[0] if found else None


def import_arrows(root: Path) -> set[tuple[int, int]]:
    """Each pair of layers of which the first imports the second."""
    arrows: set[tuple[int, int]] = set()
    for source in sources(root):
        importer = layer_of(source.relative_to(root).with_suffix("").as_posix())
        for imported in _imported(source):
            layer = layer_of(imported)
            if importer is not None and layer is not None and importer != layer:
                arrows.add((importer, layer))
    return arrows


def sources(root: Path) -> Iterator[Path]:
    """The product's modules, without what protoc generates and what marks a folder."""
    for top in ("schemas", "connectors", "pipeline"):
        for path in sorted((root / top).rglob("*.py")):
            if path.name != "__init__.py" and not path.name.endswith("_pb2.py"):
                yield path


def folders(package: Path) -> Sequence[str]:
    """Folders of a package with code in them."""
    return sorted(
        it.name for it in package.iterdir() if it.is_dir() and (it / "__init__.py").is_file()
    )


def modules(package: Path) -> Sequence[str]:
    """Modules that lie in a package itself."""
    return sorted(it.stem for it in package.glob("*.py") if it.name != "__init__.py")


def _imported(source: Path) -> Iterator[str]:
    """Paths below the import name of what a module imports."""
    # A collection in its middle may let another thread parse: CPython 3.11 then counts wrongly.
    gc.disable()
    try:
        tree = ast.parse(source.read_text())
    finally:
        gc.enable()
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            top, _, below = name.partition(".")
            if top == IMPORT_NAME and below:
                yield below.replace(".", "/")
