"""Position snapshots of one data partition: positions of all clusters that belong together.

*Source*: docs/protocols I1, I2, I3, I4, I5; PIP-33, Pulsar's replicated subscriptions, which leaves
open why two rounds are needed: see `rounds_of`.
*Invariants*: at most one attempt at a time, which ends only when its snapshot was read back or its
time-out has passed; an attempt counts answers with its id and round, one of each cluster; a request
is answered with a decided end that was computed after the request was read. Of the snapshots that
are kept (I5) local ends ascend, and the oldest and the newest one stay, so that a group far behind
still finds one; of the inner ones, the one whose neighbours are closest to each other is dropped
first. When a write fails, or its outcome is unknown, the controller ends: another one begins by
reading the signals.

Refuses to begin an attempt before every link into this cluster has written a bucket for the data
partition, while a link from or to another cluster does not run (I13), or when nothing was decided
since the last snapshot was begun.
"""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from stilltide.schemas.replication.origins import Incarnation
from stilltide.schemas.replication.signals import (
    Position,
    PositionSnapshot,
    PositionSnapshotRequest,
    PositionSnapshotResponse,
    PositionSnapshots,
    RequestKey,
    ResponseKey,
    SignalKey,
    SignalValue,
    SnapshotsKey,
)
from stilltide.schemas.retry import POSITION_SNAPSHOT
from stilltide.schemas.values import ClusterName, EndOffset, TopicPartition

SNAPSHOTS_MAX = 30
SNAPSHOTS_MIN = 3
"""Lowest limit: the oldest, the newest and one between them."""


def with_snapshot(
    cached: Sequence[PositionSnapshot],
    snapshot: PositionSnapshot,
    snapshots_max: int = SNAPSHOTS_MAX,
) -> tuple[PositionSnapshot, ...]:
    """The cache with a new position snapshot (I5).

    A snapshot with the newest local end replaces the newest one: nothing was written here, but
    other clusters went on. A lower local end means that the log lost its end: only the new
    snapshot stays.
    """
    assert snapshots_max >= SNAPSHOTS_MIN
    if cached and snapshot.local_end < cached[-1].local_end:
        return (snapshot,)
    kept = [one for one in cached if one.local_end < snapshot.local_end]
    kept.append(snapshot)
    if len(kept) > snapshots_max:
        inner = range(1, len(kept) - 1)
        del kept[min(inner, key=lambda at: kept[at + 1].local_end - kept[at - 1].local_end)]
    return tuple(kept)


def passed(cached: Sequence[PositionSnapshot], offset: EndOffset) -> PositionSnapshot | None:
    """The newest position snapshot whose local end a committed offset has reached, or None."""
    count = bisect_right(cached, offset, key=lambda one: one.local_end)
    return cached[count - 1] if count else None


@dataclass(frozen=True, slots=True)
class WriteSignal:
    """Effect: write a signal on this cluster; the controller reads the signal back."""

    key: SignalKey
    value: SignalValue


@dataclass(frozen=True, slots=True)
class ReadDecidedEnd:
    """Effect: compute the decided end from now on; report `decided_end_read` (I3).

    The last stable offset of the data partition and the end of its transactions' markers are read
    after this effect.
    """

    asker: ClusterName
    request: PositionSnapshotRequest


@dataclass(frozen=True, slots=True)
class ReadEnd:
    """Effect: read the data partition's high watermark, from now on; report `end_read`."""

    attempt_id: bytes


SnapshotEffect = WriteSignal | ReadDecidedEnd | ReadEnd
"""What the driver carries out."""


NONCE_BYTES = 8


@dataclass(frozen=True, slots=True)
class PositionSnapshotLimits:
    """How often position snapshots are attempted, for how long, and how many are kept.

    After an attempt that timed out the next one waits as `POSITION_SNAPSHOT` says, in units of
    `timeout_ms`.
    """

    interval_ms: int = 1000
    timeout_ms: int = 30_000
    snapshots_max: int = SNAPSHOTS_MAX


