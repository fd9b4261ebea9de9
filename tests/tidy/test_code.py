"""Habits of the code that a linter does not know (docs/internals/style.md)."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.sources import (
    ROOT,
    at,
    functions,
    nodes,
    sources,
    sources_of_product,
    sources_of_tests,
)


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
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module in ("time", "asyncio"):
            yield from (name for name in node.names if name.name == "sleep")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            turn = [getattr(one, "value", None) for one in node.args] == [0]
            if ast.unparse(node.func) in ("time.sleep", "asyncio.sleep") and not turn:
                yield node


SLEEPS_LEFT = {
    "tests/support/looks.py": 3,  # pauses between looks at another process; how long a fault lasts
    "tests/unit/drivers/service/test_requests.py": 1,
}
"""A ratchet: numbers go down, and none is added."""


def test_tests_do_not_sleep():
    """A test that sleeps is slow on a fast machine and fails on a slow one.

    Sleeps of a simulated world take no time, and are its only way to let time pass.
    """
    paths = [path for path in sources_of_tests() if "simulation" not in path.parts]
    found = {path: [at(path, node) for node in sleeps(path)] for path in paths}
    counts = {str(path.relative_to(ROOT)): len(where) for path, where in found.items() if where}
    assert counts == SLEEPS_LEFT, found


def test_no_failure_is_passed_over_in_silence():
    """An `except` that only passes hides the one failure that matters."""
    assert [
        at(path, node)
        for path in sources()
        for node in nodes(path)
        if isinstance(node, ast.ExceptHandler)
        and all(isinstance(one, ast.Pass) for one in node.body)
    ] == []


def waits_for(path: Path) -> Iterator[ast.AST]:
    """Uses of `wait_for` of asyncio, by whatever name it was imported."""
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module == "asyncio":
            yield from (name for name in node.names if name.name == "wait_for")
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "asyncio.wait_for":
            yield node


def test_no_cancellation_is_swallowed():
    """Python 3.11's `wait_for` may lose a cancellation: loops that must end use `timeout`."""
    assert [at(path, node) for path in sources_of_product() for node in waits_for(path)] == []


ENTROPY = {
    "time.time",
    "time.time_ns",
    "time.monotonic",
    "time.monotonic_ns",
    "time.perf_counter",
    "time.sleep",
    "datetime.now",
    "datetime.utcnow",
    "date.today",
    "os.urandom",
}
"""Calls that ask the machine for the time or for chance."""

UNFORESEEN = {"random", "secrets", "uuid"}
"""Modules of chance."""

BY_PORTS = (
    "schemas",
    "connectors/memory",
    "connectors/ports",
    "pipeline/core",
    "pipeline/drivers",
    "pipeline/client",
    "pipeline/testing",
)
"""What a test runs again with a clock and a chance of its own."""


def unforeseen(path: Path) -> Iterator[ast.AST]:
    """Uses of the machine's time or chance, also those that are only passed on as a function."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (name for name in node.names if name.name in UNFORESEEN)
        elif isinstance(node, ast.ImportFrom):
            if node.module in UNFORESEEN or node.module == "time":
                yield node
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in ENTROPY:
            yield node


def test_time_and_chance_come_through_ports():
    """Else no test can make the wall clock jump, nor run a fault again (connectors.clock, chance).

    The event loop's own time is a port already: the caller that runs the loop gives it.
    """
    assert [
        at(path, node)
        for path in sources_of_product()
        if str(path.relative_to(ROOT)).startswith(BY_PORTS)
        for node in unforeseen(path)
    ] == []
