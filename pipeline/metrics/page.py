"""Writes docs/metrics.md from the tables: `python -m stilltide.pipeline.metrics.page`."""

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from stilltide.pipeline.core.groups.group import Standing
from stilltide.pipeline.metrics.families import Family, Section, sections
from stilltide.pipeline.metrics.groups import GROUPS_MAX

PAGE = Path("docs/metrics.md")
"""Below the folder that the program is started in: the top of a clone."""

SECTIONS = tuple(sections().values())

_HEAD = """\
# Metrics

Every metric family of Stilltide; `make metrics` writes the page from
`pipeline/metrics/families.toml`. [operating.md](operating.md#probes-and-metrics) describes where
`/metrics` is served.

A worker shows the families of all sections but the last two. The label `cluster` is the name of the
worker's cluster. A name that ends in `_total` is a counter, which begins at 0 when the process
starts; a family with buckets is a histogram; all others are gauges. The gauges of a coordinator,
store or partition are shown only by the worker that serves it at the time of the scrape. A worker
also shows `process_*` and `python_*` of the Prometheus client library.
"""


def page() -> str:
    """The text of docs/metrics.md."""
    return _HEAD + "".join(line for section in SECTIONS for line in _section(section))


def _section(section: Section) -> Iterator[str]:
    standings = "\n".join(f"- `{one.name.lower()}`: {one.value}" for one in Standing)
    text = section.text.replace("{groups_max}", str(GROUPS_MAX)).replace("{standings}", standings)
    yield f"\n## {section.title}\n\n{text}\n\n"
    shared = _shared(section)
    if shared:
        yield f"Labels of all: {', '.join(f'`{label}`' for label in shared)}.\n\n"
    yield "| metric | unit | meaning |\n| --- | --- | --- |\n"
    for family in section.table:
        own = ", ".join(f"`{label}`" for label in family.labels[len(shared) :])
        name = f"`{family.name}`" + (f" by {own}" if own else "")
        yield f"| {name} | {family.unit} | {_meaning(family)} |\n"


def _shared(section: Section) -> tuple[str, ...]:
    """The labels with which all families of a section begin."""
    places = zip(*(family.labels for family in section.table), strict=False)
    return tuple(labels[0] for labels in takewhile(lambda labels: len({*labels}) == 1, places))


def _meaning(family: Family) -> str:
    bounds = ", ".join(f"{one:g}" if one < 1 else f"{one:.10g}" for one in family.buckets)
    return " ".join(filter(None, (family.text, family.note, bounds and f"Buckets: {bounds}.")))


if __name__ == "__main__":
    PAGE.write_text(page())
