"""`GroupReader`: promises of connectors.ports, on every connector."""

import asyncio
import contextlib
import threading

import pytest

from stilltide.connectors.errors import FatalError, FencedError, MissingTopicError, RetriableError
from stilltide.connectors.ports.readers import (
    COMMIT_METADATA_CHARS_MAX,
    GroupReader,
    Record,
    TimedRecord,
    column,
    timestamps_ms,
)
from stilltide.connectors.ports.readers import records_of as fetched_records
from stilltide.schemas.values import TopicPartition
from tests.contract.rig import WAIT_S, Membership, Rig, create, records_of, trim, write
from tests.support.looks import between_looks

BUSY_S = 0.3
"""Longer than a broker takes to answer a commit."""


async def test_a_new_group_starts_at_the_log_start(rig: Rig, log: TopicPartition):
    """`assigned` names real positions, before the first record."""
    other = TopicPartition(log.topic, 1)
    await write(rig, log, b"a", b"b", b"c")
    await trim(rig, log, 1)
    member = Membership(rig.connector.group_reader("m", log.topic))
    await member.join(log.topic)
    await member.until(lambda: len(member.records) == 2)
    assert member.events == [("assigned", {log: 1, other: 0})]
    assert [record.value for record in member.records] == [b"b", b"c"]
    await member.leave()


async def test_a_run_has_the_columns_of_its_records(rig: Rig, log: TopicPartition):
    """Records are made of them when they are wanted, with timestamps where these are, too."""
    await write(rig, log, b"a", None, b"c")
    member = Membership(rig.connector.group_reader("m", log.topic))
    await member.join(log.topic)
    await member.until(lambda: len(member.records) == 3)
    for run in member.runs:
        made, timed = run.records, fetched_records(run.data, run.fetched, timestamps=True)
        assert made == timed
        assert column(run.fetched, "value") == [record.value for record in made]
        assert column(run.fetched, "key") == [record.key for record in made]
        assert [*run.offsets] == column(run.fetched, "offset")
        assert [*run.headers] == column(run.fetched, "headers")
        stamps_ms = [record.timestamp_ms for record in timed if isinstance(record, TimedRecord)]
        assert stamps_ms == timestamps_ms(run.fetched)
        assert min(stamps_ms) >= 0
    assert [record.value for record in member.records] == [b"a", None, b"c"]
    await member.leave()


async def test_a_new_group_can_start_at_the_end(rig: Rig, log: TopicPartition):
    """With `from_start` off only what comes later is read."""
    await write(rig, log, b"a", b"b")
    member = Membership(rig.connector.group_reader("m", log.topic, from_start=False))
    await member.join(log.topic)
    await member.until(lambda: bool(member.held))
    assert member.held[log] == 2
    await write(rig, log, b"c")
    await member.until(lambda: bool(member.records))
    assert [record.value for record in member.records] == [b"c"]
    await member.leave()


@pytest.mark.parametrize(("since_ms", "first"), [(0, 0), (2**42, 2)])
async def test_a_new_group_can_start_at_a_time(
    rig: Rig, log: TopicPartition, since_ms: int, first: int
):
    """At the first record that is not older, or at the end if there is none."""
    await write(rig, log, b"a", b"b")
    member = Membership(rig.connector.group_reader("m", log.topic, since_ms=since_ms))
    await member.join(log.topic)
    await member.until(lambda: bool(member.held))
    assert member.held[log] == first
    await write(rig, log, b"c")
    await member.until(lambda: len(member.records) == 3 - first)
    await member.leave()


