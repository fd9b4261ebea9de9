"""Names of commands."""

import pytest
from click.testing import CliRunner

from stilltide.pipeline.cli.main import NOUNS, OLD_NOUNS, SECTIONS, cli


@pytest.mark.parametrize("name", [*NOUNS, *OLD_NOUNS])
def test_every_noun_has_its_help(name: str):
    """A noun, and a name that a noun had before, is a command with a help text."""
    ended = CliRunner().invoke(cli, [name, "--help"])
    assert ended.exit_code == 0, ended.output
    assert ended.output.startswith(f"Usage: cli {name} ")


def test_the_help_lists_every_noun_once():
    """By what it is about."""
    listed = CliRunner().invoke(cli, ["--help"]).output
    assert [listed.count(f"\n  {name} ") for name in NOUNS] == [1] * len(NOUNS)
    assert sum(map(len, SECTIONS.values())) == len(NOUNS)
    assert [title for title in SECTIONS if f"\n{title}:\n" not in listed] == []


def test_an_old_noun_is_the_new_command():
    """`stilltide subscription` has the verbs of `stilltide group`, which `--help` lists."""
    old, new = (CliRunner().invoke(cli, [name, "--help"]) for name in ("subscription", "group"))
    assert old.output.replace("cli subscription", "cli group") == new.output
    listed = CliRunner().invoke(cli, ["--help"]).output
    assert "  group " in listed
    assert "  subscription " not in listed
