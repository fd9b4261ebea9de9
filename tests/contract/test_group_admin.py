"""`GroupAdmin`: promises of connectors.ports, on every connector."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from ipaddress import ip_address
from typing import cast

import pytest

from stilltide.connectors.errors import (
    ActiveGroupError,
    FatalError,
    FencedError,
    RetriableError,
)
from stilltide.connectors.ports.connector import GroupAdmin, GroupConnector, GroupDescription
from stilltide.connectors.ports.readers import Committed
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TopicPartition
from tests.contract.rig import WAIT_S, Membership, Rig, create, write
from tests.support.looks import between_looks


@pytest.fixture
async def groups(rig: Rig) -> AsyncIterator[GroupAdmin]:
    """An admin of the connector under test."""
    admin = cast("GroupConnector", rig.connector).group_admin()
    yield admin
    await admin.close()


async def test_a_group_that_does_not_exist(groups: GroupAdmin, topic_name: str):
    """It has committed nothing and has no members, which is no error."""
    assert await groups.committed([topic_name], [TopicPartition(topic_name, 0)]) == {topic_name: {}}
    assert await groups.committed([topic_name], []) == {topic_name: {}}
    assert await groups.active([topic_name]) == set()
    assert await groups.active([]) == set()
    assert await groups.members(topic_name) == set()
    assert await groups.described_members(topic_name) == []


async def test_topics_are_described_as_they_are_now(
    rig: Rig, groups: GroupAdmin, log: TopicPartition
):
    """The same as the other admin says, also when a topic is new or has grown meanwhile."""
    admin, later = rig.connector.admin(), f"{log.topic}-later"
    names = [log.topic, later]
    try:
        assert await groups.topics([]) == {}
        before = await groups.topics(names)
        assert before == await admin.describe_topics(names) == await groups.topics(names)
        assert set(before) == {log.topic}
        await admin.ensure_topics([TopicSpec(later, 1)])
        await admin.add_partitions(log.topic, before[log.topic].partition_count + 2)
        wanted = {log.topic: before[log.topic].partition_count + 2, later: 1}
        async with asyncio.timeout(WAIT_S):
            while True:
                after = await groups.topics(names)
                if {name: it.partition_count for name, it in after.items()} == wanted:
                    break
                await between_looks()
        assert after == await admin.describe_topics(names)
        assert after[log.topic].topic_id == before[log.topic].topic_id != after[later].topic_id
    finally:
        await admin.close()


async def test_bounds_of_logs_are_told_as_they_are_now(
    rig: Rig, groups: GroupAdmin, log: TopicPartition
):
    """The same as the other admin says; a partition that does not exist is left out."""
    admin, absent = rig.connector.admin(), TopicPartition(f"{log.topic}-absent", 0)
    beyond = TopicPartition(log.topic, 1000)
    asked = [log, absent, beyond]
    try:
        assert await groups.log_starts([]) == {} == await groups.log_ends([])
        for count in (0, 1, 2):
            ends = await groups.log_ends(asked)
            assert ends == await admin.end_offsets([log]) == {log: count}
            assert await groups.log_starts(asked) == await admin.start_offsets([log]) == {log: 0}
            await write(rig, log, b"x")
        await admin.delete_records({log: Offset(2)})
        assert await groups.log_starts(asked) == await admin.start_offsets([log]) == {log: 2}
        assert await groups.log_ends(asked) == {log: 3}
    finally:
        await admin.close()


async def test_a_move_makes_a_group_and_moves_it_anywhere(groups: GroupAdmin, log: TopicPartition):
    """Offsets and metadata are those given, also backwards and past the end of the log."""
    other, group = TopicPartition(log.topic, 1), log.topic
    await groups.move(group, {log: Committed(Offset(9), "st1;g=1")})
    assert await groups.committed([group], [log, other]) == {
        group: {log: Committed(Offset(9), "st1;g=1")}
    }
    await groups.move(
        group, {log: Committed(Offset(2), ""), other: Committed(Offset(0), "another's")}
    )
    moved = {log: Committed(Offset(2), ""), other: Committed(Offset(0), "another's")}
    assert await groups.committed([group], [log, other]) == {group: moved}
    await groups.move(group, {})
    assert await groups.active([group]) == set()


async def test_groups_with_commits_or_members_are_listed_with_their_topics(
    rig: Rig, groups: GroupAdmin, log: TopicPartition
):
    """I15: also a group that has committed nothing; one that nobody knows is not listed."""
    moved, member, absent = f"{log.topic}-moved", f"{log.topic}-member", f"{log.topic}-absent"
    await groups.move(moved, {log: Committed(Offset(1), "")})
    await write(rig, log, b"a")
    joined = Membership(rig.connector.group_reader("m", member))
    await joined.join(log.topic)
    await joined.until(lambda: len(joined.records) == 1)
    listed = await groups.listed()
    assert {moved, member} <= listed
    assert absent not in listed
    assert await groups.topics_of(iter([moved, member, absent])) == {
        moved: {log.topic},
        member: set(),
        absent: set(),
    }
    assert await groups.topics_of([]) == {}
    assert await groups.commits_of(iter([moved, member, absent])) == {
        moved: {log: Committed(Offset(1), "")},
        member: {},
        absent: {},
    }
    await joined.leave()


async def test_a_group_with_members_is_not_moved(rig: Rig, groups: GroupAdmin, log: TopicPartition):
    """The error names the group, what it committed stays; once its members left it is moved."""
    group = log.topic
    await write(rig, log, b"a", b"b")
    member = Membership(rig.connector.group_reader("m", group))
    await member.join(log.topic)
    await member.until(lambda: len(member.records) == 2)
    await member.reader.commit({log: Offset(1)}, {log: "st1;g=3"})
    assert await groups.active([group, f"{group}-absent"]) == {group}
    assert await groups.members(group) == {member.reader.member_id}  # C15
    with pytest.raises(ActiveGroupError, match=group):
        await groups.move(group, {log: Committed(Offset(2), "")})
    assert await groups.committed([group], [log]) == {group: {log: Committed(Offset(1), "st1;g=3")}}
    await member.leave()
    async with asyncio.timeout(WAIT_S):
        while await groups.active([group]):
            await between_looks()
    await groups.move(group, {log: Committed(Offset(2), "")})
    assert await groups.committed([group], [log]) == {group: {log: Committed(Offset(2), "")}}


async def test_a_member_is_described_with_what_the_group_has_given_to_it(
    rig: Rig, groups: GroupAdmin, log: TopicPartition
):
    """Its id, its name for itself, its address and its partitions; nobody is left once it left."""
    await write(rig, log, b"a")
    member = Membership(rig.connector.group_reader("mine", log.topic))
    await member.join(log.topic)
    await member.until(lambda: len(member.records) == 1)
    (found,) = await groups.described_members(log.topic)
    assert found.member_id == member.reader.member_id
    assert found.client_id == "mine"
    assert ip_address(found.host)  # of a gateway, if the broker runs in a container
    assert log in found.partitions
    absent = f"{log.topic}-absent"
    described = await groups.described([log.topic, absent])
    assert described[log.topic] == GroupDescription("Stable", (found,))
    assert described[absent] == GroupDescription("Dead", ())
    assert await groups.described([]) == {}
    assert {it.topic for it in found.partitions} == {log.topic}
    await member.leave()
    async with asyncio.timeout(WAIT_S):
        while await groups.described_members(log.topic):
            await between_looks()


async def test_removed_members_join_again_where_the_group_was_moved_to(
    rig: Rig, groups: GroupAdmin, log: TopicPartition
):
    """I14: the removed member cannot commit any more; it comes back by itself."""
    group = log.topic
    await groups.remove_members(group)
    await write(rig, log, b"a", b"b")
    member = Membership(rig.connector.group_reader("m", group))
    await member.join(log.topic)
    await member.until(lambda: len(member.records) == 2)
    first = member.reader.member_id
    async with asyncio.timeout(WAIT_S):
        while True:
            await groups.remove_members(group)
            with contextlib.suppress(ActiveGroupError):
                await groups.move(group, {log: Committed(Offset(1), "")})
                break
    with pytest.raises(FencedError):
        await member.reader.commit({log: Offset(2)}, {})
    await member.until(lambda: len(member.records) == 3)
    assert [one.value for one in member.records] == [b"a", b"b", b"b"]
    assert member.reader.member_id != first
    await member.leave()


async def test_a_moved_group_begins_where_it_was_moved_to(
    rig: Rig, groups: GroupAdmin, log: TopicPartition
):
    """A member is given the offset and the metadata."""
    await write(rig, log, b"a", b"b", b"c")
    await groups.move(log.topic, {log: Committed(Offset(2), "st1;g=0")})
    member = Membership(rig.connector.group_reader("m", log.topic))
    await member.join(log.topic)
    await member.until(lambda: bool(member.records))
    assert [record.value for record in member.records] == [b"c"]
    assert member.reader.committed(log) == Committed(Offset(2), "st1;g=0")
    await member.leave()


@pytest.mark.parametrize("metadata", ["x" * 4096, "\N{SNOWMAN}"])
async def test_metadata_that_no_broker_takes_is_refused(
    groups: GroupAdmin, log: TopicPartition, metadata: str
):
    """Nothing is committed."""
    with pytest.raises(FatalError, match="metadata"):
        await groups.move(log.topic, {log: Committed(Offset(0), metadata)})
    assert await groups.committed([log.topic], [log]) == {log.topic: {}}


async def test_a_move_in_a_missing_partition_is_refused(groups: GroupAdmin, log: TopicPartition):
    """Nothing is committed."""
    absent = TopicPartition(log.topic, 7)
    with pytest.raises(FatalError):
        await groups.move(log.topic, {absent: Committed(Offset(0), "")})
    assert await groups.committed([log.topic], [log]) == {log.topic: {}}


async def test_a_broker_away_is_retriable_in_bounded_time(rig: Rig):
    """Every question fails within the time-out and names the address."""
    admin = cast("GroupConnector", rig.unreachable()).group_admin()
    data = TopicPartition("t", 0)
    for ask in (
        lambda: admin.committed(["g"], [data]),
        lambda: admin.active(["g"]),
        lambda: admin.members("g"),
        lambda: admin.remove_members("g"),
        lambda: admin.move("g", {data: Committed(Offset(0), "")}),
    ):
        with pytest.raises(RetriableError, match=rig.address):
            async with asyncio.timeout(240):
                await ask()
    await admin.close()
    await admin.close()


async def test_commits_go_with_their_topic(
    rig: Rig, groups: GroupAdmin, log: TopicPartition, topic_name: str
):
    """A deleted topic takes the commits of all groups with it; those in other topics stay."""
    other, group = TopicPartition(f"{topic_name}-other", 0), topic_name
    await create(rig, other.topic, 1)
    await write(rig, log, b"0", b"1")
    moved = {data: Committed(Offset(2 - i), "st1") for i, data in enumerate((log, other))}
    await groups.move(group, moved)
    rig.delete_topic(log.topic)
    left = {other: moved[other]}
    async with asyncio.timeout(WAIT_S):
        while (await groups.commits_of([group]))[group] != left:
            await between_looks()
    await create(rig, log.topic)
    assert await groups.committed([group], [log, other]) == {group: left}
