"""What is damaged in a partition of a system topic, and what can be done about it.

*Source*: docs/protocols B10.
"""

from collections.abc import Sequence
from typing import NamedTuple

from stilltide.connectors.ports.records import NewRecord, Record
from stilltide.schemas.errors import shown
from stilltide.schemas.values import TopicPartition

SHOWN_BYTES = 32


class Repair(NamedTuple):
    """What a repair does about a damaged record.

    Attributes:
        action: in a few words; "" if nothing is safe.
        loses: what that may lose; or why nothing is safe.
        writes: the records to write, for a compacted topic.
    """

    action: str
    loses: str
    writes: Sequence[NewRecord] = ()


class Damage(NamedTuple):
    """A damaged record.

    Attributes:
        record: the record.
        why: why it does not decode.
        remedy: what a repair does.
    """

    record: Record
    why: str
    remedy: Repair

    @property
    def repairable(self) -> bool:
        """Whether a repair is safe."""
        return bool(self.remedy.action)

    @property
    def place(self) -> TopicPartition:
        """The partition that holds the record."""
        return self.record.data

    @property
    def key(self) -> str:
        """The beginning of the key, escaped."""
        return shown(self.record.key)

    @property
    def begins(self) -> str:
        """The beginning of the value, escaped."""
        return repr((self.record.value or b"")[:SHOWN_BYTES])
