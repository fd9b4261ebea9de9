"""Runs a read-committed subscription: data, markers and snapshots in, visible records out.

*Source*: protocols.md D1-D5, D7 (rules in `core.read_committed`), C4 (repeated markers).

*Invariants*:
- Markers and snapshots of a data partition are read from their start, whatever its position (D5).
- Nothing of a partition is handed out after `revoked`.
- What the application has not taken is never part of a committed position.
- Any failure stops the whole subscription and is raised from the next call.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from stilltide.connectors.errors import FatalError, FencedError, RetriableError
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import NO_METADATA, Committed, GroupReader
from stilltide.connectors.ports.records import EndReached, Record, Run
from stilltide.pipeline.core.read_committed.effects import (
    Deliver,
    Effect,
    PauseFetching,
    Reason,
    ResumeFetching,
    Statistics,
    Undecided,
    Withheld,
)
from stilltide.pipeline.core.read_committed.machine import PartitionFilter
from stilltide.pipeline.drivers.read_committed.evidence import OutcomeTail
from stilltide.pipeline.drivers.read_committed.snapshot_asker import Blocked, SnapshotAsker
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.system_topics import require_topics
from stilltide.pipeline.drivers.shared.txn_headers import txns_of_headers
from stilltide.pipeline.drivers.subscription.buffer import DeliveredBuffer
from stilltide.pipeline.drivers.subscription.elsewhere import ElsewhereFilter, Opened
from stilltide.pipeline.drivers.subscription.options import AssignmentListener, SubscriptionOptions
from stilltide.schemas.topics import REPLICATION_MARKERS, TXN_MARKERS, TXN_SNAPSHOTS
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

TURN_RECORDS = 256
"""Records taken from a queue before it is another partition's turn."""

