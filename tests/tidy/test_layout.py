"""A noun has the same name in every layer, so that who knows one layer finds the next."""

import re

import pytest

from tests.tidy.sources import LAYERS, ROOT, sources

NOUNS = {
    "buffered_log": ("a-log-entries", "b-failures", "b-fencing"),
    "service": ("c-clients", "c-coordinator", "j-direct-lines"),
    "coordinator": ("c-clients", "c-coordinator", "c-log", "c-topics", "l-prepared"),
    "read_committed": ("d-visibility",),
    "subscription": ("d-visibility",),
    "snapshots": ("e-snapshots", "e-trimming"),
    "native": ("f-native-transactions",),
    "pending_ack": ("g-members", "g-pending-acknowledgements"),
    "links": ("h-links", "h-topics"),
    "offset_index": ("h-links",),
    "groups": ("i-position-snapshots", "i-replicated-groups", "i-requests"),
    "tables": ("k-tables",),
    "decisions": ("l-prepared",),
}
"""The pages of docs/protocols that hold the rules of each noun."""

WITHOUT = {
    "pipeline/core": {"subscription"},  # a loop around the machine of read_committed
    "pipeline/drivers": {"offset_index", "tables"},  # links and groups, and jobs, call them
    "tests/unit/core": {"subscription", "offset_index"},  # tests/unit/core/links has its tests
    "tests/unit/drivers": {"offset_index", "tables"},
}
"""The nouns that a layer does not have."""

MORE = {
    "pipeline/core": {"status"},
    "pipeline/drivers": {"repair", "shared", "status", "worker"},
    "tests/unit/core": {"status"},
    "tests/unit/drivers": {"repair", "shared", "status", "worker"},
}
"""Folders of a layer that are no noun."""


def folders(layer: str) -> set[str]:
    """The folders of a layer that hold modules."""
    base = ROOT / layer
    inside = (path.relative_to(base) for path in sources() if path.is_relative_to(base))
    return {path.parts[0] for path in inside if len(path.parts) > 1}


@pytest.mark.parametrize("layer", WITHOUT)
def test_a_layer_has_the_folders_of_the_nouns(layer: str):
    """A folder of one layer that another lacks is a noun of the table, or an exception."""
    assert folders(layer) == set(NOUNS) - WITHOUT[layer] | MORE.get(layer, set())


def test_pages_of_protocols_are_those_of_the_nouns():
    """Each page has the rules of a noun."""
    pages = {page.stem for page in (ROOT / "docs" / "protocols").glob("*.md")}
    assert pages - {"README"} == {page for pages in NOUNS.values() for page in pages}


def test_the_map_of_the_code_names_every_noun():
    """The table of nouns in ARCHITECTURE.md has a row for each, with links to its pages."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    named = {
        noun: set(re.findall(r"docs/protocols/([\w-]+)\.md", row[2]))
        for row in rows
        for noun in re.findall(r"`(\w+)`", row[1])
    }
    assert named == {**named, **{noun: set(pages) for noun, pages in NOUNS.items()}}


def test_layers_lie_at_the_top_and_below_the_import_name():
    """`stilltide` holds a link to each layer, and no copy."""
    links = {path.name: path for path in (ROOT / "stilltide").iterdir() if path.is_symlink()}
    assert {name: str(path.readlink()) for name, path in links.items()} == {
        layer: f"../{layer}" for layer in LAYERS
    }
