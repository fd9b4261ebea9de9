"""One data partition that links fill, and a plain list of origins as the truth about its index.

*Source*: rules H1, H3, H5, H6.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TypeVar

from stilltide.pipeline.core.groups.frontier import LogRead, LogView, ReadLog, VisibleRecord
from stilltide.pipeline.core.offset_index import claims, index
from stilltide.pipeline.core.offset_index.index import OffsetIndex, Stretch
from stilltide.schemas.replication.origins import Claims, Incarnation, Origin
from stilltide.schemas.values import ClusterName, EndOffset, Offset, Range

HERE = Incarnation(ClusterName("here"), b"here-000")
SPAN_MAX = 7

T = TypeVar("T")


@dataclass
class Copier:
    """A link into the log, which writes buckets as a real link does."""

    index: OffsetIndex
    source: Incarnation
    position: int = 0
    number: int = -1
    holes: Claims = field(default_factory=dict)
    jumped: bool = True


class FilledLog:
    """A log of this cluster: the origin of the record at each offset, None: no visible record."""

    def __init__(self, sources: int = 2) -> None:
        self.entries: list[Origin | None] = []
        self.log_start = 0
        self.decided: int | None = None  # the decided end when it is not the end
        self.never_copied: list[Origin] = []
        self.copiers = [
            Copier(OffsetIndex(name), Incarnation(name, b"%08d" % 0))
            for name in map(ClusterName, "xyz"[:sources])
        ]

    @property
    def view(self) -> LogView:
        """The view of a controller."""
        end = EndOffset(len(self.entries))
        decided = end if self.decided is None else EndOffset(min(end, self.decided))
        return LogView(HERE, Offset(self.log_start), end, decided)

    @property
    def indexes(self) -> list[OffsetIndex]:
        """The offset index of every link."""
        return [one.index for one in self.copiers]

    def write_local(self, count: int):
        """Appends records of this cluster."""
        for _ in range(count):
            self.entries.append(Origin(HERE, Offset(len(self.entries))))

    def write_nothing(self, count: int):
        """Appends offsets without visible records: control records, aborted records, gaps."""
        self.entries += [None] * count

    def copy(self, which: int, gaps: list[int]):
        """Copies in one transaction: a source record after each gap, then a control record."""
        copier = self.copiers[which]
        first, source_from = len(self.entries), copier.position
        for gap in gaps:
            copier.position += gap
            self.entries.append(Origin(copier.source, Offset(copier.position)))
            copier.position += 1
        interval = Range(Offset(first), EndOffset(len(self.entries))) if gaps else None
        self._append(copier, source_from, interval)
        self.write_nothing(bool(gaps))

    def skip(self, which: int, count: int):
        """Skips the source's next offsets without copying a record."""
        copier = self.copiers[which]
        copier.position += count
        self._append(copier, copier.position - count, None)

    def lose(self, which: int, count: int):
        """The source's next offsets leave its log before they are copied (H5)."""
        copier = self.copiers[which]
        for offset in range(copier.position, copier.position + count):
            self.never_copied.append(Origin(copier.source, Offset(offset)))
        end = copier.position + count
        copier.holes = index.with_hole(copier.holes, copier.source, copier.position, end)
        copier.position, copier.jumped = end, True
        self._append(copier, end, None)

    def recreate(self, which: int):
        """The source's topic is deleted and created again (H6)."""
        copier = self.copiers[which]
        number = int(copier.source.topic) + 1
        copier.source = Incarnation(copier.source.cluster, b"%08d" % number)
        copier.position, copier.jumped = 0, True

    def trim(self, to: int):
        """Trims the log, and drops buckets that translate no offset any more (H3)."""
        self.log_start = max(self.log_start, to)
        for copier in self.copiers:
            held = copier.index.buckets
            for number in index.dropped(held, HERE.topic, Offset(self.log_start)):
                copier.index.bucket_read(number, None)

    def _append(self, copier: Copier, source_from: int, copies: Range | None) -> None:
        stretch = Stretch(Offset(source_from), EndOffset(copier.position), copies)
        newest = copier.index.newest
        bucket = None
        if newest is not None and not copier.jumped:
            bucket = index.extended(newest, stretch, SPAN_MAX)
        if bucket is None:
            copier.number += 1
            bucket = index.following(newest, copier.source.topic, HERE.topic, stretch, copier.holes)
        copier.jumped = False
        copier.index.bucket_read(copier.number, bucket)

    def read(self, wanted: ReadLog) -> LogRead:
        """Visible records up to the decided end."""
        end = min(wanted.end, self.view.decided_end)
        found = [
            VisibleRecord(Offset(at), None if origin.incarnation == HERE else origin)
            for at, origin in enumerate(self.entries[:end])
            if at >= max(wanted.first, self.log_start) and origin is not None
        ]
        return LogRead(found, EndOffset(max(end, wanted.first)))

    def run(self, reading: Generator[ReadLog, LogRead, T]) -> T:
        """Carries out a generator's reads."""
        try:
            wanted = next(reading)
            while True:
                wanted = reading.send(self.read(wanted))
        except StopIteration as done:
            return done.value

    def unclaimed_from(self, claimed: Claims, base: int) -> int:
        """The first visible record from `base` on that is not claimed, else the decided end."""
        for at in range(base, self.view.decided_end):
            origin = self.entries[at]
            if origin is not None and not claims.holds(claimed, origin):
                return at
        return max(base, self.view.decided_end)