_AHEAD_RECORDS = 100
"""Visible records buffered while the application keeps up: few, so that they are still in the
processor's cache, and young to the garbage collector, when they are taken."""
_FETCHES_MAX = 20
"""Made for an application that has taken all, before everything else on the loop has its turn."""
_PATIENCE_S = 0.1
"""How long nothing is read for want of room; then the buffer fills up until fetching pauses."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Assigned:
    machine: PartitionFilter[Record]
    undecided: Undecided | None = None
    undecided_since: float = 0.0
    reported: set[Reason] = field(default_factory=set[Reason])


class SubscriptionDriver:
    """Reads as a member of the group from `start` to `close`; one taker at a time."""

    def __init__(self, connector: Connector, options: SubscriptionOptions) -> None:
        self._connector = connector
        self._options = options
        self._admin = connector.admin()
        self._outages = OutageGuard(
            self._admin,
            timeout_s=options.unavailable_timeout_s,
            retry_delay_s=options.retry_delay_s,
        )
        self._reader: GroupReader | None = None
        self._evidence: OutcomeTail | None = None
        self._assigned: dict[TopicPartition, _Assigned] = {}
        self._buffer = DeliveredBuffer()
        self._standing: set[TopicPartition] = set()
        self._paused: set[TopicPartition] = set()
        self._withheld: Collection[TopicPartition] = ()
        self._full = False
        self._committed: dict[TopicPartition, EndOffset] = {}
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._rests = False
        self._fetches = 0
        self._failure: Exception | None = None
        self._reading: asyncio.Task[None] | None = None
        self._tailing: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._elsewhere: ElsewhereFilter | None = None
        self.listener: AssignmentListener | None = None
        self.rebalanced_at = 0.0
        self.rebalance_count = 0

    async def start(self) -> None:
        """Joins the group and begins to read.

        Raises:
            FatalError: a topic, or a system topic, does not exist.
            UnavailableError: the cluster cannot be reached.
        """
        options = self._options
        names = [*options.topics, TXN_MARKERS, TXN_SNAPSHOTS]
        asked = [*names, REPLICATION_MARKERS]
        found = await self._outages.call(lambda: self._admin.describe_topics(asked))
        for name in options.topics:
            if name not in found:
                raise FatalError(
                    "the topic does not exist", hint="create it, or correct its name", topic=name
                )
        require_topics(names, found)
        if REPLICATION_MARKERS in found:
            topic_ids = {name: found[name].topic_id for name in options.topics}
            self._elsewhere = ElsewhereFilter(
                self._connector, self._admin, options.group, topic_ids
            )
        self._evidence = OutcomeTail(
            self._connector,
            self._admin,
            self._outages,
            client_id=options.client_id,
            marker_partitions=found[TXN_MARKERS].partition_count,
            snapshot_partitions=found[TXN_SNAPSHOTS].partition_count,
            machine_of=self._machine_of,
            decided=self._decided,
            batch_read=self._evidence_read,
        )
        reader = self._connector.group_reader(
            options.client_id, options.group, from_start=options.from_start
        )
        self._reader = reader
        self.rebalanced_at = asyncio.get_running_loop().time()
        await self._outages.call(
            lambda: reader.subscribe(
                options.topics, assigned=self._on_assigned, revoked=self._on_revoked
            )
        )
        self._reading = asyncio.create_task(self._guarded(lambda: self._read(reader)))
        asker = SnapshotAsker(
            self._connector,
            client_id=f"{options.client_id}-asks",
            after_s=options.ask_after_s,
            blocked=self.blocked,
        )
        self._asking = asyncio.create_task(self._guarded(asker.run))

    async def close(self) -> None:
        """Stops reading and leaves the group; commits nothing. Safe to call twice.

        Whoever waits for a record is told by a `FatalError`.
        """
        if self._failure is None:
            self._failure = FatalError("the subscription is closed")
        self._changed.set()
        if self._reader is not None:
            await self._reader.close()  # first: until then a rebalance begins another task
            self._reader = None
        tasks = [it for it in (self._reading, self._tailing, self._asking, *self._ending) if it]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._reading = self._tailing = self._asking = None
        await self._admin.close()

    def next_queue(self) -> deque[Record]:
        """Visible records of the partition whose turn it is, to be taken from the left.

        Empty when there are none yet. It may grow, and is emptied when the partition is revoked,
        whenever the caller lets the loop run. Ask again after at most `TURN_RECORDS`, so that
        fetching goes on and others have their turn. Raises what went wrong.
        """
        self.look()
        queue = self._buffer.next_queue()
        if not queue and self.fetch():
            queue = self._buffer.next_queue()
        return queue

    def queue(self, data: TopicPartition) -> deque[Record]:
        """Visible records of one partition; otherwise as `next_queue`."""
        self.look()
        return self.buffered(data)

    def buffered(self, data: TopicPartition) -> deque[Record]:
        """As `queue`, for whoever has just looked."""
        return self._buffer.queue(data)

    async def changed(self, timeout_s: float | None = None) -> None:
        """Returns when something may have changed since the last look, or after the time."""
        self.look()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        self._changed.clear()

    async def commit(self) -> None:
        """Commits, for each assigned partition, the position of what was taken.

        Raises:
            FencedError: the group has moved a partition to another member.
            UnavailableError: the cluster stayed away.
        """
        positions = {
            data: Offset(position)
            for data, position in self._buffer.positions().items()
            if self._committed.get(data) != position
        }
        await self.commit_cursors(positions)
        for data, position in positions.items():
            if data in self._assigned:
                self._committed[data] = EndOffset(position)

    async def commit_cursors(
        self,
        cursors: Mapping[TopicPartition, Offset],
        metadata: Mapping[TopicPartition, str] = NO_METADATA,
    ) -> None:
        """Commits these offsets, with metadata; raises as `commit`."""
        self.look()
        if not cursors:
            return
        reader, rebalance_count = self._reader, self.rebalance_count
        assert reader is not None, "commit belongs between start and close"

        async def attempt() -> None:
            if (
                rebalance_count != self.rebalance_count
            ):  # another member may have come further since
                raise FencedError("a rebalance came before the commit", hint="commit again")
            tell = self._elsewhere
            await reader.commit(cursors, tell.metadata(cursors, metadata) if tell else metadata)

        await self._outages.call(attempt)

    def withhold(self, partitions: Collection[TopicPartition]) -> None:
        """Fetches these no further, until called with others; what is buffered stays."""
        self._withheld = partitions
        self._apply_pauses()

    def wake(self) -> None:
        """Has whoever waits in `changed` look again."""
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """Ends the subscription; the error is raised from the application's next call."""
        if self._failure is None:
            self._failure = error
        self._changed.set()

    def position(self, data: TopicPartition) -> EndOffset | None:
        """Everything below it was taken or withheld for good; None: not assigned."""
        return self._buffer.position(data)

    def statistics(self) -> dict[TopicPartition, Statistics]:
        """Counts of each assigned partition since its assignment, as the taker sees them."""
        counts: dict[TopicPartition, Statistics] = {}
        for data, assigned in self._assigned.items():
            read = assigned.machine.statistics
            position = self._buffer.position(data)
            assert position is not None
            skipped, held = self._elsewhere.counts(data) if self._elsewhere else (0, 0)
            delivered = read.delivered - len(self._buffer.queue(data)) - skipped - held
            counts[data] = replace(read, delivered=delivered, skipped=skipped, position=position)
        return counts

    def blocked(self) -> dict[TopicPartition, Blocked]:
        """The partitions that stand at an undecided record."""
        now = asyncio.get_running_loop().time()
        evidence = self._evidence
        blocked: dict[TopicPartition, Blocked] = {}
        for data, assigned in self._assigned.items():
            if assigned.undecided is None or evidence is None:
                continue
            caught_up_at = evidence.caught_up_at(data)
            waited_s = 0.0
            if caught_up_at is not None:
                waited_s = now - max(assigned.undecided_since, caught_up_at)
            offset, txn = assigned.undecided
            blocked[data] = Blocked(data, offset, txn, waited_s)
        return blocked

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - raised from the application's next call
            self.fail(error)

    async def _read(self, reader: GroupReader) -> None:
        while True:
            if self._buffer.count >= _AHEAD_RECORDS:
                # A pause throws away what the client has fetched ahead: first a short while.
                self._room.clear()
                self._rests, self._fetches = True, 0
                with suppress(TimeoutError):
                    async with asyncio.timeout(_PATIENCE_S):
                        await self._room.wait()
                self._rests = False
            self._items_read(await self._outages.call(reader.read, may_rest=True))

    def fetch(self) -> bool:
        """Reads in place of the task that rests: two turns of the loop are saved.

        True: there may be more now. Raises as `next_queue`.
        """
        if not self._rests or self._fetches == _FETCHES_MAX or self._reader is None:
            return False
        self._fetches += 1
        try:
            self._items_read(self._reader.read_now())
        except RetriableError:
            return False  # the task meets it, too, and has the patience for it
        except Exception as error:
            self.fail(error)
            raise
        return True

    def _on_assigned(self, positions: Mapping[TopicPartition, Offset]) -> None:
        assert self._evidence is not None
        for data, position in positions.items():
            machine = PartitionFilter[Record](
                position=position, waiting_max=self._options.undecided_records_max
            )
            self._assigned[data] = _Assigned(machine)
            self._buffer.open(data, EndOffset(position))
            self._committed[data] = EndOffset(position)
        self._evidence.add(positions)
        self._rebalanced()
        if self._elsewhere is not None:
            assert self._reader is not None
            committed = {data: self._reader.committed(data) for data in positions}
            self._beside(partial(self._learn, self._elsewhere, self._elsewhere.open(committed)))
        if self.listener is not None:
            assert self._reader is not None
            self.listener.assigned(
                {
                    data: self._reader.committed(data) or Committed(position, "")
                    for data, position in positions.items()
                }
            )

    def _on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        assert self._evidence is not None
        for data in partitions:
            if self._assigned.pop(data, None) is None:
                continue
            self._buffer.drop(data)
            del self._committed[data]
            self._standing.discard(data)
            self._paused.discard(data)
            if self._elsewhere is not None:
                self._elsewhere.drop(data)
        self._evidence.remove(partitions)
        self._rebalanced()
        if self.listener is not None:
            self.listener.revoked(partitions)

    def _rebalanced(self) -> None:
        """Reads other evidence from now on; the old readers close on their own time."""
        assert self._evidence is not None
        self.rebalanced_at = asyncio.get_running_loop().time()
        self.rebalance_count += 1
        if self._tailing is not None:
            self._tailing.cancel()
            self._ending.add(self._tailing)
            self._tailing.add_done_callback(self._ending.discard)
        self._tailing = asyncio.create_task(self._guarded(self._evidence.run))
        self._changed.set()

    def _items_read(self, items: Sequence[Run | EndReached]) -> None:
        for item in items:
            data = item.data
            assigned = self._assigned.get(data)
            if assigned is None:
                continue
            if isinstance(item, EndReached):
                effects = assigned.machine.end_reached(item.end_offset)
            else:
                txns = txns_of_headers(item.headers)
                effects = assigned.machine.records_read(item.offsets, txns, item.records)
            self._run(data, assigned, effects)
        self._apply_pauses()

    def _machine_of(self, data: TopicPartition) -> PartitionFilter[Record] | None:
        assigned = self._assigned.get(data)
        return None if assigned is None else assigned.machine

    def _decided(self, data: TopicPartition, effects: list[Effect[Record]]) -> None:
        self._run(data, self._assigned[data], effects)

    def _evidence_read(self) -> None:
        self._apply_pauses()
        self._changed.set()

    def _run(
        self, data: TopicPartition, assigned: _Assigned, effects: list[Effect[Record]]
    ) -> None:
        for effect in effects:
            match effect:
                case Deliver():
                    passed = self._elsewhere.passed(data, effect) if self._elsewhere else effect
                    if passed is not None:
                        self._buffer.put(data, passed.payloads, passed.position)
                        self._changed.set()
                case PauseFetching():
                    self._standing.add(data)
                case ResumeFetching():
                    self._standing.discard(data)
                case Withheld():
                    _report(data, assigned, effect)
        undecided = assigned.machine.undecided
        if undecided != assigned.undecided:
            assigned.undecided = undecided
            assigned.undecided_since = asyncio.get_running_loop().time()
            self._changed.set()

    async def _learn(self, elsewhere: ElsewhereFilter, opened: Opened) -> None:
        """Hands on what waited to learn what the group has read elsewhere (I11)."""
        await self._outages.call(partial(elsewhere.learn, opened))
        for data in opened:
            for passed in elsewhere.release(data):
                self._buffer.put(data, passed.payloads, passed.position)
        self._apply_pauses()
        self._changed.set()

    def _beside(self, work: Callable[[], Awaitable[None]]) -> None:
        """Does it beside; `close` ends it."""
        task = asyncio.create_task(self._guarded(work))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def look(self) -> None:
        """Raises what went wrong, and fetches on when there is room."""
        if self._failure is not None:
            raise self._failure
        if not self._room.is_set() and self._buffer.count < _AHEAD_RECORDS:
            self._room.set()
        if self._full and self._buffer.count <= self._options.buffer_records_max // 2:
            self._full = False
            self._apply_pauses()

    def _apply_pauses(self) -> None:
        """Pauses what stands still, and everything while the buffer is full."""
        if self._reader is None:
            return
        if self._buffer.count >= self._options.buffer_records_max:
            self._full = True
        wanted = self._standing.union(self._assigned.keys() & set(self._withheld))
        if self._elsewhere is not None:
            wanted |= self._elsewhere.holding
        if self._full:
            wanted = set(self._assigned)
        if wanted == self._paused:
            return
        if pause := wanted - self._paused:
            self._reader.pause(pause)
        if resume := self._paused - wanted:
            self._reader.resume(resume)
        self._paused = wanted


def _report(data: TopicPartition, assigned: _Assigned, withheld: Withheld) -> None:
    """Logs the first record withheld from a partition for each reason; statistics count them."""
    if withheld.reason in assigned.reported:
        return
    assigned.reported.add(withheld.reason)
    _log.warning(
        "a record is withheld; more like it of this partition are counted, not logged",
        topic=data.topic,
        partition=data.partition,
        offset=withheld.offset,
        reason=withheld.reason.value,
        txn=str(withheld.txn) if withheld.txn else None,
    )
