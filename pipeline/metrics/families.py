"""A metric family as a row of families.toml: the exposition and docs/metrics.md come from the row.

*Invariants*: a family is described once; reading a table does nothing for a record, only for a
scrape.
"""

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Family:
    """One family.

    Attributes:
        name: as exposed; a counter's ends in `_total`.
        kind: its type: `counter`, `gauge` or `histogram`.
        unit: what a sample counts, in the plural.
        labels: of each sample, in order.
        text: the help of the exposition.
        note: what the documentation adds to the help.
        buckets: upper bounds of a histogram.
        read: takes a sample from figures at each scrape, or samples by the values of the last
            label; None if the product counts in between.
    """

    name: str
    kind: str
    unit: str
    labels: tuple[str, ...]
    text: str
    note: str = ""
    buckets: tuple[float, ...] = ()
    read: Callable[[Any], Any] | None = None


Table = Sequence[Family]


class Section(NamedTuple):
    """A part of docs/metrics.md.

    Attributes:
        title: the heading.
        text: paragraphs above the table.
        tables: the families by what they are read from, in order.
    """

    title: str
    text: str
    tables: Mapping[str, Table]

    @property
    def table(self) -> Table:
        """All families."""
        return [family for table in self.tables.values() for family in table]


@cache
def sections() -> Mapping[str, Section]:
    """The sections of families.toml by name, in order."""
    tables = tomllib.loads(Path(__file__).with_name("families.toml").read_text())
    return {
        name: Section(
            section["title"],
            section["text"],
            {
                key: [_family(table["labels"], **row) for row in table["families"]]
                for key, table in section["tables"].items()
            },
        )
        for name, section in tables.items()
    }


def _family(
    labels: Sequence[str],
    *,
    label: str | None = None,
    read: str | Mapping[str, str] | None = None,
    per: int = 1,
    buckets: Sequence[float] = (),
    **row: str,
) -> Family:
    names = (*labels, label) if label else tuple(labels)
    return Family(labels=names, buckets=tuple(buckets), read=_reader(read, per), **row)


def _reader(read: str | Mapping[str, str] | None, per: int) -> Callable[[Any], Any] | None:
    if read is None:
        return None
    if isinstance(read, Mapping):
        figures = {value: attrgetter(path) for value, path in read.items()}
        return lambda one: {value: figure(one) for value, figure in figures.items()}
    if not read:
        return lambda one: one
    figure = attrgetter(read)
    return figure if per == 1 else lambda one: figure(one) / per


def counters(table: Table, registry: CollectorRegistry) -> dict[str, Counter]:
    """The counters of a table that the product increments, registered, by name."""
    return {
        family.name: Counter(family.name, family.text, family.labels, registry=registry)
        for family in table
        if family.kind == "counter" and family.read is None
    }


def histograms(table: Table, registry: CollectorRegistry | None) -> dict[str, Histogram]:
    """The histograms of a table by name, registered unless `registry` is None."""
    return {
        family.name: Histogram(
            family.name, family.text, family.labels, buckets=family.buckets, registry=registry
        )
        for family in table
        if family.kind == "histogram"
    }


def collected(table: Table, figures: Iterable[tuple[tuple[str, ...], S]]) -> Iterator[Metric]:
    """The families of a table that are read from figures.

    Args:
        table: all rows begin with the same labels; rows without `read` are left out.
        figures: with the values of those labels.
    """
    families = [one for one in table if one.read is not None]
    names = families[0].labels
    # The samples of all families share one dictionary of labels: most of a scrape is making them.
    labelled = [(dict(zip(names, values, strict=False)), one) for values, one in figures]
    for family in families:
        name, read = family.name, family.read
        assert read is not None
        metric = Metric(name.removesuffix("_total"), family.text, family.kind)
        add = metric.add_sample
        for labels, figure in labelled:
            sample = read(figure)
            if isinstance(sample, Mapping):
                for value, each in sample.items():
                    add(name, {**labels, family.labels[-1]: value}, each)
            else:
                add(name, labels, sample)
        yield metric


class OwnerCollector(Collector):
    """Families that are read from the figures of the owners that serve.

    An owner that moved away leaves no sample.

    Args:
        table: families with the labels `cluster` and the number of the owner.
        cluster: value of that label.
        stats: figures of each owner, by its number.
    """

    def __init__(
        self, table: Table, cluster: str, stats: Callable[[], Mapping[int, object]]
    ) -> None:
        self._table = table
        self._cluster = cluster
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        """The families as they are now."""
        figures = [((self._cluster, str(number)), one) for number, one in self._stats().items()]
        return collected(self._table, figures)