async def test_a_group_resumes_where_it_committed(rig: Rig, log: TopicPartition):
    """A later member starts at the committed offset, whatever `from_start` says."""
    other = TopicPartition(log.topic, 1)
    await write(rig, log, b"a", b"b", b"c")
    first = Membership(rig.connector.group_reader("m", log.topic))
    await first.join(log.topic)
    await first.until(lambda: len(first.records) == 3)
    await first.reader.commit({log: 2})
    await first.leave()
    second = Membership(rig.connector.group_reader("m", log.topic, from_start=False))
    await second.join(log.topic)
    await second.until(lambda: bool(second.records))
    assert second.events[0] == ("assigned", {log: 2, other: 0})
    assert [record.value for record in second.records] == [b"c"]
    await second.leave()


async def test_a_second_member_takes_over_a_share(rig: Rig, log: TopicPartition):
    """`revoked` comes before the next `assigned`; no partition has two owners afterwards."""
    first = Membership(rig.connector.group_reader("m1", log.topic))
    second = Membership(rig.connector.group_reader("m2", log.topic))
    await first.join(log.topic)
    await first.until(lambda: len(first.held) == 2)
    await second.join(log.topic)
    await second.until(lambda: len(second.held) == 1)
    await first.until(lambda: len(first.held) == 1)
    assert [kind for kind, _ in first.events] == ["assigned", "revoked", "assigned"]
    assert {*first.held, *second.held} == {log, TopicPartition(log.topic, 1)}
    await second.leave()
    await first.until(lambda: len(first.held) == 2)
    await first.leave()


async def test_a_record_comes_only_while_its_partition_is_held(rig: Rig, log: TopicPartition):
    """Nothing fetched before a rebalance is returned after `revoked` (Membership asserts it)."""
    await write(rig, log, *(bytes(100) for _ in range(3000)))
    await write(rig, TopicPartition(log.topic, 1), *(bytes(100) for _ in range(3000)))
    first = Membership(rig.connector.group_reader("m1", log.topic))
    second = Membership(rig.connector.group_reader("m2", log.topic))
    await first.join(log.topic)
    await first.until(lambda: bool(first.records))
    await second.join(log.topic)
    await second.until(lambda: len(second.records) >= 3000)
    await first.until(lambda: len(first.held) == 1)
    assert {record.partition for record in second.records} == {it.partition for it in second.held}
    for member in (first, second):
        await member.leave()


async def read_backlog(
    reader: GroupReader, data: TopicPartition, count: int, *, at_once: int
) -> list[Record]:
    """So many records of one partition, read without waiting where that can be."""
    records: list[Record] = []
    fetches = 0
    while len(records) < count or fetches < at_once:
        items = reader.read_now()
        fetches += bool(items)
        found = items or await reader.read()
        records += [it for it in records_of(found) if it.data == data]
    return records


async def test_a_backlog_is_read_without_waiting(rig: Rig, log: TopicPartition):
    """`read_now` and `read` go on where the other has come to: each record comes once."""
    values = [b"%04d" % number for number in range(6000)]
    await write(rig, log, *values)
    reader = rig.connector.group_reader("m", log.topic)
    assigned = asyncio.Event()
    await reader.subscribe([log.topic], assigned=lambda _: assigned.set(), revoked=print)
    assert not reader.read_now()
    async with asyncio.timeout(WAIT_S):
        records = await read_backlog(reader, log, len(values), at_once=1)
    assert [it.value for it in records] == values
    await reader.close()
    assert not reader.read_now()


async def test_a_backlog_is_read_from_where_assign_says(rig: Rig, log: TopicPartition):
    """What was ready to be read belongs to the assignment before."""
    values = [b"%04d" % number for number in range(6000)]
    await write(rig, log, *values)
    reader = rig.connector.group_reader("m", log.topic)
    await reader.subscribe([log.topic], assigned=lambda _: None, revoked=print)
    async with asyncio.timeout(WAIT_S):
        await read_backlog(reader, log, 1, at_once=1)
        moving = asyncio.create_task(reader.assign({log: 10}))
        await asyncio.sleep(0)
        records = records_of(reader.read_now())
        await moving
        records += await read_backlog(reader, log, 2000, at_once=1)
    assert [it.value for it in records[:2000]] == values[10:2010]
    await reader.close()


