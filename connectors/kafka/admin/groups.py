"""Consumer groups of one cluster, seen from outside, over kafka-python's connections and messages.

*Source*: connectors.ports; docs/protocols I7, I12, I14 (`remove_members`). A commit for a group
with members gets UNKNOWN_MEMBER_ID for each partition; brokers check neither bounds nor direction.
confluent-kafka asks for one group at a time, and crashes the process when a coordinator answers
with an error.

*Invariants*: every call ends within the request time-out, by an answer or by an error that names
the address. Offsets and members of groups are decoded only if they differ from the last answer to
the same question (I16). Needs brokers of Kafka 3.0 or later.

Descriptions of topics, decoded only if they differ from the last ones.

*Source*: version 10 of Kafka's Metadata, of brokers since 2.8; docs/protocols I16. librdkafka's
admin client makes an object for each partition and replica: 13 ms for a topic of 1000 partitions,
though a look at groups only has to know that the topic is still the same.

Starts and ends of logs, in the same way.

*Source*: version 6 of Kafka's ListOffsets, of brokers since 2.8; docs/protocols I16. The client of
`LogAdmin` makes an object and a future for each partition: 30 us, and a look asks twice for each.
*Invariant*: every question goes to the leader that the metadata names, with that leader's epoch.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import kafka.errors as kafka_errors
from kafka.protocol.admin import ListGroupsRequest
from kafka.protocol.consumer import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetSpec,
)
from kafka.protocol.metadata import MetadataResponse
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest

from stilltide.connectors.errors import ActiveGroupError
from stilltide.connectors.kafka.admin.group_members import MembersQuestion, remove_members
from stilltide.connectors.kafka.errors import on_group, on_topic
from stilltide.connectors.kafka.raw.group_offsets import (
    VERSION,
    Commits,
    OffsetsAnswers,
    RepeatedQuestion,
    RepeatedRequest,
)
from stilltide.connectors.kafka.raw.line import Line, RawClient, SharedLine, check, metadata_request
from stilltide.connectors.ports.admin import TopicDescription
from stilltide.connectors.ports.connector import GroupDescription, MemberDescription
from stilltide.connectors.ports.readers import Committed, check_metadata
from stilltide.schemas.rights import Operation
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

_VERSION = 10
_LIST_VERSION = 6
_ABSENT = kafka_errors.UnknownTopicOrPartitionError.errno


def topics_question(names: Sequence[str]) -> RepeatedQuestion[dict[str, TopicDescription]]:
    """A question for the topics that exist among these."""
    request = metadata_request(
        names,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
        min_version=_VERSION,
        max_version=_VERSION,
    )
    response: Any = MetadataResponse[_VERSION]
    return RepeatedQuestion(request, lambda data: _topics(response.decode(data)))


def _topics(response: Any) -> dict[str, TopicDescription]:
    topics: dict[str, TopicDescription] = {}
    for topic in response.topics:
        if topic.error_code == _ABSENT:
            continue
        check(topic.error_code, on_topic(Operation.DESCRIBE, topic.name))
        replicas = (len(partition.replica_nodes) for partition in topic.partitions)
        count = len(topic.partitions)
        topics[topic.name] = TopicDescription(
            topic.name, topic.topic_id.bytes, count, min(replicas, default=0)
        )
    return topics


_Led = tuple[TopicPartition, int]
"""A partition, and the epoch of its leader."""


def log_offsets_question(
    led: Iterable[_Led], spec: int
) -> RepeatedQuestion[dict[TopicPartition, int]]:
    """A question for the starts or the ends of logs, of those that exist.

    Args:
        led: partitions with one leader.
        spec: which of both: an `OffsetSpec`.
    """
    topic = ListOffsetsRequest.ListOffsetsTopic
    by_topic: defaultdict[str, list[Any]] = defaultdict(list)
    for (name, number), epoch in led:
        partition = topic.ListOffsetsPartition(
            partition_index=number, current_leader_epoch=epoch, timestamp=spec
        )
        by_topic[name].append(partition)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=0,
        topics=[topic(name=name, partitions=asked) for name, asked in by_topic.items()],
        min_version=_LIST_VERSION,
        max_version=_LIST_VERSION,
    )
    response: Any = ListOffsetsResponse[_LIST_VERSION]
    return RepeatedQuestion(request, lambda data: _log_offsets(response.decode(data)))


def _log_offsets(response: Any) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    for topic in response.topics:
        for partition in topic.partitions:
            if partition.error_code == _ABSENT:
                continue
            check(partition.error_code, on_topic(Operation.DESCRIBE, topic.name))
            if partition.offset < 0:
                raise kafka_errors.OffsetNotAvailableError  # pyright: ignore[reportAttributeAccessIssue] - it is there
            offsets[TopicPartition(topic.name, partition.partition_index)] = partition.offset
    return offsets


T = TypeVar("T")

_OF_CONSUMERS = ("consumer", "")
"""Protocol types of consumers' groups; a group without members that only commits has none."""

