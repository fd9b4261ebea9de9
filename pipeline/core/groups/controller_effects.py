"""Effects of the controller of a data partition, which the driver carries out in order.

*Source*: docs/protocols I6-I9. Each is carried out before the next one begins. When a write fails, or
its fate is unknown, the controller ends: another one begins by reading the signals.
"""

from collections.abc import Collection
from dataclasses import dataclass

from stilltide.pipeline.core.groups.position_snapshot_effects import WriteSignal
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


@dataclass(frozen=True, slots=True)
class Poll:
    """Read, from now on and in this order: groups, log, end of the positions; report `polled`.

    The topic must be the same before and after: offsets of a former one mean something else here.

    Attributes:
        number: of the poll.
        data: the data partition.
        groups: read these, besides those that are to be replicated.
    """

    number: int
    data: TopicPartition
    groups: Collection[str]


@dataclass(frozen=True, slots=True)
class ReadRecords:
    """Read the visible records of `[first, end)` of the data partition; report `log_read`.

    As far as they are decided. When the log start has passed `first` meanwhile, or the topic is
    another one, nothing is reported as read: `read_to` is `first`.
    """

    number: int
    first: Offset
    end: EndOffset


@dataclass(frozen=True, slots=True)
class MoveGroup:
    """Commit this offset for a group that has no members; report `moved`.

    It is done when the topic is still `incarnation`, the group is at `expected` right before,
    without members, and at `offset` right afterwards. The metadata says the generation and keeps
    what it says of offsets above (I11).

    Attributes:
        group: which one.
        data: the data partition.
        incarnation: of the topic that the offsets belong to.
        expected: its committed offset; None: nothing.
        offset: where to.
        generation: the tag.
    """

    group: str
    data: TopicPartition
    incarnation: bytes
    expected: Offset | None
    offset: Offset | None
    generation: int


ControllerEffect = Poll | ReadRecords | MoveGroup | WriteSignal
"""What the driver carries out."""
