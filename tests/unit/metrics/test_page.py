"""The tables of families: what is exposed, what is documented, and how families are named."""

import re
from pathlib import Path

import pytest

from stilltide.pipeline.metrics.families import Family, sections
from stilltide.pipeline.metrics.page import PAGE, SECTIONS, page

ROOT = Path(__file__).parents[3]
GOLDEN = Path(__file__).parent / "golden"
FAMILIES = [family for section in SECTIONS for family in section.table]


def test_the_page_is_current():
    """`make metrics` was run after the last change of a table."""
    assert (ROOT / PAGE).read_text() == page(), "run make metrics"


def test_a_table_has_what_is_exposed():
    """The rows are the families of a worker that runs everything, by name, type, labels, help."""
    rows = [
        f"{one.name} {one.kind} {{{','.join((*one.labels, *(['le'] if one.buckets else [])))}}} "
        f"{one.text}"
        for one in FAMILIES
        if one not in (*sections()["audits"].table, *sections()["tables"].table)
    ]
    exposed = (GOLDEN / "worker.txt").read_text()
    assert sorted(rows) == sorted(re.findall(r"^stilltide_.*$", exposed, re.MULTILINE))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_names_carry_base_units(family: Family):
    """Seconds and bytes are named at the end, counters end in `_total`, and nothing is scaled."""
    assert (family.kind == "counter") == family.name.endswith("_total")
    base = family.name.removesuffix("_total")
    assert (family.unit in {"seconds", "bytes"}) == base.endswith(("_seconds", "_bytes"))
    assert not re.search(r"_(ms|us|milli\w*|micro\w*|kb|mb)(_|$)", family.name)
    assert bool(family.buckets) == (family.kind == "histogram")
