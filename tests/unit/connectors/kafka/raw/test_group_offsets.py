"""Offsets of groups mean what kafka-python reads in them, whatever the last answer was."""

from typing import Any

import kafka.errors as kafka_errors
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import OffsetFetchResponse

from stilltide.connectors.kafka.raw.group_offsets import (
    Commits,
    OffsetsAnswers,
)
from stilltide.connectors.ports.readers import Committed
from stilltide.schemas.values import Offset, TopicPartition

Group = OffsetFetchResponse.OffsetFetchResponseGroup
Topic = Group.OffsetFetchResponseTopics
Partition = Topic.OffsetFetchResponsePartitions

Written = dict[str, dict[str, list[tuple[int, str]]]]
"""Offset and metadata of each partition, by group and topic; -1 where there is no commit."""


def encoded(commits: Written, *, error: int = 0, error_of_partition: int = 0) -> bytes:
    """What a broker answers."""
    groups: list[Any] = []
    for group, topics in commits.items():
        held: list[Any] = []
        for topic, rows in topics.items():
            partitions = [
                Partition(
                    partition_index=number,
                    committed_offset=offset,
                    committed_leader_epoch=-1,
                    metadata=metadata,
                    error_code=error_of_partition,
                )
                for number, (offset, metadata) in enumerate(rows)
            ]
            held.append(Topic(name=topic, partitions=partitions))
        groups.append(Group(group_id=group, topics=held, error_code=error))
    return OffsetFetchResponse(throttle_time_ms=0, groups=groups, version=8).encode()


def meant(commits: Written) -> Commits:
    """What the answer says."""
    return {
        group: {
            TopicPartition(topic, number): Committed(Offset(offset), metadata.rstrip("\0"))
            for topic, rows in topics.items()
            for number, (offset, metadata) in enumerate(rows)
            if offset >= 0
        }
        for group, topics in commits.items()
    }


row = st.tuples(st.integers(-1, 3), st.sampled_from(["", "m", "m\0", "ü" * 70]))
answer = st.dictionaries(
    st.sampled_from(["g", "h", "k"]),
    st.dictionaries(st.sampled_from(["t", "u"]), st.lists(row, max_size=70), max_size=2),
    max_size=3,
)


@given(st.lists(answer, min_size=1, max_size=5))
def test_an_answer_says_the_same_after_any_other(answers: list[Written]):
    """Parts of the last answer are used only where they say the same."""
    reader = OffsetsAnswers()
    for commits in answers:
        assert reader.read(encoded(commits)) == meant(commits)


@given(st.lists(row, min_size=100, max_size=100), st.lists(st.integers(0, 99), max_size=5))
def test_what_has_not_changed_is_the_same_object(rows: list[tuple[int, str]], moved: list[int]):
    """A commit that changes among many costs its neighbours and nothing else."""
    reader = OffsetsAnswers()
    before = reader.read(encoded({"g": {"t": rows}, "h": {"t": rows}}))
    assert reader.read(encoded({"g": {"t": rows}, "h": {"t": rows}})) is before
    changed = [(9, "moved") if at in moved else one for at, one in enumerate(rows)]
    after = reader.read(encoded({"g": {"t": rows}, "h": {"t": changed}}))
    assert after == meant({"g": {"t": rows}, "h": {"t": changed}})
    assert after["g"] is before["g"]
    touched = {at // 32 for at in moved}
    for data, held in before["h"].items():
        if data.partition // 32 not in touched:
            assert after["h"][data] is held


def test_the_time_for_which_a_broker_throttles_is_no_change():
    """The broker's wish for fewer requests says nothing about groups."""
    reader, data = OffsetsAnswers(), encoded({"g": {"t": [(1, "")]}})
    assert reader.read(data) is reader.read(b"\0\0\0\x07" + data[4:])


def test_an_error_of_a_group_or_partition_is_raised_each_time():
    """What a broker refuses is not remembered as an answer."""
    reader, commits = OffsetsAnswers(), {"g": {"t": [(1, "")]}}
    good = reader.read(encoded(commits))
    for refused in (encoded(commits, error=16), encoded(commits, error_of_partition=30)):
        for _ in range(2):
            with pytest.raises(kafka_errors.BrokerResponseError):
                reader.read(refused)
    assert reader.read(encoded(commits)) is good


@given(st.data())
def test_bytes_that_are_no_answer_are_an_error(data: st.DataObject):
    """An answer that is cut off is refused, also after a whole one."""
    whole = encoded({"g": {"t": [(number, "m") for number in range(40)]}})
    reader = OffsetsAnswers()
    if data.draw(st.booleans()):
        reader.read(whole)
    with pytest.raises(kafka_errors.KafkaProtocolError):
        reader.read(whole[: data.draw(st.integers(4, len(whole) - 1))])
    with pytest.raises(kafka_errors.KafkaProtocolError):
        reader.read(whole + b"\0")
