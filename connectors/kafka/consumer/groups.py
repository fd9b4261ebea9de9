"""A reader whose partitions come from a consumer group.

*Source*: connectors.ports, `GroupReader`; docs/internals/kafka-clients.md, Consumers.

*Invariants*: a commit is sent only for partitions held now, because the broker accepts a member's
commit for another member's partition. A closed reader calls neither `assigned` nor `revoked`.

Failures of topics that are gone are of one kind of error (D8). This module runs on the loop,
`GroupMember` on the consumer's thread. Each rebalance has a number, by which the thread knows
whether an order of the loop refers to the present assignment.

A group member's calls of its consumer: rebalances, positions and commits, on the thread.

*Source*: connectors.ports, `GroupReader`; docs/internals/kafka-clients.md, Consumers.

*Invariants*: every assigned partition has a position before it is read; `revoked` reaches the loop
before any message of the next assignment. For an assignment that has ended, the thread neither
commits nor moves positions, even before the loop knows of the end.

Assignment is eager: a rebalance first revokes all partitions. The client's callbacks only note what
happened, and the thread acts after its poll: a callback may run in the middle of a `consume`, whose
messages would then belong partly to the old and partly to the new assignment.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin._listoffsets import OffsetSpec

from stilltide.connectors.errors import ConnectorError, FatalError, FencedError, RetriableError
from stilltide.connectors.kafka.admin.admin import LOG_END, LOG_START, log_bounds
from stilltide.connectors.kafka.config import KafkaConfig, Options
from stilltide.connectors.kafka.consumer.assignments import Positions, ReaderSlot, client_names
from stilltide.connectors.kafka.consumer.consuming import ConsumerThread
from stilltide.connectors.kafka.consumer.inbox import (
    HeaderReading,
    HeadersOf,
    Inbox,
    Item,
    by_partition,
    run_of,
)
from stilltide.connectors.kafka.errors import on_group, on_topic, translate
from stilltide.connectors.names import check_topic_name
from stilltide.connectors.ports.connector import closing
from stilltide.connectors.ports.readers import (
    NO_METADATA,
    Committed,
    EndReached,
    Run,
    check_metadata,
)
from stilltide.schemas.rights import Operation
from stilltide.schemas.values import Offset, TopicPartition

_QUESTION_S, _QUESTION_S_MAX = 5.0, 300.0
"""The first time after which topics are asked for, which doubles, and that of the client's own
question, after which nothing is left to do."""


class _Topics:
    """The topics of a member, and a question for them beside the client's own.

    The client joins once it has been told of its topics. If the answers to its few questions are
    lost, as those of a broker that is frozen, the client asks again only minutes later.
    """

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self._after_s = _QUESTION_S
        self._due_s = time.monotonic() + self._after_s

    def ask(self, consumer: Consumer) -> None:
        """Asks when it is time: for all topics, since only that answer counts for the group."""
        now_s = time.monotonic()
        if self._after_s >= _QUESTION_S_MAX or now_s < self._due_s:
            return
        self._after_s *= 2
        self._due_s = now_s + self._after_s
        with suppress(KafkaException):  # the next one may be answered
            consumer.list_topics(timeout=_QUESTION_S)


class MemberCalls(NamedTuple):
    """Calls of the reader that the member posts to the loop.

    Attributes:
        assigned: takes the number of the rebalance, positions, and the group's commits.
        revoked: takes the number of the rebalance, and the revoked partitions.
        commit_answered: takes the error of the commit under way, or None.
    """

    assigned: Callable[[int, Positions, Mapping[TopicPartition, Committed]], None]
    revoked: Callable[[int, Sequence[TopicPartition]], None]
    commit_answered: Callable[[ConnectorError | None], None]


class GroupMember:
    """A `Membership`; all methods run on the consumer's thread.

    Args:
        config: the cluster.
        options: options of the consumer.
        group: name of the group.
        from_start: whether a partition without a committed offset is read from the log start, or
            from the log end.
        since_ms: time from which such a partition is read, instead of `from_start`.
        slot: slot of the reader.
        calls: calls of the reader.

    Attributes:
        thread: thread of the consumer.
        member_id: Kafka's id of this member as of the last assignment; "" before the first.
    """

    def __init__(
        self,
        config: KafkaConfig,
        options: Options,
        group: str,
        *,
        from_start: bool,
        since_ms: int | None,
        slot: ReaderSlot,
        calls: MemberCalls,
    ) -> None:
        self._config = config
        self._group = group
        self._from_start = from_start
        self._since_ms = since_ms
        self._slot = slot
        self._calls = calls
        self.thread = ConsumerThread(
            config,
            {**options, "on_commit": self._note_committed},
            slot,
            self,
        )
        self.member_id = ""
        self._topics = _Topics([])
        self._first_topics: set[str] = set()  # those of `join` that were never left since
        self._first_counts: dict[str, int] = {}  # of partitions, at the first assignment
        self._granted: list[TopicPartition] | None = None
        self._withdrawn = False
        self._given: tuple[TopicPartition, ...] = ()
        self._rebalances = 0

    def join(self, consumer: Consumer, topics: list[str]) -> None:
        """Joins the group."""
        self._first_topics = set(topics)
        self._subscribe(consumer, topics)

    def change_topics(self, consumer: Consumer, topics: list[str], generation: int) -> None:
        """Joins again for other topics, or leaves the group while there are none."""
        self.thread.assignments.unassign(consumer, self._slot)
        self._slot.take_up({}, generation)
        for name in set(self._topics.names) - set(topics):
            self._first_topics.discard(name)
            self._first_counts.pop(name, None)
        if topics:
            self._subscribe(consumer, topics)
        else:
            self._topics = _Topics(topics)
            consumer.unsubscribe()

    def rejoin(self, consumer: Consumer) -> None:
        """Joins as another member; the assignment of the old member is lost."""
        self._granted, self._withdrawn = None, True
        failure = RetriableError(f"group {self._group} was lost", hint="commit again")
        self.thread.post(self._calls.commit_answered, failure)
        if self._topics.names:
            self._subscribe(consumer, self._topics.names)

    def move(
        self, consumer: Consumer, positions: Positions, generation: int, rebalance: int
    ) -> None:
        """Reads from other positions, unless a rebalance came that the loop does not know of."""
        if rebalance == self._rebalances:
            self.thread.assignments.assign(consumer, self._slot, positions, generation)

    def commit(self, consumer: Consumer, offsets: list[ClientPartition], rebalance: int) -> None:
        """Commits, unless the offsets belong to an assignment that has ended."""
        if rebalance == self._rebalances:
            consumer.commit(offsets=offsets)
        else:
            failure = FencedError(f"group {self._group} has rebalanced", hint="commit again")
            self.thread.post(self._calls.commit_answered, failure)

    def reads_topic(self, name: str) -> bool:
        """Whether the member has subscribed to a topic; an error of another one is of the past."""
        return name in self._topics.names

    def is_overtaken(self) -> bool:
        """Whether a rebalance waits to be carried out."""
        return self._withdrawn or self._granted is not None

    def rebalance(self, consumer: Consumer) -> None:
        """Carries out a rebalance."""
        if self._withdrawn:
            self._withdrawn = False
            self._rebalances += 1
            if self._given:
                self.thread.post(self._calls.revoked, self._rebalances, self._given)
            self._given = ()
            self._topics = _Topics(self._topics.names)
        if self._granted is not None:
            self._take_up(consumer, self._granted)

    def look(self, consumer: Consumer) -> None:
        """Has the client ask for the topics, while the member has had no partitions for a while."""
        if self._topics.names and not self._given:
            self._topics.ask(consumer)

    def _take_up(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Resolves positions and begins to read; after a failure the next round tries again."""
        try:
            commits, positions = self._resolve(consumer, partitions)
        except RetriableError as error:
            self.thread.post(self._slot.inbox.away, error)
            return
        self._granted = None
        self.member_id = consumer.memberid() or ""
        self._given = tuple(positions)
        self._rebalances += 1
        self.thread.post(self._calls.assigned, self._rebalances, positions, commits)
        generation = self._slot.inbox.generation
        self.thread.assignments.assign(consumer, self._slot, positions, generation)

    def _resolve(
        self, consumer: Consumer, partitions: list[TopicPartition]
    ) -> tuple[dict[TopicPartition, Committed], Positions]:
        """The group's commits, and positions: without a commit, the log start or the log end."""
        address = self.thread.address
        try:
            commits = _committed(self._config, consumer, self._group, partitions)
            fresh = {partition for partition in partitions if partition not in commits}
            positions = {data: it.offset for data, it in commits.items()}
            at_start = self._from_start and self._since_ms is None
            elsewhere = set() if at_start else fresh - self._added(consumer, fresh)
            positions |= log_bounds(self._config, sorted(fresh - elsewhere), LOG_START)
            spec = LOG_END if self._since_ms is None else OffsetSpec.for_timestamp(self._since_ms)
            positions |= log_bounds(self._config, sorted(elsewhere), spec)
        except KafkaException as error:
            action = f"cannot resolve the positions of group {self._group}"
            asked = on_group(Operation.READ, self._group)
            named = [on_topic(Operation.DESCRIBE, name) for name in self._topics.names]
            raise translate(error, address, action, asked, *named) from error
        return commits, positions

    def _added(
        self, consumer: Consumer, fresh: Collection[TopicPartition]
    ) -> AbstractSet[TopicPartition]:
        """Those of the partitions without a commit that their topic has gained (C13).

        Nobody may have read an added partition from its start, so the log end would skip records.

        Raises:
            RetriableError: a broker that does not know a partition yet was asked; its count of
                partitions would make all others added ones.
        """
        metadata = consumer.list_topics(timeout=self._config.request_timeout_s).topics
        counts = {it: len(metadata[it].partitions) for it in self._topics.names if it in metadata}
        hidden = min((it for it in fresh if it.partition >= counts.get(it.topic, 0)), default=None)
        if hidden is not None:
            raise RetriableError(
                f"{self.thread.address} does not show {hidden} yet, which group {self._group} gave",
                hint="check that the brokers run and the topic exists; then try again",
            )
        first = {it: count for it, count in counts.items() if it in self._first_topics}
        self._first_counts = {**first, **self._first_counts}
        topics = {data.topic for data in fresh}
        everywhere = [TopicPartition(it, n) for it in topics for n in range(counts.get(it, 0))]
        committed = _committed(self._config, consumer, self._group, everywhere)
        begun = {data.topic for data in committed}
        return {
            data
            for data in fresh
            if data.topic in begun or data.partition >= self._first_counts.get(data.topic, 0)
        }

    def _subscribe(self, consumer: Consumer, topics: list[str]) -> None:
        self._topics = _Topics(topics)
        consumer.subscribe(
            topics,
            on_assign=self._note_granted,
            on_revoke=self._note_withdrawn,
            on_lost=self._note_withdrawn,
        )
        self.thread.assignments.reading = True  # assignments come from polls

    def _note_granted(self, consumer: Consumer, partitions: list[ClientPartition]) -> None:
        self._granted = [TopicPartition(it.topic, it.partition) for it in partitions]
        # Without this call the client would assign the partitions now, without positions.
        consumer.assign([])

    def _note_withdrawn(self, consumer: Consumer, _: list[ClientPartition]) -> None:
        self._granted = None
        self._withdrawn = True
        self.thread.assignments.unassign(consumer, self._slot)

    def _note_committed(self, error: KafkaError | None, partitions: list[ClientPartition]) -> None:
        """Passes on the broker's answer to a commit."""
        refused = next((partition for partition in partitions if partition.error is not None), None)
        cause = error if error is not None or refused is None else refused.error
        failure = None
        if cause is not None:
            action = f"cannot commit for group {self._group}"
            asked = [on_group(Operation.READ, self._group)]
            if refused is not None:
                asked.append(on_topic(Operation.READ, refused.topic))
            failure = translate(cause, self.thread.address, action, *asked)
        self.thread.post(self._calls.commit_answered, failure)