async def test_a_commit_of_a_partition_not_held_is_fenced(rig: Rig, log: TopicPartition):
    """Neither before the assignment, nor of what another member has."""
    first = Membership(rig.connector.group_reader("m1", log.topic))
    with pytest.raises(FencedError):
        await first.reader.commit({log: 0})
    second = Membership(rig.connector.group_reader("m2", log.topic))
    await first.join(log.topic)
    await first.until(lambda: len(first.held) == 2)
    await second.join(log.topic)
    await second.until(lambda: len(second.held) == 1)
    await first.until(lambda: len(first.held) == 1)
    for member, other in ((first, second), (second, first)):
        with pytest.raises(FencedError):
            await member.reader.commit(dict.fromkeys(other.held, 0))
        await member.reader.commit(dict.fromkeys(member.held, 0))
    await second.leave()
    await first.leave()


async def test_metadata_comes_back_with_the_offset(rig: Rig, log: TopicPartition):
    """`committed` is of the moment of the assignment; what was never committed is None."""
    await write(rig, log, b"a", b"b")
    first = Membership(rig.connector.group_reader("m", log.topic))
    await first.join(log.topic)
    await first.until(lambda: len(first.held) == 2)
    assert first.reader.committed(log) is None
    await first.reader.commit({log: 1}, {log: "st1;a=rAQE"})
    assert first.reader.committed(log) is None
    await first.leave()
    second = Membership(rig.connector.group_reader("m", log.topic))
    await second.join(log.topic)
    await second.until(lambda: len(second.held) == 2)
    assert second.reader.committed(log) == (1, "st1;a=rAQE")
    assert second.held[log] == 1
    assert second.reader.committed(TopicPartition(log.topic, 1)) is None
    await second.leave()


async def test_a_commit_is_answered_while_the_loop_is_busy(rig: Rig, log: TopicPartition):
    """An answer that comes together with the news of the sending is not lost."""
    member = Membership(rig.connector.group_reader("m", log.topic))
    await member.join(log.topic)
    await member.until(lambda: len(member.held) == 2)
    for offset in range(3):
        committing = asyncio.create_task(member.reader.commit({log: offset}))
        await asyncio.sleep(0)
        threading.Event().wait(BUSY_S)
        await committing
    await member.leave()
    after = Membership(rig.connector.group_reader("m", log.topic))
    await after.join(log.topic)
    await after.until(lambda: len(after.held) == 2)
    assert after.reader.committed(log) == (2, "")
    await after.leave()


async def test_a_plain_commit_wipes_metadata(rig: Rig, log: TopicPartition):
    """What a commit does not name is empty afterwards, also beside a partition it names."""
    other = TopicPartition(log.topic, 1)
    first = Membership(rig.connector.group_reader("m", log.topic))
    await first.join(log.topic)
    await first.until(lambda: len(first.held) == 2)
    await first.reader.commit({log: 0, other: 0}, {log: "x", other: "y"})
    await first.reader.commit({log: 0, other: 0}, {other: "z"})
    await first.leave()
    second = Membership(rig.connector.group_reader("m", log.topic))
    await second.join(log.topic)
    await second.until(lambda: len(second.held) == 2)
    assert [second.reader.committed(it) for it in (log, other)] == [(0, ""), (0, "z")]
    await second.leave()


async def test_metadata_has_a_longest_length(rig: Rig, log: TopicPartition):
    """The longest is kept whole; one more character is refused and changes nothing."""
    longest = "x" * COMMIT_METADATA_CHARS_MAX
    first = Membership(rig.connector.group_reader("m", log.topic))
    await first.join(log.topic)
    await first.until(lambda: len(first.held) == 2)
    await first.reader.commit({log: 0}, {log: longest})
    with pytest.raises(FatalError, match=f"{log.topic}/0"):
        await first.reader.commit({log: 0}, {log: longest + "x"})
    with pytest.raises(FatalError, match="ASCII"):
        await first.reader.commit({log: 0}, {log: "\u00e9"})
    await first.leave()
    second = Membership(rig.connector.group_reader("m", log.topic))
    await second.join(log.topic)
    await second.until(lambda: len(second.held) == 2)
    assert second.reader.committed(log) == (0, longest)
    await second.leave()


