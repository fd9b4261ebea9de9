"""A metric family as the row of a table: the exposition and docs/metrics.md come from the row.

*Invariants*: a family is described once; reading a table does nothing for a record, only for a
scrape.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

S = TypeVar("S")

Reading = float | dict[str, float]
"""A sample, or samples by the values of the last label."""


class Kind(StrEnum):
    """A type of Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family(Generic[S]):
    """One family.

    Attributes:
        name: as exposed; a counter's ends in `_total`.
        kind: its type.
        unit: what a sample counts, in the plural.
        labels: of each sample, in order.
        text: the help of the exposition.
        note: what the documentation adds to the help.
        buckets: upper bounds of a histogram.
        read: takes a sample from figures at each scrape; None if the product counts in between.
    """

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    text: str
    note: str = ""
    buckets: tuple[float, ...] = ()
    read: Callable[[S], Reading] | None = None


Table = Sequence[Family[Any]]


class Section(NamedTuple):
    """A part of docs/metrics.md.

    Attributes:
        title: the heading.
        text: paragraphs above the table.
        table: the families.
    """

    title: str
    text: str
    table: Table


def counters(table: Table, registry: CollectorRegistry) -> dict[str, Counter]:
    """The counters of a table that the product increments, registered, by name."""
    return {
        one.name: Counter(one.name, one.text, one.labels, registry=registry)
        for one in table
        if one.kind is Kind.COUNTER and one.read is None
    }


def histograms(table: Table, registry: CollectorRegistry | None) -> dict[str, Histogram]:
    """The histograms of a table by name, registered unless `registry` is None."""
    return {
        one.name: Histogram(one.name, one.text, one.labels, buckets=one.buckets, registry=registry)
        for one in table
        if one.kind is Kind.HISTOGRAM
    }


def collected(
    table: Iterable[Family[S]], figures: Iterable[tuple[tuple[str, ...], S]]
) -> Iterator[Metric]:
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
        metric = Metric(name.removesuffix("_total"), family.text, family.kind.value)
        add = metric.add_sample
        for labels, one in labelled:
            found = read(one)
            if isinstance(found, dict):
                for value, sample in found.items():
                    add(name, {**labels, family.labels[-1]: value}, sample)
            else:
                add(name, labels, found)
        yield metric


class OwnerCollector(Collector, Generic[S]):
    """Families that are read from the figures of the owners that serve.

    An owner that moved away leaves no sample.

    Args:
        table: families with the labels `cluster` and the number of the owner.
        cluster: value of that label.
        stats: figures of each owner, by its number.
    """

    def __init__(
        self,
        table: Iterable[Family[S]],
        cluster: str,
        stats: Callable[[], Mapping[int, S]],
    ) -> None:
        self._table = table
        self._cluster = cluster
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        """The families as they are now."""
        figures = [((self._cluster, str(number)), one) for number, one in self._stats().items()]
        return collected(self._table, figures)
