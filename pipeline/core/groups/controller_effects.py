"""Effects of the controller of a data partition, which the driver carries out in order.

*Source*: docs/protocols I6-I9. Each effect is carried out before the next one begins. When a write
fails, or its outcome is unknown, the controller ends: another one begins by reading the signals.
"""

from collections.abc import Collection
from dataclasses import dataclass

from stilltide.pipeline.core.groups.position_snapshot_effects import WriteSignal
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


@dataclass(frozen=True, slots=True)
class Poll:
    """Effect: read, from now on and in this order: groups, log, positions' end; report `polled`.

    The topic id must be the same before and after, since offsets of a former topic mean other
    records.

    Attributes:
        number: number of the poll.
        data: the data partition.
        groups: groups to read in addition to the replicated ones.
    """

    number: int
    data: TopicPartition
    groups: Collection[str]


@dataclass(frozen=True, slots=True)
class ReadRecords:
    """Effect: read the visible records of `[first, end)` of the data partition; report `log_read`.

    Records are read as far as they are decided. If the log start has passed `first`, or the topic
    was replaced, the report holds no records, and its `read_to` is `first`.
    """

    number: int
    first: Offset
    end: EndOffset


@dataclass(frozen=True, slots=True)
class MoveGroup:
    """Effect: commit this offset for a group that has no members; report `moved`.

    The move is done if the topic is still `incarnation`, the group has no members and the offset
    `expected` right before, and has `offset` right afterwards. The commit's metadata gets the
    generation, and keeps the acknowledged offsets above (I11), unless the group adopts the
    generation and does not go forward (I10).

    Attributes:
        group: name of the group.
        data: the data partition.
        incarnation: incarnation of the topic to which the offsets belong.
        expected: offset that the group has committed; None: none.
        offset: offset to commit.
        generation: generation for the commit's metadata.
        adopts: whether the group adopts the generation here: it was reset.
    """

    group: str
    data: TopicPartition
    incarnation: bytes
    expected: Offset | None
    offset: Offset | None
    generation: int
    adopts: bool = False


ControllerEffect = Poll | ReadRecords | MoveGroup | WriteSignal
"""What the driver carries out."""
