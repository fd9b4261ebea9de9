"""Where owners run: one topic's assignment decides for each kind."""

import pytest

from stilltide.pipeline.drivers.worker.placement import (
    LINKS,
    PLACEMENTS,
    Placement,
)
from stilltide.schemas.topics import REPLICATION_POSITIONS, system_topics

COUNTS = {one.name: one.partition_count for one in system_topics(coordinators=3, partitions=5)}


def test_every_followed_topic_is_read_by_one_agent():
    """Faust assigns the partitions of topics that an agent reads, and of no others."""
    asked = [one.topic for one in PLACEMENTS if one.is_asked]
    assert len(set(asked)) == len(asked)
    assert {one.topic for one in PLACEMENTS} == set(asked)


def test_no_partition_has_owners_of_two_kinds():
    """Each system topic that is owned belongs to one kind of owner."""
    owned = [topic for one in PLACEMENTS for topic in one.owns]
    assert len(set(owned)) == len(owned)


@pytest.mark.parametrize("placement", PLACEMENTS, ids=lambda one: one.name)
def test_what_is_owned_has_the_partitions_that_are_followed(placement: Placement):
    """Partition n of the followed topic gives a worker partition n of what is owned."""
    for topic in placement.owns:
        assert COUNTS[topic] == COUNTS[placement.topic]


def test_names_and_titles_differ():
    """Logs, tasks and the readiness probe tell the kinds apart."""
    assert len({one.name for one in PLACEMENTS}) == len(PLACEMENTS)
    assert len({one.title for one in PLACEMENTS}) == len(PLACEMENTS)


def test_a_link_has_a_part_for_each_partition_that_is_followed():
    """H12: each partition of replication-positions is written by one worker."""
    for partitions in (1, 3, 7):
        specs = system_topics(coordinators=2, partitions=partitions)
        counts = {one.name: one.partition_count for one in specs}
        assert counts[LINKS.topic] == counts[REPLICATION_POSITIONS]
