"""When the controller of a data partition begins a round.

*Source*: docs/protocols I8, I16.
*Invariants*: two rounds are at least `update_interval_ms` apart, except after a move that was read
back; a change ends the longer interval of times without changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from stilltide.pipeline.core.groups.frontier import LogView
from stilltide.pipeline.core.groups.group import GroupSeen


@dataclass(frozen=True, slots=True)
class ControllerLimits:
    """How often groups are polled, updates written, and idle positions committed again (I8).

    When nothing has changed for `rest_after_ms`, a round begins every `rest_interval_ms`, because
    a round costs six requests to the brokers. After another cluster's update a round begins
    `update_interval_ms` after the last round has ended.
    """

    poll_interval_ms: int = 50
    update_interval_ms: int = 20
    rest_after_ms: int = 5000
    rest_interval_ms: int = 500
    publish_interval_ms: int = 50
    commit_again_ms: int = 42 * 60 * 60 * 1000  # I8
    read_back_ms: int = 10_000


class Settled(NamedTuple):
    """A poll after which no group had anything to do (I16).

    Attributes:
        view: offsets of the log.
        groups: replicated groups.
        until_ms: when the first idle position must be committed again.
    """

    view: LogView
    groups: Mapping[str, GroupSeen]
    until_ms: float


class Pace:
    """Computes when the next round is due.

    Args:
        limits: intervals between rounds.

    Attributes:
        next_ms: when the next round is due.
        settled: the last poll, if no group had anything to do after it and nothing has changed.
    """

    def __init__(self, limits: ControllerLimits) -> None:
        self.next_ms = 0
        self.settled: Settled | None = None
        self._limits = limits
        self._began_ms = self._ended_ms = self._changed_ms = 0
        self._updated = False  # since the last round began

    def look_begins(self, now_ms: int) -> None:
        """A round begins."""
        self._began_ms, self._updated = now_ms, False

    def changed(self, now_ms: int) -> None:
        """The present round found a change."""
        self._changed_ms = now_ms

    def look_ended(self, now_ms: int) -> None:
        """A round has ended; computes when the next one is due."""
        self._ended_ms, limits = now_ms, self._limits
        if self._updated:
            self.next_ms = now_ms + limits.update_interval_ms
        elif now_ms < self._changed_ms + limits.rest_after_ms:
            soonest_ms = now_ms + limits.update_interval_ms
            self.next_ms = max(self._began_ms + limits.poll_interval_ms, soonest_ms)
        else:
            # At the same moments as other partitions without changes, which share the requests.
            self.next_ms = (now_ms // limits.rest_interval_ms + 1) * limits.rest_interval_ms

    def is_settled(self, now_ms: int) -> bool:
        """Whether the same poll again changes nothing (I16)."""
        return self.settled is not None and now_ms < self.settled.until_ms

    def rests(self, now_ms: int) -> bool:
        """Whether it is settled, and nothing has changed for a while."""
        return self.is_settled(now_ms) and now_ms >= self._changed_ms + self._limits.rest_after_ms

    def end_rest(self) -> None:
        """Something has changed: the next round begins soon, and looks at every group."""
        self.settled = None
        self.next_ms = min(self.next_ms, self._began_ms + self._limits.poll_interval_ms)

    def updated(self) -> None:
        """Another cluster's update was read: a round follows shortly."""
        self._updated = True
        self.next_ms = min(self.next_ms, self._ended_ms + self._limits.update_interval_ms)

    def at_once(self) -> None:
        """The next round is due now."""
        self.next_ms = 0