_ACTIVE = (
    kafka_errors.UnknownMemberIdError,
    kafka_errors.IllegalGenerationError,
    kafka_errors.RebalanceInProgressError,
    kafka_errors.StaleMemberEpochError,
    kafka_errors.NonEmptyGroupError,
)
"""A broker's errors for a commit that only a member of the group may make."""

_GONE: Any = kafka_errors.UnknownBrokerIdError  # pyright: ignore[reportAttributeAccessIssue] - a stub of version 2
"""The metadata does not name the broker any more."""


_QUESTIONS_MAX = 8
"""Questions of a kind whose last answers are kept: an ownership repeats two or three."""

_LARGE = 128
"""Offsets in an answer from which a question for them is of another kind: the small questions of
moves, which are not asked again, displace no large one."""


class _CommitsQuestion:
    """A question for commits of groups, and what is known of its last answer, part by part.

    Args:
        names: groups with one coordinator.
        partitions: the partitions; None: all on which a group has committed.
    """

    def __init__(self, names: Sequence[str], partitions: Collection[TopicPartition] | None) -> None:
        self._request = RepeatedRequest(_fetch(names, partitions))
        self._answers = OffsetsAnswers()

    async def ask(self, line: Line, node: int) -> Commits:
        """The commits; the same object as long as nothing changes."""
        return self._answers.read((await line.send(self._request, node)).data)


