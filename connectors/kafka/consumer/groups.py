"""A reader whose partitions come from a consumer group.

*Source*: connectors.ports, `GroupReader`; docs/internals/kafka-clients.md, Consumers.

*Invariants*: a commit is sent only for partitions held now, because the broker accepts a member's
commit for another member's partition. A closed reader calls neither `assigned` nor `revoked`.

This module runs on the loop, `GroupMember` on the consumer's thread. Each rebalance has a number,
by which the thread knows whether an order of the loop refers to the present assignment.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from confluent_kafka import TopicPartition as ClientPartition

from stilltide.connectors.commit_check import check_metadata
from stilltide.connectors.errors import ConnectorError, FencedError, RetriableError
from stilltide.connectors.kafka.config import KafkaConfig, Options
from stilltide.connectors.kafka.consumer.assignments import Positions, ReaderSlot
from stilltide.connectors.kafka.consumer.group_member import GroupMember, MemberCalls
from stilltide.connectors.kafka.consumer.inbox import Inbox, Item
from stilltide.connectors.kafka.consumer.messages import by_partition, run_of
from stilltide.connectors.kafka.headers.reading import HeaderReading, HeadersOf
from stilltide.connectors.names import check_topic_name
from stilltide.connectors.ports.readers import NO_METADATA, Committed
from stilltide.connectors.ports.records import EndReached, Run
from stilltide.schemas.values import Offset, TopicPartition

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
        self._found: Mapping[TopicPartition, Committed] = {}
        self._closed = False
        self._committing: asyncio.Future[None] | None = None

    async def subscribe(
        self, topics: Sequence[str], *, assigned: Assigned, revoked: Revoked
    ) -> None:
        """Joins the group; see `GroupReader.subscribe`."""
        for name in topics:
            check_topic_name(name)
        self._assigned, self._revoked = assigned, revoked
        await self._thread.submit(lambda it: self._member.join(it, list(topics)))

    async def change_topics(self, topics: Sequence[str]) -> None:
        """Subscribes to other topics; see `GroupReader.change_topics`."""
        for name in topics:
            check_topic_name(name)
        generation = self._slot.inbox.next_generation()
        await self._thread.submit(
            lambda it: self._member.change_topics(it, list(topics), generation)
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
                        lambda it: self._member.commit(it, offsets, rebalance)
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
        self._found = {}
        self._slot.inbox.clear()
        self._revoked(partitions)

    def _note_assigned(
        self, rebalance: int, positions: Positions, found: Mapping[TopicPartition, Committed]
    ) -> None:
        if self._closed:
            return
        self._rebalance = rebalance
        self._held = frozenset(positions)
        self._found = found
        self._assigned(positions)


def _runs(items: Sequence[Item], headers_of: HeadersOf) -> list[Run | EndReached]:
    return [
        it if isinstance(it, EndReached) else run_of(*it, headers_of) for it in by_partition(items)
    ]
