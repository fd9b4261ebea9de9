"""The members of consumer groups, of the classic protocol and of the newer one (KIP-848).

*Source*: KIP-848. A coordinator answers the classic question about a group of the newer protocol as
if the group did not exist; only the newer question shows the group and its members.

*Invariants*: a group is without members only if each protocol that the broker knows says so.

kafka-python does not define the messages of the newer protocol; the JSON files beside this module
are those of Kafka 4.3.1.
"""

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import kafka.errors as kafka_errors
from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import LeaveGroupRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

from stilltide.connectors.kafka.errors import on_group
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


_WITHOUT_MEMBERS = ("Empty", "Dead")

_ABSENT = kafka_errors.GroupIdNotFoundError.errno
_NO_MEMBER = kafka_errors.UnknownMemberIdError.errno

_CLASSIC_MEMBER = 0
"""The type of a classic member in a group of the newer protocol, which is being migrated."""

_LEAVES = -1
"""The epoch by which a member of the newer protocol leaves."""


class DescribedMember(NamedTuple):
    """A member of a group.

    Attributes:
        described: the member as ports describe it.
        classic: whether the member uses the classic protocol.
    """

    described: MemberDescription
    classic: bool


class GroupMembers(NamedTuple):
    """A group as its coordinator describes it.

    Attributes:
        active: whether the group has members.
        members: its members.
    """

    active: bool
    members: tuple[DescribedMember, ...]


_NOBODY = GroupMembers(active=False, members=())


async def described(line: Line, node: int, names: Sequence[str]) -> dict[str, GroupMembers]:
    """The groups that this broker coordinates; one that does not exist has no members."""
    request = DescribeGroupsRequest(groups=list(names), include_authorized_operations=False)
    found: dict[str, GroupMembers] = {}
    absent: list[str] = []
    for group in (await line.send(request, node)).groups:
        # Before version 6 an absent group has the state Dead, and no error.
        if group.error_code == _ABSENT or group.group_state == "Dead":
            absent.append(group.group_id)
            continue
        check(group.error_code, on_group(Operation.DESCRIBE, group.group_id))
        members = tuple(_classic_member(it) for it in group.members)
        found[group.group_id] = GroupMembers(group.group_state not in _WITHOUT_MEMBERS, members)
    if absent:
        found |= await _of_newer_protocol(line, node, absent)
    return found


async def _of_newer_protocol(
    line: Line, node: int, names: Sequence[str]
) -> dict[str, GroupMembers]:
    """The groups of the newer protocol among these."""
    request = ConsumerGroupDescribeRequest(
        group_ids=list(names), include_authorized_operations=False
    )
    found = dict.fromkeys(names, _NOBODY)
    try:
        response = await line.send(request, node)
    except kafka_errors.IncompatibleBrokerVersion:
        return found  # a broker before 4.0 has no such groups, unless it was told to
    for group in response.groups:
        if group.error_code == _ABSENT:
            continue
        check(group.error_code, on_group(Operation.DESCRIBE, group.group_id))
        members = tuple(_newer_member(it) for it in group.members)
        found[group.group_id] = GroupMembers(bool(members), members)
    return found


async def remove(line: Line, node: int, group: str) -> None:
    """Removes the members that a group has now; one that leaves meanwhile is no error."""
    members = (await described(line, node, [group]))[group].members
    asked = on_group(Operation.READ, group)
    classic = sorted(it.described.member_id for it in members if it.classic)
    if classic:
        identity = LeaveGroupRequest.MemberIdentity
        leaving = [
            identity(member_id=it, group_instance_id=None, reason="a reset of the group")
            for it in classic
        ]
        request = LeaveGroupRequest(group_id=group, members=leaving, min_version=3)
        response = await line.send(request, node)
        for code in (response.error_code, *(it.error_code for it in response.members)):
            if code != _NO_MEMBER:
                check(code, asked)
    for member in sorted(it.described.member_id for it in members if not it.classic):
        beat = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            member_epoch=_LEAVES,
            rebalance_timeout_ms=-1,
        )
        code = (await line.send(beat, node)).error_code
        if code != _NO_MEMBER:
            check(code, asked)


def _classic_member(member: Any) -> DescribedMember:
    return DescribedMember(
        MemberDescription(
            member.member_id,
            member.client_id,
            member.client_host.removeprefix("/"),
            _assigned(member.member_assignment),
        ),
        classic=True,
    )


def _newer_member(member: Any) -> DescribedMember:
    partitions = sorted(
        TopicPartition(topic.topic_name, number)
        for topic in member.assignment.topic_partitions
        for number in topic.partitions
    )
    return DescribedMember(
        MemberDescription(
            member.member_id,
            member.client_id,
            member.client_host.removeprefix("/"),
            tuple(partitions),
        ),
        classic=getattr(member, "member_type", None) == _CLASSIC_MEMBER,
    )


def _assigned(assignment: bytes) -> tuple[TopicPartition, ...]:
    """The partitions in a member's assignment; none while its group rebalances."""
    if not assignment:
        return ()
    found = ConsumerProtocolAssignment.decode(assignment)
    return tuple(sorted(TopicPartition(it.topic, it.partition) for it in found.partitions()))