async def test_a_member_can_move_within_its_partitions(rig: Rig, log: TopicPartition):
    """`assign` moves what the group has given, and is fenced for anything else."""
    await write(rig, log, b"a", b"b", b"c")
    member = Membership(rig.connector.group_reader("m", log.topic))
    await member.join(log.topic)
    await member.until(lambda: len(member.records) == 3)
    await member.reader.assign({log: 2})
    await member.until(lambda: len(member.records) == 4)
    assert member.records[-1].value == b"c"
    with pytest.raises(FencedError):
        await member.reader.assign({TopicPartition(log.topic, 7): 0})
    await member.leave()


async def test_a_member_pauses_and_resumes(rig: Rig, log: TopicPartition):
    """A paused partition resumes where it stood."""
    member = Membership(rig.connector.group_reader("m", log.topic))
    await member.join(log.topic)
    await member.until(lambda: len(member.held) == 2)
    await write(rig, log, b"a")
    await member.until(lambda: len(member.records) == 1)
    member.reader.pause([log])
    await write(rig, TopicPartition(log.topic, 1), b"x")
    await member.until(lambda: len(member.records) == 2)
    await write(rig, log, b"b")
    await write(rig, TopicPartition(log.topic, 1), b"y")
    await member.until(lambda: len(member.records) == 3)
    member.reader.resume([log])
    await member.until(lambda: len(member.records) == 4)
    assert [record.value for record in member.records] == [b"a", b"x", b"y", b"b"]
    await member.leave()


async def test_a_rebalance_ends_a_pause(rig: Rig, log: TopicPartition):
    """A newly assigned partition is read, also if another member had paused it."""
    other = TopicPartition(log.topic, 1)
    first = Membership(rig.connector.group_reader("m1", log.topic))
    second = Membership(rig.connector.group_reader("m2", log.topic))
    await first.join(log.topic)
    await first.until(lambda: len(first.held) == 2)
    first.reader.pause([log, other])
    await second.join(log.topic)
    await second.until(lambda: len(second.held) == 1)
    await first.until(lambda: len(first.held) == 1)
    await write(rig, log, b"a")
    await write(rig, other, b"b")
    for member in (first, second):
        await member.until(lambda it=member: bool(it.records))
        places = {TopicPartition(one.topic, one.partition) for one in member.records}
        assert places == set(member.held)
    await second.leave()
    await first.leave()


async def test_groups_are_independent(rig: Rig, log: TopicPartition):
    """Two groups read everything each."""
    await write(rig, log, b"a", b"b")
    members = [Membership(rig.connector.group_reader("m", f"{log.topic}-{name}")) for name in "xy"]
    for member in members:
        await member.join(log.topic)
        await member.until(lambda it=member: len(it.records) == 2)
    for member in members:
        assert [record.value for record in member.records] == [b"a", b"b"]
        await member.leave()


async def test_a_missing_topic_is_fatal(rig: Rig, log: TopicPartition):
    """A member does not wait for ever for a topic that is not there."""
    reader = rig.connector.group_reader("m", log.topic)
    await reader.subscribe([f"{log.topic}-absent"], assigned=lambda _: None, revoked=lambda _: None)
    with pytest.raises(FatalError, match="absent"):
        async with asyncio.timeout(240):
            await reader.read()
    await reader.close()


