"""Records without key for a topic that compacts: Kafka takes none of them.

*Source*: docs/protocols H10.

*Invariants*: records are copied in order, and none behind a record that waits. Only records that
would be copied are judged.
"""

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from stilltide.pipeline.core.links.copying import SourceRecord
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

P = TypeVar("P")


class Sifted(NamedTuple, Generic[P]):
    """What may be copied of the records below an offset.

    Attributes:
        records: the records to copy.
        until: end offset of what is done with.
        left_out: offsets of records that are not copied.
        waits_at: offset of the record that the partition waits at; None: it does not wait.
    """

    records: Sequence[SourceRecord[P]]
    until: EndOffset
    left_out: Sequence[Offset] = ()
    waits_at: Offset | None = None


class Keyless(Generic[P]):
    """H10: decides which records of one link are left out, and which partitions wait.

    Args:
        compacting: topics that are known to compact on the target.
        skips: whether records without key are left out; else their partitions wait.
        lacks_key: whether the record of a payload has no key.

    Attributes:
        waiting: partitions that wait.
    """

    def __init__(
        self,
        compacting: frozenset[str] = frozenset(),
        *,
        skips: bool = False,
        lacks_key: Callable[[P], bool] = lambda _: False,
    ) -> None:
        self._compacting = compacting
        self._skips = skips
        self._lacks_key = lacks_key
        self.waiting: set[TopicPartition] = set()

    def sift(
        self, data: TopicPartition, records: Sequence[SourceRecord[P]], until: EndOffset
    ) -> Sifted[P]:
        """What may be copied of a partition that does not wait."""
        if data.topic not in self._compacting:
            return Sifted(records, until)
        left_out = [offset for offset, _, payload in records if self._lacks_key(payload)]
        if not left_out:
            return Sifted(records, until)
        if self._skips:
            kept = [one for one in records if not self._lacks_key(one[2])]
            return Sifted(kept, until, left_out)
        self.waiting.add(data)
        first = left_out[0]
        before = [one for one in records if one[0] < first]
        return Sifted(before, EndOffset(first), waits_at=first)