@dataclass(slots=True)
class _Attempt:
    """One attempt to make a position snapshot."""

    id: bytes
    incarnation: bytes
    started_at: EndOffset
    started_ms: int
    round: int = 1
    first_answers: dict[ClusterName, Position] = field(default_factory=dict[ClusterName, Position])
    missing: set[ClusterName] = field(default_factory=set[ClusterName])
    answered_ms: int | None = None  # when the last answer of the last round was read


@dataclass(slots=True)
class SnapshotCounts:
    """Numbers of attempts since this machine began."""

    started: int = 0
    completed: int = 0
    timed_out: int = 0


def rounds_of(remote_count: int) -> int:
    """How many times each other cluster is asked before a position snapshot is complete.

    A snapshot (L; B: b, C: c) promises: a group that has read every record below L here has read
    every record below b on B and below c on C.

    With one remote, B, the link writes B's answer after every record that B wrote itself below b,
    and the other records below b came from here. The local end L is read after the answer, so L is
    above all of these records.

    With two remotes, b may be above B's copy of a record of C that has not arrived here from C: B's
    answer comes after B's own records, not after C's. Even both first answers do not help: C may
    have answered before it wrote the record, and B after B had copied the record. So both are asked
    again. C reads the second request after B has answered the first one. By then every record of C
    that B had counted is decided on C and below C's second decided end, and such a record is here
    when C's second answer takes effect. The same holds with B and C exchanged. The positions are
    those of the first answers, and L is read after the last of the second answers. A third round
    would add nothing, however many clusters there are.
    """
    return 2 if remote_count > 1 else 1


class _PositionRequests:
    """The requests of other clusters that have no answer yet (I2).

    At most one of each cluster is open, the newest. A request that was answered is not opened
    again, not even by the next controller, which reads the answers of former ones.
    """

    def __init__(self) -> None:
        self.open: dict[ClusterName, PositionSnapshotRequest] = {}
        self._answers: dict[ClusterName, PositionSnapshotResponse] = {}  # the last one to each

    def read(self, asker: ClusterName, request: PositionSnapshotRequest) -> bool:
        """Takes a request; False if the same request is open or was answered."""
        answer = self._answers.get(asker)
        if answer is not None and answer[:2] == request[:2]:
            return False
        before = self.open.get(asker)
        self.open[asker] = request
        return before is None or before[:2] != request[:2]

    def answered(self, asker: ClusterName, answer: PositionSnapshotResponse) -> None:
        """Takes an answer of this cluster; closes the answered request."""
        self._answers[asker] = answer
        request = self.open.get(asker)
        if request is not None and request[:2] == answer[:2]:
            del self.open[asker]