def _committed(
    config: KafkaConfig,
    consumer: Consumer,
    group: str,
    partitions: list[TopicPartition],
) -> dict[TopicPartition, Committed]:
    """The group's commits, without partitions that have none.

    The client reads metadata to the next NUL, whatever its length, and only librdkafka and
    `KafkaGroupAdmin` commit one. So commits with metadata are read again as bytes, where
    kafka-python is installed and the options are not known to librdkafka alone.

    Raises:
        FatalError: metadata is not UTF-8, and cannot be read as bytes.
    """
    commits: dict[TopicPartition, Committed] = {}
    failure: UnicodeDecodeError | None = None
    try:
        for place in consumer.committed(client_names(partitions), config.request_timeout_s):
            if place.error is not None:
                raise KafkaException(place.error)
            if place.offset >= 0:
                data = TopicPartition(place.topic, place.partition)
                commits[data] = Committed(Offset(place.offset), place.metadata or "")
    except UnicodeDecodeError as error:
        failure = error
    if failure is None and not any(it.metadata for it in commits.values()):
        return commits
    try:
        return asyncio.run(_committed_bytes(config, group, partitions))
    except (ModuleNotFoundError, FatalError) as error:
        if failure is None:
            return commits
        raise FatalError(
            f"the commits of group {group} have metadata that is not UTF-8",
            detail="another client has written it",
            hint="pip install 'stilltide[cli]', which reads it, or reset the group",
        ) from error


