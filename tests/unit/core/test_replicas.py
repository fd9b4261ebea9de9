"""How many replicas new topics get."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stilltide.pipeline.core.replicas import AUTO, AUTOMATIC, Automatic, WantedReplicas, next_step
from stilltide.pipeline.errors import ConfigError
from stilltide.schemas.topics import BrokerFigures, Replicas

counts = st.integers(1, 20)


@pytest.mark.parametrize(
    ("brokers", "default", "factor", "min_insync"),
    [(1, 1, 1, 1), (2, 1, 2, 1), (3, 1, 3, 2), (9, 1, 3, 2), (9, 2, 2, 1), (9, 5, 5, 2)],
)
def test_auto_follows_the_cluster(brokers: int, default: int, factor: int, min_insync: int):
    """The cluster's default where it is above 1, else up to three; two in sync of three or more."""
    found = AUTOMATIC.on(BrokerFigures(brokers, default))
    assert found == Replicas(factor, min_insync)


@pytest.mark.parametrize(
    ("up", "registered", "factor"),
    [(2, 3, 3), (2, 2, 2), (2, 9, 3), (1, 3, 1), (3, 0, 3), (2, 0, 2)],
)
def test_auto_counts_a_broker_that_is_down(up: int, registered: int, factor: int):
    """A cluster of three gets three replicas while one broker is down, if two can be in sync."""
    assert AUTOMATIC.on(BrokerFigures(up, 1, registered)).factor == factor


def test_numbers_are_taken_as_they_are():
    """Numbers in the settings are used even with fewer brokers, where creating a topic fails."""
    assert WantedReplicas(4, 3).on(BrokerFigures(1, 2)) == Replicas(4, 3)
    assert WantedReplicas(5, AUTO).on(BrokerFigures(1, 1)) == Replicas(5, 2)
    assert WantedReplicas(AUTO, 3).on(BrokerFigures(3, 1)) == Replicas(3, 3)


@pytest.mark.parametrize(
    ("factor", "shown"),
    [(2, "replication_factor is 2"), (AUTO, "replication_factor is 2 on this cluster")],
)
def test_more_in_sync_than_there_are_is_refused(factor: int | Automatic, shown: str):
    """The error names the setting and its highest possible value, since no write could succeed."""
    with pytest.raises(ConfigError) as caught:
        WantedReplicas(factor, 3).on(BrokerFigures(2, 1))
    assert caught.value.primary == f"min_insync_replicas is 3, but {shown}"
    assert "min_insync_replicas to 2" in caught.value.hint


@given(factor=counts | st.just(AUTO), least=counts | st.just(AUTO), brokers=counts, default=counts)
def test_topics_can_be_written_to(
    factor: int | Automatic, least: int | Automatic, brokers: int, default: int
):
    """What is chosen has no more in-sync replicas than replicas, whatever is set."""
    try:
        found = WantedReplicas(factor, least).on(BrokerFigures(brokers, default))
    except ConfigError:
        assert least != AUTO
        return
    assert 1 <= found.min_insync <= found.factor
    assert factor in (AUTO, found.factor)
    assert least in (AUTO, found.min_insync)


def test_the_next_step_names_what_is_missing():
    """Replicas come before the config that needs them; a topic that has enough needs no step."""
    wanted = Replicas(3, 2)
    both = next_step("t", Replicas(1, 1), wanted)
    assert both is not None
    first, second = both.split("; then ")
    assert first.startswith("assign 3 replicas to each partition: kafka-reassign-partitions.sh")
    assert second == "kafka-configs.sh --alter --topic t --add-config min.insync.replicas=2"
    assert next_step("t", Replicas(3, 1), wanted) == second
    assert next_step("t", Replicas(2, 2), wanted) == first
    assert next_step("t", Replicas(4, 3), wanted) is None
