"""The extras of the package, and what is said about a missing one."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from stilltide.pipeline.cli.program import run_program
from stilltide.pipeline.errors import MissingExtraError
from stilltide.pipeline.extras import EXTRA_OF_MODULE, missing_extra, require_module

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
LEFT_TO_USERS = {"psycopg"}
"""Drivers of databases, which come with the application."""
ALONE = {"crc32c", "markupsafe", "numpy", "py4j", "pydantic", "pydantic_core", "yarl"}
"""Modules of distributions that the named ones of an extra bring."""
OURS = {"stilltide", "confluent-kafka"}
"""What is installed without an extra; the extra `schemas` adds extras of Confluent's package."""


def distribution(requirement: str) -> str:
    """The name of the distribution in a requirement."""
    return re.split(r"[\[=<>]", requirement)[0]


def test_every_distribution_of_an_extra_has_its_modules_listed():
    """A module that is missing leads to the extra that names its distribution."""
    listed = {(distribution(one), extra) for extra, found in EXTRAS.items() for one in found}
    of_module = {
        module: {it.lower() for it in its} for module, its in packages_distributions().items()
    }
    for module, extra in EXTRA_OF_MODULE.items():
        if module not in ALONE:
            assert {(name, extra) for name in of_module[module]} & listed, module
    named = {name for module in EXTRA_OF_MODULE for name in of_module[module]}
    assert {name for name, _ in listed} - OURS <= named


def imported(path: Path) -> set[str]:
    """The packages that a module imports by their full names."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {it.name for it in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def test_every_package_that_is_imported_comes_with_the_library_or_an_extra():
    """One that another package happens to bring ends a command by a traceback without it."""
    library = {re.split(r"[\[=<>]", it)[0].lower() for it in PROJECT["dependencies"]}
    known = {*sys.stdlib_module_names, "stilltide", *EXTRA_OF_MODULE, *LEFT_TO_USERS}
    for module, names in packages_distributions().items():
        if library & {name.lower().replace("_", "-") for name in names}:
            known.add(module)
    for folder in ("connectors", "pipeline", "schemas"):
        for path in (ROOT / folder).rglob("*.py"):
            assert imported(path) <= known, path


def test_a_missing_module_names_its_extra():
    """The error says what needs the extra, and how to install it."""
    found = missing_extra("this command", ModuleNotFoundError(name="py4j.protocol"))
    assert found is not None
    assert str(found) == (
        "this command needs the extra `spark`, which is not installed: "
        "run pip install 'stilltide[spark]'"
    )


def test_a_module_of_no_extra_is_not_explained():
    """A mistake in the installation stays what it is."""
    assert missing_extra("this command", ModuleNotFoundError(name="json")) is None


def test_a_module_for_another_process_is_required(monkeypatch: pytest.MonkeyPatch):
    """A command that starts a process looks for its libraries first."""
    require_module("the worker", "faust")
    monkeypatch.delitem(sys.modules, "jinja2", raising=False)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(MissingExtraError, match=r"the report needs the extra `console`"):
        require_module("the report", "jinja2")


def test_faststream_is_an_extra():
    """Without FastStream the import says which extra to install."""
    hidden = (
        "import importlib.util as it; find = it.find_spec; "
        "it.find_spec = lambda name, *more: None if name == 'faststream' else find(name, *more); "
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{hidden}import stilltide.faststream"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "pip install 'stilltide[faststream]'" in done.stderr


def test_other_import_errors_are_shown_as_they_are(monkeypatch: pytest.MonkeyPatch):
    """An import that fails for another reason keeps its traceback."""
    monkeypatch.setitem(sys.modules, "stilltide.pipeline.cli.main", None)
    with pytest.raises(ModuleNotFoundError):
        run_program(["--help"])


def test_the_program_runs_as_a_module():
    """`python -m stilltide` is the command."""
    done = subprocess.run(
        [sys.executable, "-m", "stilltide", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("stilltide, version ")
