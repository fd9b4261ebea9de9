"""Positions of consumer groups that their log does not hold, in words, with the command that helps.

*Source*: docs/failures.md. Kafka checks neither bounds nor direction of a commit, and retention
deletes records that a group has not read.
"""

import shlex
from typing import NamedTuple

from stilltide.schemas.values import EndOffset, Offset, TopicPartition


class OutsideLog(NamedTuple):
    """A group's position that its log does not hold.

    Attributes:
        data: the partition.
        group: name of the group.
        offset: the position: the committed offset, or where a reader has come to.
        start: the log start.
        end: the log end.
    """

    data: TopicPartition
    group: str
    offset: Offset
    start: Offset
    end: EndOffset

    @property
    def where(self) -> str:
        """On which side of the log the position lies."""
        return "beyond the end" if self.offset > self.end else "below the start"

    @property
    def text(self) -> str:
        """The position and the log's range, in words."""
        return (
            f"{self.data}: the position {self.offset} of group {self.group} lies {self.where} of"
            f" the log, which holds offsets {self.start} to {self.end}"
        )

    def command(self, at: str = "") -> str:
        """The command that moves the group to what is left, or to the end; `at`: its cluster."""
        names = f"{shlex.quote(self.data.topic)} {shlex.quote(self.group)}"
        edge = "--to-latest" if self.offset > self.end else "--to-earliest"
        words = ["stilltide group reset", names, f"--partition {self.data.partition}", edge, at]
        return " ".join(word for word in words if word)


def outside_log(
    data: TopicPartition, group: str, offset: Offset, start: Offset, end: EndOffset
) -> OutsideLog | None:
    """The position if the log does not hold it; None: a reader may go on there."""
    return None if start <= offset <= end else OutsideLog(data, group, offset, start, end)