class PositionSnapshotBuilder:
    """Makes and keeps position snapshots of one data partition, and answers other clusters.

    Args:
        data: the data partition.
        here: this cluster.
        remotes: the other clusters.
        nonce: 8 random bytes of this machine, so that ids of attempts are never used again.
        limits: how often snapshots are attempted, for how long, and how many are kept.
    """

    def __init__(
        self,
        data: TopicPartition,
        here: ClusterName,
        remotes: Collection[ClusterName],
        *,
        nonce: bytes,
        limits: PositionSnapshotLimits,
    ) -> None:
        assert here not in remotes
        assert len(nonce) == NONCE_BYTES
        self.cached: PositionSnapshots | None = None
        self.counts = SnapshotCounts()
        self._data = data
        self._here = here
        self._remotes = frozenset(remotes)
        self._nonce = nonce
        self._limits = limits
        self._caught_up = False
        self._connected = False
        self._decided: tuple[bytes, EndOffset] | None = None  # incarnation, decided end
        self._attempt: _Attempt | None = None
        self._failures = 0
        self._next_ms = 0
        self._asked_for = False  # by an operator (I14)
        self._requests = _PositionRequests()

    @property
    def pending(self) -> tuple[bytes, int] | None:
        """Id of the present attempt, and when it began; None: there is none."""
        return (self._attempt.id, self._attempt.started_ms) if self._attempt else None

    @property
    def is_asked(self) -> bool:
        """Whether a request of another cluster waits for an answer."""
        return bool(self._requests.open)

    @property
    def missing(self) -> frozenset[ClusterName]:
        """The clusters whose answer is awaited."""
        return frozenset(self._attempt.missing) if self._attempt else frozenset()

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` is due next."""
        if self._attempt is not None:
            return self._attempt.started_ms + self._limits.timeout_ms
        return self._next_ms if self._wanted() else None

    # -- the log, the links and the time

    def log_moved(
        self, incarnation: bytes, decided_end: EndOffset, now_ms: int
    ) -> list[SnapshotEffect]:
        """A decided end was read; a late report only delays the next snapshot."""
        self._decided = (incarnation, decided_end)
        return self.tick(now_ms)

    def links_changed(self, now_ms: int, *, connected: bool) -> list[SnapshotEffect]:
        """Whether every link into this cluster has met the data partition, and runs (I1, I13).

        The back-off after attempts that timed out ends when the links are connected again.
        """
        if connected and not self._connected and self._failures:
            self._failures = 0
            self._next_ms = min(self._next_ms, now_ms)
        self._connected = connected
        return self.tick(now_ms)

    @property
    def can_begin(self) -> bool:
        """Whether an attempt could complete: all links have written here, and the log was read."""
        return self._caught_up and self._connected and bool(self._decided and self._remotes)

    def snapshot_now(self, now_ms: int) -> list[SnapshotEffect]:
        """An operator asks for an attempt within `interval_ms`, or after the present one (I14)."""
        self._asked_for = True
        self._failures = 0
        self._next_ms = min(self._next_ms, now_ms + self._limits.interval_ms)
        return self.tick(now_ms)

    def tick(self, now_ms: int) -> list[SnapshotEffect]:
        """Gives up an attempt whose time-out has passed, and begins the next when it is due."""
        attempt = self._attempt
        if attempt is not None and now_ms >= attempt.started_ms + self._limits.timeout_ms:
            self._attempt = None
            self.counts.timed_out += 1
            self._failures += 1
            waits = POSITION_SNAPSHOT.wait_s(self._failures)
            self._next_ms = now_ms + round(self._limits.timeout_ms * waits)
        if self._attempt is None and self._wanted() and now_ms >= self._next_ms:
            return self._start(now_ms)
        return []

    def _wanted(self) -> bool:
        """I1: whether records were decided since the newest snapshot was begun."""
        if not self.can_begin:
            return False
        if self._asked_for:
            return True
        assert self._decided is not None
        incarnation, decided_end = self._decided
        cached = self.cached
        if cached is not None and cached.incarnation == incarnation:
            return decided_end > cached.started_at
        return decided_end > 0

    def _start(self, now_ms: int) -> list[SnapshotEffect]:
        assert self._decided is not None
        self.counts.started += 1
        self._asked_for = False
        self._next_ms = now_ms + self._limits.interval_ms
        attempt = _Attempt(self._nonce + self.counts.started.to_bytes(8), *self._decided, now_ms)
        self._attempt = attempt
        return self._ask(attempt)

    def _ask(self, attempt: _Attempt) -> list[SnapshotEffect]:
        assert self._decided is not None
        attempt.missing = set(self._remotes)
        request = PositionSnapshotRequest(attempt.id, attempt.round, *self._decided)
        return [WriteSignal(RequestKey(self._data, self._here), request)]

    # -- signals

    def signal_read(self, key: SignalKey, value: SignalValue, now_ms: int) -> list[SnapshotEffect]:
        """Takes a signal on this cluster, in log order; signals of other kinds are ignored."""
        if isinstance(key, RequestKey) and key.source in self._remotes:
            assert isinstance(value, PositionSnapshotRequest)
            return self._request_read(key.source, value)
        if isinstance(key, ResponseKey) and isinstance(value, PositionSnapshotResponse):
            if key.source == self._here:
                self._requests.answered(key.target, value)
            elif key.target == self._here:
                return self._response_read(key.source, value, now_ms)
        elif isinstance(value, PositionSnapshots) and key.source == self._here:
            return self._snapshots_read(value, now_ms)
        return []

    def caught_up(self, now_ms: int) -> list[SnapshotEffect]:
        """All signals that existed at the start were read: answers the open requests."""
        self._caught_up = True
        asked: list[SnapshotEffect] = [
            ReadDecidedEnd(asker, request) for asker, request in self._requests.open.items()
        ]
        return asked + self.tick(now_ms)

    def _request_read(
        self, asker: ClusterName, request: PositionSnapshotRequest
    ) -> list[SnapshotEffect]:
        is_new = self._requests.read(asker, request)
        return [ReadDecidedEnd(asker, request)] if is_new and self._caught_up else []

    def decided_end_read(
        self,
        asker: ClusterName,
        request: PositionSnapshotRequest,
        incarnation: bytes,
        decided_end: EndOffset,
        now_ms: int,
    ) -> list[SnapshotEffect]:
        """The result of `ReadDecidedEnd`."""
        effects = self.log_moved(incarnation, decided_end, now_ms)
        if self._requests.open.get(asker) != request:
            return effects
        answer = PositionSnapshotResponse(request.id, request.round, incarnation, decided_end)
        self._requests.answered(asker, answer)
        return [WriteSignal(ResponseKey(self._data, self._here, asker), answer), *effects]

    def _response_read(
        self, source: ClusterName, response: PositionSnapshotResponse, now_ms: int
    ) -> list[SnapshotEffect]:
        attempt = self._attempt
        if attempt is None or (response.id, response.round) != (attempt.id, attempt.round):
            return []
        if source not in attempt.missing:
            return []
        attempt.missing.remove(source)
        if attempt.round == 1:
            where = Incarnation(source, response.incarnation)
            attempt.first_answers[source] = Position(where, response.decided_end)
        if attempt.missing:
            return []
        if attempt.round < rounds_of(len(self._remotes)):
            attempt.round += 1
            return self._ask(attempt)
        attempt.answered_ms = now_ms
        return [ReadEnd(attempt.id)]

    def end_read(
        self, attempt_id: bytes, incarnation: bytes, end: EndOffset, wall_ahead_ms: int = 0
    ) -> list[SnapshotEffect]:
        """The result of `ReadEnd`; an attempt during which the topic was replaced is void.

        Args:
            attempt_id: id of the attempt.
            incarnation: incarnation of the topic.
            end: end of the log.
            wall_ahead_ms: wall time, which the snapshot holds, less the time of `now_ms`.
        """
        attempt = self._attempt
        if attempt is None or attempt.id != attempt_id or attempt.answered_ms is None:
            return []
        if incarnation != attempt.incarnation:
            return []
        snapshot = PositionSnapshot(
            attempt.id,
            end,
            tuple(position for _, position in sorted(attempt.first_answers.items())),
            attempt.started_ms + wall_ahead_ms,
            attempt.answered_ms + wall_ahead_ms,
        )
        before = self.cached
        kept = before.snapshots if before and before.incarnation == incarnation else ()
        kept = with_snapshot(kept, snapshot, self._limits.snapshots_max)
        value = PositionSnapshots(incarnation, attempt.started_at, kept)
        return [WriteSignal(SnapshotsKey(self._data, self._here), value)]

    def _snapshots_read(self, value: PositionSnapshots, now_ms: int) -> list[SnapshotEffect]:
        """I4: the snapshot is durable, so it counts, whichever controller wrote it."""
        self.cached = value
        attempt = self._attempt
        if attempt is not None and any(one.id == attempt.id for one in value.snapshots):
            self._attempt = None
            self._failures = 0
            self.counts.completed += 1
        return self.tick(now_ms)