class KafkaGroupAdmin:
    """A `GroupAdmin`. Connects at its first call, and may be used on that call's loop only."""

    def __init__(self, shared: SharedLine) -> None:
        """Makes an admin that is not connected; `shared` is the line for its requests."""
        self._client = RawClient(shared, "an admin of groups")
        self._nodes: dict[str, int] = {}  # coordinator of each group; used on the client's thread
        # Questions by last use, each kind for itself; used on that thread.
        self._small: dict[object, _CommitsQuestion] = {}
        self._large: dict[object, _CommitsQuestion] = {}
        self._members: dict[object, MembersQuestion] = {}
        self._topics: dict[object, RepeatedQuestion[dict[str, TopicDescription]]] = {}
        self._logs: dict[object, RepeatedQuestion[dict[TopicPartition, int]]] = {}

    async def committed(
        self, groups: Collection[str], partitions: Collection[TopicPartition]
    ) -> dict[str, dict[TopicPartition, Committed]]:
        """The offsets that groups have committed; see `GroupAdmin.committed`."""
        if not groups or not partitions:
            return {group: {} for group in groups}

        async def ask(line: Line) -> Commits:
            commits: Commits = {}
            for node, names in (await self._coordinators(line, groups)).items():
                commits |= await self._question(node, names, partitions).ask(line, node)
            return commits

        return await self._ask(ask, "cannot read the offsets of groups")

    def _question(
        self, node: int, names: Sequence[str], partitions: Collection[TopicPartition]
    ) -> _CommitsQuestion:
        kept = self._small if len(names) * len(partitions) < _LARGE else self._large
        key = node, tuple(names), frozenset(partitions)
        return _kept(kept, key, lambda: _CommitsQuestion(names, partitions))

    async def topics(self, names: Collection[str]) -> dict[str, TopicDescription]:
        """The topics that exist; see `GroupAdmin.topics`."""
        if not names:
            return {}

        async def ask(line: Line) -> dict[str, TopicDescription]:
            node = line.any_node()
            key = node, frozenset(names)
            question = _kept(self._topics, key, lambda: topics_question(sorted(names)))
            return dict(await question.ask(line, node))

        return await self._ask(ask, "cannot describe topics")

    async def log_starts(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        """Log start offsets; see `GroupAdmin.log_starts`."""
        offsets = await self._log_offsets(partitions, OffsetSpec.EARLIEST)
        return {data: Offset(offset) for data, offset in offsets.items()}

    async def log_ends(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, EndOffset]:
        """High watermarks; see `GroupAdmin.log_ends`."""
        offsets = await self._log_offsets(partitions, OffsetSpec.LATEST)
        return {data: EndOffset(offset) for data, offset in offsets.items()}

    async def _log_offsets(
        self, partitions: Collection[TopicPartition], spec: int
    ) -> dict[TopicPartition, int]:
        if not partitions:
            return {}

        async def ask(line: Line) -> dict[TopicPartition, int]:
            offsets: dict[TopicPartition, int] = {}
            for node, led in (await _leaders(line, partitions)).items():
                key = node, spec, frozenset(led)
                make = partial(log_offsets_question, sorted(led), spec)
                offsets |= await _kept(self._logs, key, make).ask(line, node)
            return offsets

        return await self._ask(ask, "cannot read the offsets of logs")

    async def listed(self) -> set[str]:
        """The groups with members or commits; see `GroupAdmin.listed`."""

        async def ask(line: Line) -> set[str]:
            names: set[str] = set()
            for node in await line.nodes():
                response = await line.send(ListGroupsRequest(), node)
                check(response.error_code)
                of_consumers = (g for g in response.groups if g.protocol_type in _OF_CONSUMERS)
                names |= {group.group_id for group in of_consumers}
            return names

        return await self._ask(ask, "cannot list groups")

    async def commits_of(self, groups: Iterable[str]) -> dict[str, dict[TopicPartition, Committed]]:
        """Everything that groups have committed; see `GroupAdmin.commits_of`."""
        asked = set(groups)

        async def ask(line: Line) -> dict[str, dict[TopicPartition, Committed]]:
            commits: dict[str, dict[TopicPartition, Committed]] = {group: {} for group in asked}
            for node, names in (await self._coordinators(line, asked)).items():
                commits |= await _CommitsQuestion(names, None).ask(line, node)
            return commits

        return await self._ask(ask, "cannot read the offsets of groups") if asked else {}

    async def topics_of(self, groups: Iterable[str]) -> dict[str, set[str]]:
        """The topics of which groups have committed offsets; see `GroupAdmin.topics_of`."""
        commits = await self.commits_of(groups)
        return {group: {data.topic for data in offsets} for group, offsets in commits.items()}

    async def active(self, groups: Collection[str]) -> set[str]:
        """The groups that have members; see `GroupAdmin.active`."""
        if not groups:
            return set()

        async def ask(line: Line) -> set[str]:
            active: set[str] = set()
            for node, names in (await self._coordinators(line, groups)).items():
                key = node, tuple(names)
                question = _kept(self._members, key, partial(MembersQuestion, names))
                described = await question.ask(line, node)
                active |= {name for name, members in described.items() if members.active}
            return active

        return await self._ask(ask, "cannot describe groups")

    async def members(self, group: str) -> set[str]:
        """Kafka's ids of the group's members; see `GroupAdmin.members`."""
        return {member.member_id for member in await self.described_members(group)}

    async def described(self, groups: Collection[str]) -> dict[str, GroupDescription]:
        """State and members of groups; see `GroupAdmin.described`."""
        if not groups:
            return {}

        async def ask(line: Line) -> dict[str, GroupDescription]:
            known: dict[str, GroupDescription] = {}
            for node, names in (await self._coordinators(line, groups)).items():
                for name, group in (await MembersQuestion(names).ask(line, node)).items():
                    members = [*group.classic, *group.newer]
                    members.sort(key=lambda member: (member.host, member.member_id))
                    known[name] = GroupDescription(group.state, tuple(members))
            return known

        return await self._ask(ask, "cannot describe groups")

    async def described_members(self, group: str) -> list[MemberDescription]:
        """The group's members; see `GroupAdmin.described_members`."""
        return list((await self.described([group]))[group].members)

    async def remove_members(self, group: str) -> None:
        """Removes all members from a group; see `GroupAdmin.remove_members`."""

        async def ask(line: Line) -> None:
            (node,) = await self._coordinators(line, [group])
            await remove_members(line, node, group)

        await self._ask(ask, f"cannot remove the members of group {group}")

    async def move(self, group: str, positions: Mapping[TopicPartition, Committed]) -> None:
        """Commits for a group without members; see `GroupAdmin.move`."""
        check_metadata({data: position.metadata for data, position in positions.items()})
        if not positions:
            return

        async def ask(line: Line) -> None:
            (node,) = await self._coordinators(line, [group])
            response = await line.send(_commit(group, positions), node)
            for topic in response.topics:
                asked = on_group(Operation.READ, group), on_topic(Operation.READ, topic.name)
                for partition in topic.partitions:
                    check(partition.error_code, *asked)

        await self._ask(ask, f"cannot move group {group}")

    async def close(self) -> None:
        """Ends the connections; safe to call twice."""
        await self._client.close()

    async def _ask(self, ask: Callable[[Line], Awaitable[T]], action: str) -> T:
        """Runs `ask`, again while a coordinator is not available or has moved."""

        async def attempt(line: Line) -> T:
            try:
                return await ask(line)
            except _ACTIVE as error:
                self._nodes.clear()
                raise ActiveGroupError(
                    f"{action} at {self._client.address}: the group has members",
                    detail=str(error),
                    hint="stop the group's consumers there, then try again",
                ) from error
            except _GONE as error:
                self._nodes.clear()
                raise kafka_errors.NotCoordinatorError from error
            except kafka_errors.KafkaError:
                self._nodes.clear()
                raise

        return await self._client.ask(attempt, action)

    async def _coordinators(self, line: Line, groups: Iterable[str]) -> dict[int, list[str]]:
        """Groups by the broker that coordinates them; requested again after each error."""
        names = sorted(set(groups))
        nodes = {name: self._nodes[name] for name in names if name in self._nodes}
        unknown = [name for name in names if name not in nodes]
        if unknown:
            request = FindCoordinatorRequest(key_type=0, coordinator_keys=unknown, min_version=4)
            for answer in (await line.send(request)).coordinators:
                check(answer.error_code, on_group(Operation.DESCRIBE, answer.key))
                nodes[answer.key] = answer.node_id
            self._nodes |= nodes
        by_node: defaultdict[int, list[str]] = defaultdict(list)
        for name in names:
            by_node[nodes[name]].append(name)
        return by_node


async def _leaders(line: Line, partitions: Iterable[TopicPartition]) -> dict[int, list[_Led]]:
    """The partitions that exist, by the broker that leads them."""
    by_node: defaultdict[int, list[_Led]] = defaultdict(list)
    for data in partitions:
        try:
            node, epoch = await line.leader(data)
        except kafka_errors.UnknownTopicOrPartitionError:
            continue
        by_node[node].append((data, epoch))
    return by_node


def _kept(questions: dict[object, T], key: object, make: Callable[[], T]) -> T:
    """The question, as the last that was used; forgets the one used longest ago."""
    question = questions.pop(key, None) or make()
    questions[key] = question
    if len(questions) > _QUESTIONS_MAX:
        del questions[next(iter(questions))]
    return question


def _fetch(groups: Sequence[str], partitions: Iterable[TopicPartition] | None) -> Any:
    """Asks for the offsets of groups on these partitions; None: on all that they have committed."""
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    topics = None
    if partitions is not None:
        topics = [
            group.OffsetFetchRequestTopics(name=name, partition_indexes=numbers)
            for name, numbers in _by_topic(partitions).items()
        ]
    asked = [group(group_id=name, topics=topics) for name in groups]
    return OffsetFetchRequest(groups=asked, min_version=VERSION, max_version=VERSION)


def _commit(group: str, positions: Mapping[TopicPartition, Committed]) -> Any:
    """A commit whose metadata ends with a NUL, as librdkafka's does: its clients read to a NUL."""
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    partition = topic.OffsetCommitRequestPartition
    topics = [
        topic(
            name=name,
            partitions=[
                partition(
                    partition_index=number,
                    committed_offset=positions[TopicPartition(name, number)].offset,
                    committed_leader_epoch=-1,
                    committed_metadata=_ended(positions[TopicPartition(name, number)].metadata),
                )
                for number in numbers
            ],
        )
        for name, numbers in _by_topic(positions).items()
    ]
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        retention_time_ms=-1,
        topics=topics,
        max_version=8,
    )


def _ended(metadata: str) -> str:
    return metadata and metadata + "\0"


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for topic, number in sorted(set(partitions)):
        numbers[topic].append(number)
    return numbers
