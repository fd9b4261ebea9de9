"""When a consumer counts as stuck, by what librdkafka says of it."""

import json
from typing import Any

import pytest

from stilltide.connectors.kafka.consumer.health import LOOKS, FetchWatch
from stilltide.schemas.values import TopicPartition

DATA = TopicPartition("t", 0)
PERIOD_S = 5
SERVED = {"broker": 1, "fetch_state": "active", "fetchq_cnt": 0}


def _statistics(partition: dict[str, Any], *, idle_us: int = 0, known: bool = True) -> str:
    """Of a consumer that reads one partition, of a broker it last heard of so long ago."""
    brokers = {
        "GroupCoordinator": {"nodeid": -1, "source": "logical", "rxidle": -1},
        "h:9092/1": {"nodeid": 1, "source": "learned", "rxidle": idle_us},
    }
    if not known:
        del brokers["h:9092/1"]
    return json.dumps({"brokers": brokers, "topics": {"t": {"partitions": {"0": partition}}}})


def _looks(statistics: str, *, fetched: bool = True) -> list[str | None]:
    watch, data = FetchWatch(PERIOD_S), [DATA] if fetched else []
    return [watch.look(statistics, data, look * PERIOD_S) for look in range(LOOKS)]


@pytest.mark.parametrize(
    "statistics",
    [
        _statistics(SERVED),
        _statistics(SERVED, idle_us=4_999_999),
        _statistics({**SERVED, "fetchq_cnt": 1}, idle_us=60_000_000),
    ],
)
def test_a_partition_is_served(statistics: str):
    """Its broker has answered since the last look, or there are records in hand."""
    assert _looks(statistics) == [None] * LOOKS


@pytest.mark.parametrize(
    "statistics",
    [
        _statistics(SERVED, idle_us=5_000_000),
        _statistics(SERVED, idle_us=-1),
        _statistics({**SERVED, "broker": -1}),
        _statistics({**SERVED, "broker": 2}),
        _statistics({**SERVED, "fetch_state": "offset-wait"}),
        _statistics({}),
    ],
)
def test_a_partition_is_served_by_nobody(statistics: str):
    """It has no broker, one that is silent, or the client does not fetch it."""
    assert _looks(statistics) == [None] * (LOOKS - 1) + ["no broker serves t/0"]
    assert _looks(statistics, fetched=False) == [None] * LOOKS


@pytest.mark.parametrize("fetched", [True, False])
def test_a_client_without_brokers_is_stuck(*, fetched: bool):
    """Also one that has not been given partitions yet."""
    statistics = _statistics({**SERVED, "broker": -1}, known=False)
    assert _looks(statistics, fetched=fetched)[-1] == "it knows of no broker"


def test_looks_count_only_in_a_row():
    """One answer, and the count starts from zero."""
    watch, silent = FetchWatch(PERIOD_S), _statistics(SERVED, idle_us=-1)
    looks = [silent] * (LOOKS - 1) + [_statistics(SERVED)] + [silent] * (LOOKS - 1)
    for look, statistics in enumerate(looks):
        assert watch.look(statistics, [DATA], look * PERIOD_S) is None
    assert watch.look(silent, [DATA], len(looks) * PERIOD_S) is not None


def test_looks_that_come_together_count_as_one():
    """A member's thread resolves positions for seconds; what was said meanwhile is of before."""
    watch, unknown = FetchWatch(PERIOD_S), _statistics({})
    for late_s in range(LOOKS):
        assert watch.look(unknown, [DATA], 60 + late_s / 100) is None
    assert watch.look(_statistics(SERVED), [DATA], 60 + PERIOD_S) is None
    for look in range(2, LOOKS + 1):
        assert watch.look(unknown, [DATA], 60 + look * PERIOD_S) is None
    assert watch.look(unknown, [DATA], 60 + (LOOKS + 1) * PERIOD_S) == "no broker serves t/0"
