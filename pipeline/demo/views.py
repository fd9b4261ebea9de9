"""The committed records, as the producer, the consumer and Spark each saw them.

*Invariants*: the three views are equal in every count and in the content digest of every partition,
or `differences` names where they differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stilltide.schemas.values import TopicPartition

COUNTS = ("written", "visible", "hidden")


@dataclass
class PartitionView:
    """Records of one partition: written = visible + hidden; digest of the visible ones."""

    visible: int = 0
    hidden: int = 0
    digest: int = 0

    @property
    def written(self) -> int:
        """Visible and hidden together."""
        return self.visible + self.hidden


@dataclass
class View:
    """The view of the producer, the consumer or Spark; a count that it cannot know is None."""

    name: str
    committed: int = 0
    aborted: int | None = 0
    partitions: dict[TopicPartition, PartitionView] = field(
        default_factory=dict[TopicPartition, PartitionView]
    )

    def partition(self, data: TopicPartition) -> PartitionView:
        """The view of one partition, empty at first."""
        return self.partitions.setdefault(data, PartitionView())

    def total(self, topic: str, count: str) -> int:
        """`written`, `visible` or `hidden` records of a topic."""
        return sum(
            getattr(view, count) for data, view in self.partitions.items() if data.topic == topic
        )


def differences(views: list[View]) -> list[str]:
    """The differences between the views, in words; empty if they agree."""
    first, *others = views
    differing: list[str] = []
    for other in others:
        pair = f"{first.name} {{}}, {other.name} {{}}"
        for name in ("committed", "aborted"):
            a, b = getattr(first, name), getattr(other, name)
            if None not in (a, b) and a != b:
                differing.append(f"transactions {name}: {pair.format(a, b)}")
        for data in sorted(first.partitions.keys() | other.partitions.keys()):
            mine, theirs = first.partition(data), other.partition(data)
            for name in ("visible", "hidden", "digest"):
                a, b = getattr(mine, name), getattr(theirs, name)
                if a != b:
                    differing.append(f"{data} {name}: {pair.format(a, b)}")
    return differing


def rows(views: list[View], topics: list[str]) -> list[dict[str, Any]]:
    """The table: one row for each count, one column for each view."""
    table: list[tuple[str, str, Mapping[str, Any]]] = [
        ("transactions", name, {view.name: getattr(view, name) for view in views})
        for name in ("committed", "aborted")
    ]
    for topic in topics:
        for count in COUNTS:
            counts = {view.name: view.total(topic, count) for view in views}
            table.append((topic, f"records {count}", counts))
        digests = {
            view.name: _short(sum(p.digest for d, p in view.partitions.items() if d.topic == topic))
            for view in views
        }
        table.append((topic, "digest of visible", digests))
    return [
        {"of": of, "what": what, **cells, "equal": "yes" if _equal(cells) else "NO"}
        for of, what, cells in table
    ]


def _equal(cells: Mapping[str, Any]) -> bool:
    """Whether all known values of a row are equal."""
    return len(set(cells.values()) - {None}) == 1


def _short(digest: int) -> str:
    return f"{digest:x}"[-12:]
