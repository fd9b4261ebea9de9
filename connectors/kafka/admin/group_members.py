"""The members of consumer groups, of the classic protocol and of the newer one (KIP-848).

*Source*: KIP-848. A coordinator answers the classic question about a group of the newer protocol as
if the group did not exist; only the newer question shows the group and its members.

*Invariants*: a group is without members only if each protocol that the broker knows says so. The
members of classic groups are decoded only if they differ from the last answer (I16).

kafka-python does not define the messages of the newer protocol; the JSON files beside this module
are those of Kafka 4.3.1.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import kafka.errors as kafka_errors
from kafka.protocol.admin import DescribeGroupsRequest, DescribeGroupsResponse
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import LeaveGroupRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

from stilltide.connectors.kafka.errors import on_group
from stilltide.connectors.kafka.raw.group_offsets import RepeatedQuestion
from stilltide.connectors.kafka.raw.line import Line, check
from stilltide.connectors.ports.connector import MemberDescription
from stilltide.schemas.rights import Operation
from stilltide.schemas.values import TopicPartition

_HERE = sys.modules[__name__]


class ConsumerGroupDescribeRequest(ApiMessage, load_json=_HERE):
    """Asks for groups of the newer protocol."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=_HERE):
    """Groups of the newer protocol with their members, of either protocol."""


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=_HERE):
    """A sign of life of a member of the newer protocol; with epoch -1 the member leaves."""


class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=_HERE):
    """The answer to a sign of life."""


_VERSION = 5
"""Of questions about classic groups; Kafka 2.4. From version 6 on, an absent group has an error
code instead of the state Dead."""

_DEAD = "Dead"
_WITHOUT_MEMBERS = ("Empty", _DEAD)

_ABSENT = kafka_errors.GroupIdNotFoundError.errno
_UNSERVED = kafka_errors.UnsupportedVersionError.errno
"""What a broker of 3.9 answers for each group: it knows the request, and serves no such groups."""
_NO_MEMBER = kafka_errors.UnknownMemberIdError.errno

_CLASSIC_MEMBER = 0
"""The type of a classic member in a group of the newer protocol, which is being migrated."""

_LEAVES = -1
"""The epoch by which a member of the newer protocol leaves."""


class GroupMembers(NamedTuple):
    """A group as its coordinator describes it.

    Attributes:
        active: whether the group has members.
        state: Kafka's word for its state.
        classic: its members of the classic protocol.
        newer: its members of the newer one.
    """

    active: bool
    state: str
    classic: Sequence[MemberDescription] = ()
    newer: Sequence[MemberDescription] = ()


class MembersQuestion:
    """A question for the members of groups, and its last answer.

    Args:
        names: groups with one coordinator.
    """

    def __init__(self, names: Sequence[str]) -> None:
        request = DescribeGroupsRequest(
            groups=list(names),
            include_authorized_operations=False,
            min_version=_VERSION,
            max_version=_VERSION,
        )
        response: Any = DescribeGroupsResponse[_VERSION]
        self._question = RepeatedQuestion(request, lambda data: _classic(response.decode(data)))

    async def ask(self, line: Line, node: int) -> dict[str, GroupMembers]:
        """The groups, which this broker coordinates; one that does not exist has no members."""
        groups, absent = await self._question.ask(line, node)
        return groups | await _of_newer_protocol(line, node, absent) if absent else groups


def _classic(response: Any) -> tuple[dict[str, GroupMembers], list[str]]:
    """The groups of the classic protocol, and those that it does not know."""
    groups: dict[str, GroupMembers] = {}
    absent: list[str] = []
    for group in response.groups:
        if group.group_state == _DEAD:
            absent.append(group.group_id)
            continue
        check(group.error_code, on_group(Operation.DESCRIBE, group.group_id))
        members = [_member(member, _decoded(member.member_assignment)) for member in group.members]
        state = group.group_state
        groups[group.group_id] = GroupMembers(state not in _WITHOUT_MEMBERS, state, members)
    return groups, absent


async def _of_newer_protocol(
    line: Line, node: int, names: Sequence[str]
) -> dict[str, GroupMembers]:
    """The groups of the newer protocol among these."""
    request = ConsumerGroupDescribeRequest(
        group_ids=list(names), include_authorized_operations=False
    )
    groups = dict.fromkeys(names, GroupMembers(active=False, state=_DEAD))
    try:
        response = await line.send(request, node)
    except kafka_errors.IncompatibleBrokerVersion:
        return groups  # a broker before 4.0 has no such groups, unless it was told to
    for group in response.groups:
        if group.error_code in {_ABSENT, _UNSERVED}:
            continue
        check(group.error_code, on_group(Operation.DESCRIBE, group.group_id))
        classic: list[MemberDescription] = []
        newer: list[MemberDescription] = []
        for member in group.members:
            is_classic = getattr(member, "member_type", None) == _CLASSIC_MEMBER
            assigned = [
                TopicPartition(topic.topic_name, number)
                for topic in member.assignment.topic_partitions
                for number in topic.partitions
            ]
            (classic if is_classic else newer).append(_member(member, assigned))
        state = group.group_state
        groups[group.group_id] = GroupMembers(bool(group.members), state, classic, newer)
    return groups


async def remove_members(line: Line, node: int, group: str) -> None:
    """Removes the members that a group has now; one that leaves meanwhile is no error."""
    members = (await MembersQuestion([group]).ask(line, node))[group]
    codes: list[int] = []
    if members.classic:
        leaving = [
            LeaveGroupRequest.MemberIdentity(
                member_id=member.member_id, group_instance_id=None, reason="a reset of the group"
            )
            for member in sorted(members.classic)
        ]
        request = LeaveGroupRequest(group_id=group, members=leaving, min_version=3)
        response = await line.send(request, node)
        codes = [response.error_code, *(member.error_code for member in response.members)]
    _check_left(group, codes)
    for member in sorted(members.newer):
        beat = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member.member_id,
            member_epoch=_LEAVES,
            rebalance_timeout_ms=-1,
        )
        _check_left(group, [(await line.send(beat, node)).error_code])


def _check_left(group: str, codes: Sequence[int]) -> None:
    for code in codes:
        if code != _NO_MEMBER:
            check(code, on_group(Operation.READ, group))


def _member(member: Any, assigned: Iterable[TopicPartition]) -> MemberDescription:
    host = member.client_host.removeprefix("/")
    return MemberDescription(member.member_id, member.client_id, host, tuple(sorted(assigned)))


def _decoded(assignment: bytes) -> list[TopicPartition]:
    """The partitions in a member's assignment; none while its group rebalances."""
    if not assignment:
        return []
    partitions = ConsumerProtocolAssignment.decode(assignment).partitions()
    return [TopicPartition(data.topic, data.partition) for data in partitions]
