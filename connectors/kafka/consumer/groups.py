"""A reader whose partitions come from a consumer group.

*Source*: connectors.ports, `GroupReader`; kafka.md 2.

*Invariants*: every assigned partition has a position before it is read; `revoked` reaches the loop
before anything of the next assignment; a commit is sent only for partitions held now, because the
broker itself accepts a member's commit for a partition of another.

Assignment is eager: a rebalance takes everything back first. The client's callbacks only note what
happened, and the thread acts on it after its poll: a callback may run in the middle of a
`consume`, whose messages would then belong partly to the old and partly to the new assignment.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from stilltide.connectors.commit_check import check_metadata
from stilltide.connectors.errors import ConnectorError, FencedError, RetriableError
from stilltide.connectors.kafka.admin.admin import log_bounds
from stilltide.connectors.kafka.config import KafkaConfig, group_options
from stilltide.connectors.kafka.consumer.consuming import ConsumerThread, Membership
from stilltide.connectors.kafka.consumer.inbox import Inbox, Item
from stilltide.connectors.kafka.consumer.messages import by_partition, run_of
from stilltide.connectors.kafka.consumer.reader_slot import Positions, ReaderSlot, client_names
from stilltide.connectors.kafka.errors import translate
from stilltide.connectors.ports.readers import NO_METADATA, Committed
from stilltide.connectors.ports.records import EndReached, Run
from stilltide.schemas.values import Offset, TopicPartition

Assigned = Callable[[Mapping[TopicPartition, Offset]], None]
Revoked = Callable[[Sequence[TopicPartition]], None]


class KafkaGroupReader:
    """A `GroupReader`. Belongs to the loop of its `subscribe`; subscribes once."""

    def __init__(
        self, config: KafkaConfig, client_id: str, group: str, *, from_start: bool
    ) -> None:
        self._config = config
        self._group = group
        self._from_start = from_start
        self._seat = ReaderSlot(Inbox(config.reader_records_max))
        self._thread = ConsumerThread(
            config,
            {**group_options(config, client_id, group), "on_commit": self._note_committed},
            self._seat,
            Membership(self._is_overtaken, self._act, self._rejoin),
        )
        self._topics: list[str] = []
        # The thread's view of the assignment.
        self._granted: list[TopicPartition] | None = None
        self._withdrawn = False
        self._given: tuple[TopicPartition, ...] = ()
        self._rebalances = 0
        # The loop's view of it.
        self._told = 0
        self._held: frozenset[TopicPartition] = frozenset()
        self._found: Mapping[TopicPartition, Committed] = {}
        self._assigned: Assigned
        self._revoked: Revoked
        self._closed = False
        self._committing: asyncio.Future[None] | None = None

    async def subscribe(
        self, topics: Sequence[str], *, assigned: Assigned, revoked: Revoked
    ) -> None:
        """Joins the group; see `GroupReader.subscribe`."""
        self._assigned, self._revoked = assigned, revoked
        self._topics = list(topics)
        await self._thread.submit(self._join)

    async def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Moves to other positions in partitions that the group has given.

        Raises:
            FencedError: the group has given one of them to another member.
        """
        self._check_held(positions)
        generation, wanted, told = self._seat.inbox.begin_anew(), dict(positions), self._told

        def move(consumer: Consumer) -> None:
            # A rebalance that the loop did not know of has the last word.
            if told == self._rebalances:
                self._thread.assign(consumer, self._seat, wanted, generation)

        await self._thread.submit(move)

    async def read(self) -> Sequence[Run | EndReached]:
        """The next records; see `GroupReader.read`."""
        return _runs(await self._thread.take(self._seat))

    def read_now(self) -> Sequence[Run | EndReached]:
        """What can be had without waiting; see `GroupReader.read_now`."""
        return _runs(self._thread.fetch(self._seat))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stops fetching; what was fetched already may still be returned."""
        self._thread.pause(self._seat, partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetches paused partitions again from where they stand."""
        self._thread.resume(self._seat, partitions)

    def committed(self, data: TopicPartition) -> Committed | None:
        """What was committed at the assignment; see `GroupReader.committed`."""
        return self._found.get(data)

    async def commit(
        self,
        positions: Mapping[TopicPartition, Offset],
        metadata: Mapping[TopicPartition, str] = NO_METADATA,
    ) -> None:
        """Commits offsets with metadata; see `GroupReader.commit`."""
        if self._closed:
            raise self._thread.closed_error()
        self._check_held(positions)
        check_metadata(metadata)
        if not positions:
            return
        told = self._told
        offsets = [
            ClientPartition(data.topic, data.partition, offset, metadata.get(data, ""))
            for data, offset in positions.items()
        ]
        try:
            async with asyncio.timeout(self._config.request_timeout_s):
                # The client's answers name no question, so there is one at a time.
                while self._committing is not None:
                    await asyncio.wait([self._committing])
                # Kept here, because the answer may overtake the news that the question was sent.
                sent = self._committing = asyncio.get_running_loop().create_future()
                try:
                    await self._thread.submit(lambda it: self._send_commit(it, offsets, told))
                except ConnectorError as error:
                    self._answer_commit(error)
                    raise
                # The question goes on without us after a time-out; its answer ends it.
                await asyncio.shield(sent)
        except TimeoutError:
            raise RetriableError(
                f"no answer to a commit of group {self._group} from {self._thread.address}",
                hint="check that the broker runs; commit again",
            ) from None

    async def close(self) -> None:
        """Leaves the group; a waiting `read` raises `FatalError`. Safe to call twice."""
        self._closed = True
        await self._thread.close()
        self._answer_commit(self._thread.closed_error())

    def _check_held(self, partitions: Iterable[TopicPartition]) -> None:
        for data in partitions:
            if data not in self._held:
                raise FencedError(
                    f"group {self._group} has not given {data} to this member",
                    hint="stop using the partition; another member has it, or will",
                )

    def _join(self, consumer: Consumer) -> None:
        consumer.subscribe(
            self._topics,
            on_assign=self._note_granted,
            on_revoke=self._note_withdrawn,
            on_lost=self._note_withdrawn,
        )
        self._thread.read_on()

    def _rejoin(self, consumer: Consumer) -> None:
        """Joins as another member; what the group has given to the one before is lost."""
        self._granted, self._withdrawn = None, True
        failure = RetriableError(f"group {self._group} was lost", hint="commit again")
        self._thread.post(self._answer_commit, failure)
        self._join(consumer)

    def _send_commit(self, consumer: Consumer, offsets: list[ClientPartition], told: int) -> None:
        """Commits on the thread, unless the offsets are of an assignment that has ended."""
        if told == self._rebalances:
            consumer.commit(offsets=offsets)
        else:
            failure = FencedError(f"group {self._group} has rebalanced", hint="commit again")
            self._thread.post(self._answer_commit, failure)

    def _note_committed(self, error: KafkaError | None, partitions: list[ClientPartition]) -> None:
        """The broker's answer, on the thread."""
        causes = [error, *(it.error for it in partitions)]
        cause = next((it for it in causes if it is not None), None)
        failure = None
        if cause is not None:
            action = f"cannot commit for group {self._group}"
            failure = translate(cause, self._thread.address, action)
        self._thread.post(self._answer_commit, failure)

    def _answer_commit(self, failure: ConnectorError | None) -> None:
        sent, self._committing = self._committing, None
        if sent is None or sent.done():
            return
        if failure is None:
            sent.set_result(None)
        else:
            sent.set_exception(failure)
            # After a time-out nobody waits for it.
            sent.exception()

    def _note_granted(self, consumer: Consumer, partitions: list[ClientPartition]) -> None:
        self._granted = [TopicPartition(it.topic, it.partition) for it in partitions]
        # Left to itself the client would assign them now, without positions.
        consumer.assign([])

    def _note_withdrawn(self, consumer: Consumer, _: list[ClientPartition]) -> None:
        self._granted = None
        self._withdrawn = True
        self._thread.unassign(consumer, self._seat)

    def _is_overtaken(self) -> bool:
        """Whether there was a rebalance that was not acted on."""
        return self._withdrawn or self._granted is not None

    def _act(self, consumer: Consumer) -> None:
        """Acts on a rebalance, on the thread."""
        if self._withdrawn:
            self._withdrawn = False
            self._rebalances += 1
            if self._given:
                self._thread.post(self._tell_revoked, self._rebalances, self._given)
            self._given = ()
        if self._granted is not None:
            self._take_up(consumer, self._granted)

    def _take_up(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Resolves positions and starts to read; on failure the next round tries again."""
        try:
            found, positions = self._resolve(consumer, partitions)
        except RetriableError as error:
            self._thread.post(self._seat.inbox.away, error)
            return
        self._granted = None
        self._given = tuple(positions)
        self._rebalances += 1
        self._thread.post(self._tell_assigned, self._rebalances, positions, found)
        self._thread.assign(consumer, self._seat, positions, self._seat.inbox.generation)

    def _resolve(
        self, consumer: Consumer, partitions: list[TopicPartition]
    ) -> tuple[dict[TopicPartition, Committed], Positions]:
        """What is committed, and positions: where there is nothing, the log start or end."""
        timeout_s, address = self._config.request_timeout_s, self._thread.address
        try:
            found = _committed(consumer, partitions, timeout_s)
            fresh = [it for it in partitions if it not in found]
            positions = {data: it.offset for data, it in found.items()}
            positions |= log_bounds(self._config, fresh, start=self._from_start)
        except KafkaException as error:
            action = f"cannot resolve the positions of group {self._group}"
            raise translate(error, address, action) from error
        return found, positions

    def _tell_revoked(self, told: int, partitions: Sequence[TopicPartition]) -> None:
        self._told = told
        self._held = frozenset()
        self._found = {}
        self._seat.inbox.clear()
        self._revoked(partitions)

    def _tell_assigned(
        self, told: int, positions: Positions, found: Mapping[TopicPartition, Committed]
    ) -> None:
        self._told = told
        self._held = frozenset(positions)
        self._found = found
        self._assigned(positions)


def _runs(items: Sequence[Item]) -> list[Run | EndReached]:
    return [it if isinstance(it, EndReached) else run_of(*it) for it in by_partition(items)]


def _committed(
    consumer: Consumer, partitions: list[TopicPartition], timeout_s: float
) -> dict[TopicPartition, Committed]:
    """What the group has committed, of partitions for which it has."""
    found: dict[TopicPartition, Committed] = {}
    for it in consumer.committed(client_names(partitions), timeout_s):
        if it.error is not None:
            raise KafkaException(it.error)
        if it.offset >= 0:
            data = TopicPartition(it.topic, it.partition)
            found[data] = Committed(Offset(it.offset), it.metadata or "")
    return found
