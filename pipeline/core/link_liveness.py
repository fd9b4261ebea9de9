"""Says which links run, from the beats that they write to their targets.

*Source*: docs/protocols I13.
*Invariants*: a link that has ever written a beat is connected only while the newest of its beats is
younger than `CONNECTED_MS`, and while that beat says the same of the link back. Nothing is said of
a link that has not written a beat yet: it counts as connected.
"""

from dataclasses import dataclass

from stilltide.schemas.replication.positions import Beat
from stilltide.schemas.values import ClusterName

BEAT_INTERVAL_MS = 5000
"""Milliseconds between two beats of a link; a beat is part of the link's next transaction."""

CONNECTED_MS = 15_000
"""Age of the newest beat at which a link counts as stopped: two beats may come late or be lost."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """The newest beat of a link: when it was written, and when the link back last was heard."""

    at_ms: int
    back_ms: int | None


class LinkLiveness:
    """The beats of the links into one cluster, by the cluster that each link copies from (I13)."""

    def __init__(self) -> None:
        self._heard: dict[ClusterName, _Heard] = {}

    def beat_read(
        self, source: ClusterName, beat: Beat, since_ms: int | None, now_ms: int, wall_ms: int
    ) -> None:
        """Takes a beat that was read now, and that was not there yet at `since_ms`.

        The clocks of clusters differ. So the beat's own time counts only within these bounds: a
        reader that waits for beats passes `now_ms` twice, one that reads the history passes None.

        Args:
            source: cluster from which the link copies.
            beat: the beat, whose own time is wall time.
            since_ms: see above.
            now_ms: the present time, by the same clock as every other time here.
            wall_ms: the present wall time.
        """
        at_ms = min(now_ms - (wall_ms - beat.written_ms), now_ms)
        if since_ms is not None:
            at_ms = max(at_ms, since_ms)
        before = self._heard.get(source)
        if before is not None and before.at_ms > at_ms:
            return  # an older beat, of another partition
        age_ms = beat.heard_age_ms
        self._heard[source] = _Heard(at_ms, None if age_ms is None else at_ms - age_ms)

    def age_ms(self, source: ClusterName, now_ms: int) -> int | None:
        """Age of the newest beat of the link from `source`; None: it has never written one."""
        heard = self._heard.get(source)
        return None if heard is None else max(0, now_ms - heard.at_ms)

    def back_age_ms(self, source: ClusterName, now_ms: int) -> int | None:
        """Age of the newest beat of the link to `source`, as `source` has heard it last.

        None: no link has told of it.
        """
        heard = self._heard.get(source)
        return None if heard is None or heard.back_ms is None else max(0, now_ms - heard.back_ms)

    def connected(self, source: ClusterName, now_ms: int) -> bool:
        """Whether the links from and to a cluster run."""
        ages_ms = self.age_ms(source, now_ms), self.back_age_ms(source, now_ms)
        return all(age_ms is None or age_ms < CONNECTED_MS for age_ms in ages_ms)
