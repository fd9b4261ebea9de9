"""The import name `stilltide`: what it offers, and what a program pays for it."""

import ast
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

import stilltide

ROOT = Path(__file__).parents[2]


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in an interpreter of its own, in the checkout."""
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_every_public_name_can_be_loaded():
    """Each name of `__all__` is the object that its module defines."""
    for name in stilltide.__all__:
        defined_as = {"Message": "Record"}.get(name, name)
        assert getattr(stilltide, name).__name__ == defined_as


def test_public_modules_can_be_reached_by_attributes():
    """`stilltide.errors` needs no import of its own, as the names of `stilltide` do not."""
    ended = run_python(
        "import stilltide; "
        "print(stilltide.errors.UsageError.__name__, stilltide.sync.Subscription.__name__,"
        " stilltide.testing.MemoryCluster.__name__)"
    )
    assert ended.stdout == "UsageError SyncSubscription MemoryCluster\n", ended.stderr


def test_type_checkers_see_the_public_names():
    """The imports that only type checkers read are exactly `__all__`."""
    tree = ast.parse((ROOT / "stilltide/__init__.py").read_text())
    seen = [
        alias.name
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert sorted(seen) == sorted(stilltide.__all__)
    assert files(stilltide).joinpath("py.typed").is_file()


def test_an_unknown_name_is_an_attribute_error():
    """A name that the package does not offer fails as in any other module."""
    with pytest.raises(AttributeError, match="module 'stilltide' has no attribute 'Nothing'"):
        _ = stilltide.Nothing
    assert "Nothing" not in dir(stilltide)
    assert "Subscription" in dir(stilltide)


@pytest.mark.parametrize("folder", ["pipeline", "schemas", "connectors"])
def test_a_bare_folder_says_what_to_write_instead(folder: str):
    """A folder of the checkout imported by its bare name would be a second copy of each module."""
    ended = run_python(f"import {folder}")
    assert ended.returncode == 1
    assert f"write `import stilltide.{folder}` instead" in ended.stderr


OPERATORS_ONLY = ("aiokafka", "faust", "kafka", "pydantic", "pyspark", "rich", "structlog")


@pytest.mark.parametrize(
    "program",
    [
        "import stilltide; stilltide.TransactionClient; stilltide.Subscription",
        "from stilltide.pipeline.cli.main import run; run(['--help'])",
    ],
    ids=["client", "help"],
)
def test_a_program_loads_only_what_it_needs(program: str):
    """The client library and `--help` load no library that only operators need: each costs more."""
    loaded = f"sorted(set({OPERATORS_ONLY}) & set(sys.modules))"
    ended = run_python(f"import sys; {program}; print('loaded', {loaded})")
    assert ended.stdout.endswith("loaded []\n"), ended


SELDOM_NEEDED = {
    "import stilltide; stilltide.TransactionClient": (
        "ctypes",
        "stilltide.connectors.kafka.producer.copying",
        "stilltide.schemas.pending_ack.codec",
        "stilltide.schemas.replication.requests",
        "stilltide.schemas.snapshots.requests",
    ),
    "from stilltide.pipeline.cli.main import run; run(['--help'])": (
        "pathlib",
        "stilltide.connectors.names",
    ),
}


@pytest.mark.parametrize("program", SELDOM_NEEDED, ids=["client", "help"])
def test_what_is_seldom_needed_is_loaded_when_it_is(program: str):
    """A program that only writes, and a help page, do not wait for what they never call."""
    loaded = f"sorted(set({SELDOM_NEEDED[program]}) & set(sys.modules))"
    ended = run_python(f"import sys; {program}; print({loaded}, file=sys.stderr)")
    assert ended.stderr == "[]\n"
