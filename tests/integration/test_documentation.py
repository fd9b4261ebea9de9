"""The README and every page of docs do what they say: programs run, and commands exist."""

import asyncio
import logging
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import structlog

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.cli.common.helps import words_of
from stilltide.pipeline.cli.main import cli, run
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.config.sources import CONFIG_VARIABLE
from stilltide.schemas.topics import TopicSpec
from tests.support.processes.local import delete_topics
from tests.support.processes.worker_process import running_worker

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIALS = ROOT / "docs/tutorials"
"""Pages whose programs `test_tutorials.py` runs."""

ADDRESS = "127.0.0.1:9092"
REGISTRY = "http://127.0.0.1:8081"
"""Address of the schema registry in the programs of pages."""
TIMEOUT_S = 360

ASSUMED_TOPICS = ("orders", "payments", "amounts")
"""What a page may write to without saying how it is created."""

_PROGRAM = re.compile(
    r"^```python\n(.*?)^```\n(?:\nThe program prints:\n\n```text\n(.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
_SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(
    r"^(?:stilltide|.*\bdocker compose run --rm cli) (.+?)(?:;.*| \|\| .*|\s+#.*)?$", re.MULTILINE
)
_INLINE_COMMAND = re.compile(r"`stilltide ([^`]+)`")
_OUTPUT = re.compile(r" (?:\||>) ")
_CREATION = re.compile(r"^stilltide (topics create [^#\n]+)$", re.MULTILINE)
_TARGET = re.compile(r"^make ([a-z-]+)", re.MULTILINE)
_INLINE_TARGET = re.compile(r"`make ([a-z-]+)[^`]*`")
_SETTING = re.compile(r"^\| `([a-z_]+)` \| ([^|]+) \|", re.MULTILINE)


class Program(NamedTuple):
    """A program of a page, and what the page says that it prints; None: the page does not say."""

    source: str
    printed: str | None


SLOW = ("docs/spark.md", "docs/tables.md")
"""Pages whose programs start Spark again and again."""


def page_name(page: Path) -> str:
    """As a reader would name it."""
    return str(page.relative_to(ROOT))


def programs(page: Path) -> list[Program]:
    """The programs of a page, in order."""
    return [Program(*found.groups()) for found in _PROGRAM.finditer(page.read_text())]


def pages_with_programs() -> Iterator[Any]:
    """The pages whose programs no other test runs, as parameters of a test."""
    for page in PAGES:
        if programs(page) and page.parent != TUTORIALS:
            name = page_name(page)
            yield pytest.param(page, id=name, marks=[pytest.mark.slow] if name in SLOW else [])


def commands() -> list[str]:
    """What any page passes to `stilltide`, each command once, without where its output goes."""
    found: set[str] = set()
    for page in PAGES:
        text = page.read_text()
        found |= set(_INLINE_COMMAND.findall(text))
        for block in _SHELL.findall(text):
            found |= set(_COMMAND.findall(block))
    return sorted({_OUTPUT.split(command)[0] for command in found})


@pytest.fixture
def served(second_kafka: LocalCluster, tmp_path: Path) -> Iterator[str]:
    """The address of a broker without topics, with a worker."""
    second_kafka.start()
    delete_topics(second_kafka.bootstrap)
    with running_worker(second_kafka.bootstrap, tmp_path / "worker.log"):
        yield second_kafka.bootstrap


async def create_topics(bootstrap: str, created: str) -> None:
    """Those that a page assumes; it creates those in `created` itself."""
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    missing = [name for name in ASSUMED_TOPICS if name not in created.split()]
    await admin.ensure_topics([TopicSpec(name, 3) for name in missing])
    await admin.close()


@pytest.fixture
def exchanged(request: pytest.FixtureRequest, page: Path, served: str) -> dict[str, str]:
    """The addresses of a page, and those of what runs here."""
    addresses = {ADDRESS: served}
    if REGISTRY in page.read_text():
        addresses[REGISTRY] = request.getfixturevalue("registry").url
    return addresses


@pytest.mark.parametrize("page", [*pages_with_programs()])
def test_programs_run_one_after_the_other(
    page: Path, served: str, exchanged: dict[str, str], tmp_path: Path
):
    """With the addresses exchanged, each ends well and prints what the page says."""
    creations = _CREATION.findall(page.read_text())
    asyncio.run(create_topics(served, " ".join(creations)))
    for command in creations:
        assert run([*command.split(), "--bootstrap-servers", served]) == 0
    for program in programs(page):
        source = program.source
        for address, here in exchanged.items():
            source = source.replace(address, here)
        done = subprocess.run(
            [sys.executable, "-c", source],
            cwd=tmp_path,  # a program may write files
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{program.source}\n{done.stderr}"
        assert program.printed in (None, done.stdout), program.source


@pytest.fixture
def _logging_restored() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers, root.level
    yield
    root.handlers, root.level = before
    structlog.reset_defaults()


@pytest.mark.usefixtures("_logging_restored")
@pytest.mark.parametrize("command", commands())
def test_commands_exist(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Noun, verb and options of every command are known; `--help` keeps it from being run.

    A command with an option or argument has all that it needs: a reader types it as it stands.
    """
    monkeypatch.setenv(CONFIG_VARIABLE, "")  # `--config` sets it for the whole process
    words = shlex.split(command.replace("...", ""))
    assert run([*words, "--help"]) == 0, capsys.readouterr().err
    assert "Usage: stilltide" in capsys.readouterr().out
    if tuple(words) not in NAMES and not words[0].startswith("-"):
        parse(words)
    asks_nobody = words[:2] == ["acl", "print"] or words[0] == "size"
    if asks_nobody and tuple(words) not in NAMES:
        assert run(words) == 0, capsys.readouterr().err


NAMES = {*words_of(cli)}
"""Commands without options and arguments: with these words a page names a command."""


def parse(words: list[str]) -> None:
    """Has click read a command line, whose last command is not run."""
    ctx = cli.make_context("stilltide", words)
    while isinstance(group := ctx.command, click.Group):
        name, command, rest = group.resolve_command(ctx, [*ctx._protected_args, *ctx.args])
        assert command is not None
        ctx = command.make_context(name, rest, parent=ctx)


def test_targets_exist():
    """Every `make` target that a page names is one of the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        text = page.read_text()
        named = set(_INLINE_TARGET.findall(text))
        for block in _SHELL.findall(text):
            named |= set(_TARGET.findall(block))
        assert named <= targets, page_name(page)


def test_settings_are_listed_with_their_defaults():
    """The table of settings names every setting, and its default as `config show` prints it."""
    listed = dict(_SETTING.findall((ROOT / "docs/settings.md").read_text()))
    for name, field in Settings.model_fields.items():
        default = field.default
        shown = "none" if default in (None, "", {}) else str(default)
        shown = shown.lower() if isinstance(default, bool) else shown
        assert listed.get(name, "").strip().strip("`") == shown, name


def test_programs_and_commands_were_found():
    """The patterns find what they look for, or the tests above would say nothing."""
    assert {"README.md", "docs/services.md", "docs/tutorial.md"} <= {
        page_name(page) for page in PAGES if programs(page)
    }
    assert any(program.printed for page in PAGES for program in programs(page))
    assert {"local", "worker", "audit", "group"} <= {command.split()[0] for command in commands()}
