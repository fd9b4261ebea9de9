"""When the controller of a data partition looks at its groups.

*Source*: docs/protocols I8.
*Invariants*: two looks are at least `update_interval_ms` apart, except after a move that was read
back; a change ends a rest.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControllerLimits:
    """How often groups are looked at, updates written, and idle positions committed again (I8).

    Where nothing has changed for `rest_after_ms`, groups are looked at every `rest_interval_ms`: a
    look is six questions to the brokers. After another cluster's update one comes as soon as
    `update_interval_ms` after the last has ended.
    """

    poll_interval_ms: int = 100
    update_interval_ms: int = 20
    rest_after_ms: int = 5000
    rest_interval_ms: int = 500
    publish_interval_ms: int = 50
    commit_again_ms: int = 42 * 60 * 60 * 1000
    read_back_ms: int = 10_000


class Pace:
    """Says when the next look is due.

    Args:
        limits: how often.
    """

    def __init__(self, limits: ControllerLimits) -> None:
        self.next_ms = 0
        self._limits = limits
        self._began_ms = self._ended_ms = self._changed_ms = 0
        self._updated = False  # since the last look began

    def look_begins(self, now_ms: int) -> None:
        """A look begins."""
        self._began_ms, self._updated = now_ms, False

    def changed(self, now_ms: int) -> None:
        """The look that is under way found a change."""
        self._changed_ms = now_ms

    def look_ended(self, now_ms: int) -> None:
        """A look has ended; says when the next one is due."""
        self._ended_ms, limits = now_ms, self._limits
        if self._updated:
            self.next_ms = now_ms + limits.update_interval_ms
        elif now_ms < self._changed_ms + limits.rest_after_ms:
            soonest_ms = now_ms + limits.update_interval_ms
            self.next_ms = max(self._began_ms + limits.poll_interval_ms, soonest_ms)
        else:
            # In step with the other partitions that rest: they share a look.
            self.next_ms = (now_ms // limits.rest_interval_ms + 1) * limits.rest_interval_ms

    def end_rest(self) -> None:
        """The next look comes as soon as in times of change."""
        self.next_ms = min(self.next_ms, self._began_ms + self._limits.poll_interval_ms)

    def updated(self) -> None:
        """Another cluster's update was read: a look follows shortly."""
        self._updated = True
        self.next_ms = min(self.next_ms, self._ended_ms + self._limits.update_interval_ms)

    def at_once(self) -> None:
        """The next look is due now."""
        self.next_ms = 0