async def _committed_bytes(
    config: KafkaConfig, group: str, partitions: list[TopicPartition]
) -> dict[TopicPartition, Committed]:
    """The group's commits as bytes; raises `ModuleNotFoundError` without kafka-python."""
    from stilltide.connectors.kafka.admin.groups import (  # noqa: PLC0415 - applications have no kafka-python
        KafkaGroupAdmin,
    )
    from stilltide.connectors.kafka.raw.line import SharedLine  # noqa: PLC0415 - as above

    async with closing(KafkaGroupAdmin(SharedLine(config, "stilltide-groups"))) as admin:
        return (await admin.committed([group], partitions))[group]


Assigned = Callable[[Mapping[TopicPartition, Offset]], None]
Revoked = Callable[[Sequence[TopicPartition]], None]


class KafkaGroupReader:
    """A `GroupReader`. Subscribes once; to be used on the event loop of `subscribe` only."""

    _assigned: Assigned
    _revoked: Revoked

    def __init__(
        self,
        config: KafkaConfig,
        options: Options,
        group: str,
        *,
        from_start: bool,
        since_ms: int | None,
    ) -> None:
        self._group = group
        self._request_timeout_s = config.request_timeout_s
        self._slot = ReaderSlot(Inbox(config.reader_records_max))
        self._member = GroupMember(
            config,
            options,
            group,
            from_start=from_start,
            since_ms=since_ms,
            slot=self._slot,
            calls=MemberCalls(self._note_assigned, self._note_revoked, self._answer_commit),
        )
        self._thread = self._member.thread
        self._headers = HeaderReading(config, str(options["client.id"]), self._slot.inbox)
        self._rebalance = 0  # number of the last rebalance that the loop knows of
        self._held: frozenset[TopicPartition] = frozenset()
        self._commits: Mapping[TopicPartition, Committed] = {}
        self._closed = False
        self._committing: asyncio.Future[None] | None = None

    async def subscribe(
        self, topics: Sequence[str], *, assigned: Assigned, revoked: Revoked
    ) -> None:
        """Joins the group; see `GroupReader.subscribe`."""
        for name in topics:
            check_topic_name(name)
        self._assigned, self._revoked = assigned, revoked
        await self._thread.submit(lambda consumer: self._member.join(consumer, list(topics)))

    async def change_topics(self, topics: Sequence[str]) -> None:
        """Subscribes to other topics; see `GroupReader.change_topics`."""
        for name in topics:
            check_topic_name(name)
        generation = self._slot.inbox.next_generation()
        await self._thread.submit(
            lambda consumer: self._member.change_topics(consumer, list(topics), generation)
        )

    async def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Moves to other positions in partitions that are assigned to this member.

        Raises:
            FencedError: a partition is not assigned to this member any more.
        """
        self._check_held(positions)
        generation, wanted = self._slot.inbox.next_generation(), dict(positions)
        rebalance = self._rebalance
        await self._thread.submit(lambda it: self._member.move(it, wanted, generation, rebalance))

    async def read(self) -> Sequence[Run | EndReached]:
        """The next records; see `GroupReader.read`."""
        while True:
            runs = self._headers.converted(await self._thread.take(self._slot), _runs)
            if runs is not None:
                return runs
            await self._headers.recover()

    def read_now(self) -> Sequence[Run | EndReached]:
        """Records that can be read without waiting; see `GroupReader.read_now`."""
        # What has to be fetched again is left to `read`.
        return self._headers.converted(self._thread.fetch(self._slot), _runs) or []

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Pauses partitions; records that were fetched already may still be returned."""
        self._thread.pause(self._slot, partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetches paused partitions again from their positions."""
        self._thread.resume(self._slot, partitions)

    @property
    def member_id(self) -> str:
        """Kafka's id of this member; see `GroupReader.member_id`."""
        return self._member.member_id

    def committed(self, data: TopicPartition) -> Committed | None:
        """The group's commit as of the assignment; see `GroupReader.committed`."""
        return self._commits.get(data)

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
        rebalance = self._rebalance
        offsets = [
            ClientPartition(data.topic, data.partition, offset, metadata.get(data, ""))
            for data, offset in positions.items()
        ]
        try:
            async with asyncio.timeout(self._request_timeout_s):
                # The client's answers do not name their commit, so one commit at a time is sent.
                while self._committing is not None:
                    await asyncio.wait([self._committing])
                # Set before the order: the broker's answer may arrive before the order is done.
                sent = self._committing = asyncio.get_running_loop().create_future()
                try:
                    await self._thread.submit(
                        lambda consumer: self._member.commit(consumer, offsets, rebalance)
                    )
                except ConnectorError as error:
                    self._answer_commit(error)
                    raise
                # After a time-out the commit stays under way until its answer arrives.
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

    def _answer_commit(self, failure: ConnectorError | None) -> None:
        sent, self._committing = self._committing, None
        if sent is None or sent.done():
            return
        if failure is None:
            sent.set_result(None)
        else:
            sent.set_exception(failure)
            # After a time-out no caller waits for the error; this marks it as seen.
            sent.exception()

    def _note_revoked(self, rebalance: int, partitions: Sequence[TopicPartition]) -> None:
        if self._closed:
            return  # the call was posted before the reader was closed
        self._rebalance = rebalance
        self._held = frozenset()
        self._commits = {}
        self._slot.inbox.clear()
        self._revoked(partitions)

    def _note_assigned(
        self, rebalance: int, positions: Positions, commits: Mapping[TopicPartition, Committed]
    ) -> None:
        if self._closed:
            return
        self._rebalance = rebalance
        self._held = frozenset(positions)
        self._commits = commits
        self._assigned(positions)


def _runs(items: Sequence[Item], headers_of: HeadersOf) -> list[Run | EndReached]:
    return [
        part if isinstance(part, EndReached) else run_of(*part, headers_of)
        for part in by_partition(items)
    ]
