"""Style that a linter does not know (architecture.md, Habits of the code)."""

import ast
import gc
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("schemas", "connectors", "pipeline", "stilltide", "tests")

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def committed() -> list[Path]:
    """Every file under version control that is text of ours."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout.split("\0")
    return [ROOT / name for name in listed if name and (ROOT / name).is_file()]


def sources() -> list[Path]:
    """Our Python, without what protoc generates."""
    return [
        path
        for path in committed()
        if path.suffix == ".py"
        and path.relative_to(ROOT).parts[0] in PACKAGES
        and not path.name.endswith("_pb2.py")
    ]


def sources_of_tests() -> list[Path]:
    """Our Python below `tests`."""
    return [path for path in sources() if path.relative_to(ROOT).parts[0] == "tests"]


@cache
def tree(path: Path) -> ast.Module:
    """The parsed file."""
    # A collection in its middle may let another thread parse: CPython 3.11 then counts wrongly.
    gc.disable()
    try:
        return ast.parse(path.read_text(), path)
    finally:
        gc.enable()


def functions(path: Path) -> Iterator[Function]:
    """Every function and method of a file."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def at(path: Path, node: ast.AST | int) -> str:
    """Where something is, as an editor takes it."""
    line = node if isinstance(node, int) else getattr(node, "lineno", 1)
    return f"{path.relative_to(ROOT)}:{line}"


def test_files_are_short():
    """A module that does not fit on some screens is two modules."""
    lengths = {path: len(path.read_text().splitlines()) for path in sources()}
    assert [at(path, n) for path, n in lengths.items() if n > FILE_LINES_MAX] == []


def test_functions_are_short():
    """A function that does not fit on one screen is two functions."""
    assert [
        f"{at(path, one)} {one.name}"
        for path in sources()
        for one in functions(path)
        if (one.end_lineno or 0) - one.lineno >= FUNCTION_LINES_MAX
    ] == []


def test_every_test_states_a_behaviour():
    """A test without a docstring shows what runs, not what is promised."""
    assert [
        f"{at(path, one)} {one.name}"
        for path in sources_of_tests()
        for one in functions(path)
        if one.name.startswith("test_") and not ast.get_docstring(one)
    ] == []


def sleeps(path: Path) -> Iterator[ast.AST]:
    """Sleeps of a file; `asyncio.sleep(0)` only lets the loop turn once."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module in ("time", "asyncio"):
            yield from (name for name in node.names if name.name == "sleep")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            turn = [getattr(one, "value", None) for one in node.args] == [0]
            if ast.unparse(node.func) in ("time.sleep", "asyncio.sleep") and not turn:
                yield node


SLEEPS_LEFT = {
    "tests/chaos/scenarios.py": 1,  # how long a fault lasts is the fault itself
    "tests/support/coordinator/worker_memory.py": 1,
    "tests/unit/drivers/buffered_log/test_owned_log.py": 2,
    "tests/unit/drivers/service/test_requests.py": 1,
}
"""A ratchet: numbers go down, and none is added."""


def test_tests_do_not_sleep():
    """A test that sleeps is slow on a fast machine and fails on a slow one."""
    found = {path: [at(path, node) for node in sleeps(path)] for path in sources_of_tests()}
    counts = {str(path.relative_to(ROOT)): len(where) for path, where in found.items() if where}
    assert counts == SLEEPS_LEFT, found


def test_no_failure_is_passed_over_in_silence():
    """An `except` that only passes hides the one failure that matters."""
    assert [
        at(path, node)
        for path in sources()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ExceptHandler)
        and all(isinstance(one, ast.Pass) for one in node.body)
    ] == []


def waits_for(path: Path) -> Iterator[ast.AST]:
    """Uses of `wait_for` of asyncio, by whatever name it was imported."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module == "asyncio":
            yield from (name for name in node.names if name.name == "wait_for")
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "asyncio.wait_for":
            yield node


def test_no_cancellation_is_swallowed():
    """Python 3.11's `wait_for` may lose a cancellation: loops that must end use `timeout`."""
    found = [at(path, node) for path in sources() for node in waits_for(path)]
    assert [where for where in found if where.split("/")[0] in ("connectors", "pipeline")] == []


FORBIDDEN = {
    "work left undone": re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b"),
    "a path of one machine": re.compile(r"(?<![\w.$}])/(?:ro" + r"ot|wo" + r"rk|ho" + r"me)\b"),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_committed_file_holds(what: str):
    """What holds on one machine, or is not finished, does not belong into the repository."""
    found: list[str] = []
    for path in committed():
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue  # an image or a jar
        found += [at(path, n) for n, line in enumerate(lines, 1) if FORBIDDEN[what].search(line)]
    assert found == []


def test_generated_messages_are_those_of_their_sources(tmp_path: Path):
    """`make protos` was run after the last change of a `.proto` file."""
    protos = sorted(
        path.relative_to(ROOT) for path in (ROOT / "stilltide/schemas/v1").glob("*.proto")
    )
    command = [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=."]
    outputs = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([*command, *outputs, *map(str, protos)], cwd=ROOT, check=True)
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*_pb2.py*")}
    kept = {name: (ROOT / name).read_text() for name in made}
    assert len(made) == 2 * len(protos)
    assert made == kept
    generated = {
        path.relative_to(ROOT) for path in (ROOT / "stilltide/schemas/v1").glob("*_pb2.py*")
    }
    assert generated == set(made), "generated from no source"