async def test_a_topic_is_deleted_under_a_member(rig: Rig, log: TopicPartition):
    """It can neither commit there nor read on; once the topic is there again, it can commit."""
    reader = rig.connector.group_reader("m", log.topic)
    member = Membership(reader)
    await write(rig, log, b"a")
    await member.join(log.topic)
    await member.until(lambda: bool(member.records))
    rig.delete_topic(log.topic)
    with pytest.raises(MissingTopicError):
        await reader.commit({log: 1})
    with pytest.raises(MissingTopicError):
        await member.until(lambda: False)
    await create(rig, log.topic)
    async with asyncio.timeout(WAIT_S):
        while True:
            with contextlib.suppress(MissingTopicError):  # a broker does not know it yet
                await reader.commit({log: 1})
                break
            await between_looks()
    await reader.close()


async def test_close_wakes_a_waiting_read_and_ends_commits(rig: Rig, log: TopicPartition):
    """As for any reader; a commit afterwards is `FatalError`."""
    reader = rig.connector.group_reader("m", log.topic)
    ready = asyncio.Event()
    await reader.subscribe([log.topic], assigned=lambda _: ready.set(), revoked=lambda _: None)
    waiting = asyncio.create_task(reader.read())
    async with asyncio.timeout(240):
        await ready.wait()
    await reader.close()
    await asyncio.wait([waiting])
    with pytest.raises(FatalError):
        await reader.read()
    with pytest.raises(FatalError):
        await reader.commit({log: 0})
    await reader.close()


async def test_a_broker_away_is_retriable(rig: Rig):
    """A member that cannot join says so, with the address."""
    reader = rig.unreachable().group_reader("m", "g")
    await reader.subscribe(["t"], assigned=lambda _: None, revoked=lambda _: None)
    with pytest.raises(RetriableError, match=rig.address):
        async with asyncio.timeout(240):
            await reader.read()
    await reader.close()


@pytest.mark.parametrize("from_start", [True, False])
async def test_an_added_partition_is_shared_out_and_read_from_its_start(
    rig: Rig, log: TopicPartition, *, from_start: bool
):
    """C13: within the age; also for a group that began at the log end."""
    await write(rig, log, b"before")
    member = Membership(
        rig.connector.group_reader(
            "m", f"{log.topic}-{from_start}", from_start=from_start, metadata_max_age_s=0.5
        )
    )
    await member.join(log.topic)
    await member.until(lambda: bool(member.held))
    added = TopicPartition(log.topic, 2)
    admin = rig.connector.admin()
    await admin.add_partitions(log.topic, 3)
    await admin.close()
    await write(rig, added, b"0", b"1")
    await member.until(lambda: added in member.held)
    assert member.held[added] == 0
    await member.until(lambda: sum(it.data == added for it in member.records) == 2)
    await member.leave()


@pytest.mark.parametrize("from_start", [True, False])
async def test_a_member_can_change_its_topics(rig: Rig, log: TopicPartition, *, from_start: bool):
    """D8: topics taken up later are read from their start, and of those left nothing is read."""
    other = TopicPartition(f"{log.topic}-other-{from_start}", 0)
    await create(rig, other.topic)
    await write(rig, log, b"a")
    await write(rig, other, b"b")
    member = Membership(
        rig.connector.group_reader("m", f"{log.topic}-{from_start}", from_start=from_start)
    )
    await member.join(log.topic)
    await member.until(lambda: bool(member.held))
    await member.reader.change_topics([log.topic, other.topic])
    await member.until(lambda: other in member.held and log in member.held)
    await member.until(lambda: b"b" in [it.value for it in member.records])
    await member.reader.change_topics([])
    await member.until(lambda: not member.held)
    await member.reader.change_topics([other.topic])
    await member.until(lambda: {it.topic for it in member.held} == {other.topic})
    count = len(member.records)
    await write(rig, log, b"c")
    await write(rig, other, b"d")
    await member.until(lambda: b"d" in [it.value for it in member.records])
    assert b"c" not in [it.value for it in member.records[count:]]
    await member.leave()
