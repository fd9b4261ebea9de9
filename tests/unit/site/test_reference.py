"""The generated reference names everything that there is, and no more than that."""

import re
from pathlib import Path

import pytest

import stilltide
from stilltide.pipeline.cli.acl import Component
from stilltide.pipeline.cli.main import NOUNS
from stilltide.pipeline.config.bounds import BOUNDS
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.metrics.page import SECTIONS
from stilltide.schemas.topics import system_topics
from tests.site.reference import PAGES, alerts, exit_codes, formats
from tests.site.reference.commands import commands
from tests.site.repository import ROOT
from tests.tidy.markdown import anchors

RUNBOOK = ROOT / "docs/runbook.md"


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """The text of each generated page, by its name."""
    return {Path(path).stem: make() for path, make in PAGES.items()}


def test_every_setting_has_an_entry_with_default_and_bounds(pages: dict[str, str]):
    """An entry says what the setting means, and takes default and bounds from the code."""
    text = pages["settings"]
    assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == list(Settings.model_fields)
    entries = dict(re.findall(r"^## (\w+)\n\n(.+?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert {name for name, entry in entries.items() if "- Bounds: " in entry} == set(BOUNDS)
    assert "- Default: `256`\n" in entries["coordinator_state_mib_max"]
    assert "- Value: a secret\n" in entries["sasl_password"]
    assert "`exact` or `snapshot`" in entries["sync"]
    assert "a bit each ([C12](../protocols/c-log.md#c12-" in entries["outcome_history"]


def test_every_command_has_an_entry_with_its_options(pages: dict[str, str]):
    """Every noun and verb is there, as its help shows it."""
    found = commands()
    titles = set(re.findall(r"^##+ stilltide (.+)$", pages["commands"], re.MULTILINE))
    assert titles >= {*NOUNS, *(" ".join(one.words) for one in found)}
    assert {one.words[0] for one in found} == set(NOUNS)
    for option in ("`--update-index`", "`--instance-id TEXT`", "`--dry-run`"):
        assert option in pages["commands"]


def test_every_exit_code_of_a_help_is_listed(pages: dict[str, str]):
    """What the help of a command says about its codes is on the page, by code."""
    told = {one.words: exit_codes.told(one) for one in commands()}
    assert set(told["audit", "run"]) == {0, 1, 3, 4, 5}
    assert told["audit", "follow"][4] == told["audit", "follow"][5]
    special = {code for codes in told.values() for code in codes} - {0, 1}
    sections = re.findall(r"^## Code (\d+)$", pages["exit-codes"], re.MULTILINE)
    assert sections == [str(code) for code in sorted(special)]
    for words, codes in told.items():
        for code, meaning in codes.items():
            if code in special:
                assert f"| `stilltide {' '.join(words)}` | {meaning} |" in pages["exit-codes"]
    for code in (0, 1, 2, 130):
        assert f"\n| {code} | " in pages["exit-codes"]


def test_a_help_with_codes_is_understood():
    """No help has a section of exit codes of which the page would show nothing."""
    for one in commands():
        assert ("Exit codes:" in (one.command.epilog or "")) == bool(exit_codes.told(one)), (
            one.words
        )


def test_every_system_topic_has_an_entry_with_its_configs(pages: dict[str, str]):
    """Names, and each required and wanted config with its value."""
    for spec in system_topics(coordinators=1, partitions=1):
        entry = pages["topics"].partition(f"## {spec.name}\n")[2].partition("\n## ")[0]
        for kind, configs in (("required", spec.configs), ("wanted", spec.wanted)):
            for name, value in configs.items():
                assert f"| `{name}` | `{value}` | {kind} |" in entry
    assert "| `stilltide.txn-log` | `coordinators` |" in pages["topics"]
    assert "| `stilltide.settings` | 1 |" in pages["topics"]


def test_every_component_has_its_rights(pages: dict[str, str]):
    """Each component is named once, a link once for each side, before its first right."""
    names = re.findall(
        r"^\| ([a-z]+(?:, [a-z]+)?) \| (?:topic|group) `", pages["rights"], re.MULTILINE
    )
    expected = {str(component.value) for component in Component} - {"link"}
    assert sorted(names) == sorted({*expected, "link, source", "link, target"})
    assert "| topic `TOPIC` | Describe, DescribeConfigs | " in pages["rights"]


def test_every_message_of_the_wire_formats_has_an_entry(pages: dict[str, str]):
    """Each message at the top of a source is shown with its fields."""
    for path in formats.sources():
        source = path.read_text()
        names = re.findall(r"^(?:message|enum) (\w+)", source, re.MULTILINE)
        assert names == [name for name, _, _ in formats.messages(source)], path.name
    text = pages["formats"]
    assert "uint64 covered_from = 3;" in text
    assert "a data partition that hold aborted native transactions ([F3]" in text


def test_every_public_name_has_an_entry(pages: dict[str, str]):
    """Classes and functions are documented by their docstrings, errors in a table."""
    for name in stilltide.__all__:
        entry = rf"^::: stilltide\.[\w.]+\.{name}$|^\| `{name}` \||^`{name}` is:$"
        assert re.search(entry, pages["api"], re.MULTILINE), name


def test_every_alert_has_an_entry_and_a_runbook_that_exists(pages: dict[str, str]):
    """The annotation `runbook` names a heading of the page, which tells what to do."""
    sections = dict(
        re.findall(
            r"^### (Stilltide\w+)\n\n(.+?)(?=^##|\Z)", RUNBOOK.read_text(), re.MULTILINE | re.DOTALL
        )
    )
    rules = alerts.rules()
    assert list(sections)
    assert set(sections) == {rule["alert"] for rule in rules}
    for rule in rules:
        assert f"## {rule['alert']}\n" in pages["alerts"]
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert ROOT / page == RUNBOOK
        assert anchor in anchors(RUNBOOK)
        for part in ("Means", "Suffers", "Look", "Do", "Ends"):
            assert f"- *{part}*: " in sections[rule["alert"]], rule["alert"]


def test_every_metric_has_a_sign_of_trouble_and_a_next_step():
    """The runbook has a row for each metric, and none for what is gone."""
    rows = re.findall(
        r"^\| `(stilltide_\w+)` \| [^|]+ \| [^|]+ \|$", RUNBOOK.read_text(), re.MULTILINE
    )
    assert sorted(rows) == sorted(one.name for section in SECTIONS for one in section.table)
