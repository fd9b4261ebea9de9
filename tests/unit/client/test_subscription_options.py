"""What a subscription is made with; wrong options are refused before anything is opened."""

from dataclasses import fields
from math import inf
from typing import Any

import pytest

from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import Subscription
from stilltide.pipeline.client.subscription_options import SubscriptionKeywords, SubscriptionLimits
from stilltide.pipeline.drivers.subscription.options import SubscriptionOptions
from stilltide.pipeline.errors import ConfigError


@pytest.mark.parametrize(
    "option",
    ["buffer_records_max", "undecided_records_max", "unavailable_timeout_s", "undecided_timeout_s"],
)
def test_bounds_are_checked(connector: MemoryConnector, option: str):
    """A limit or time-out of 0 is refused by name before anything is opened."""
    options: dict[str, Any] = {option: 0}
    with pytest.raises(ConfigError, match=option):
        Subscription(["orders"], group="billing", connector=connector, **options)


def test_needs_one_cluster_and_a_topic(connector: MemoryConnector):
    """Wrong calls are told apart from wrong clusters."""
    with pytest.raises(TypeError):
        Subscription(["orders"], group="g")
    with pytest.raises(TypeError):
        Subscription(["orders"], group="g", connector=connector, bootstrap_servers="b:1")
    with pytest.raises(TypeError):
        Subscription([], group="g", connector=connector)


@pytest.mark.parametrize(
    ("limit_s", "start_s", "answer_s"), [(5.0, 5.0, 5.0), (300.0, 60.0, 300.0), (inf, 60.0, 60.0)]
)
def test_only_the_entry_waits_a_minute_at_most(limit_s: float, start_s: float, answer_s: float):
    """An answer of a pending-ack store is awaited for the whole limit; without one, repeatedly."""
    options = SubscriptionOptions(["orders"], "billing", unavailable_timeout_s=limit_s)
    assert (options.start_timeout_s, options.answer_timeout_s) == (start_s, answer_s)


def test_an_unknown_option_is_refused_as_by_any_function(connector: MemoryConnector):
    """A misspelt name is a TypeError that repeats the name."""
    options: Any = {"buffer_record_max": 1}
    with pytest.raises(TypeError, match="unexpected keyword argument 'buffer_record_max'"):
        Subscription(["orders"], group="g", connector=connector, **options)


def test_every_limit_can_be_given_by_name():
    """The names that a type checker accepts are the limits that are documented."""
    assert set(SubscriptionKeywords.__annotations__) == {
        it.name for it in fields(SubscriptionLimits)
    }


@pytest.mark.parametrize(("since_ms", "from_start"), [(-1, True), (5, False)])
def test_a_time_to_begin_at_is_checked(
    connector: MemoryConnector,
    since_ms: int,
    from_start: bool,  # noqa: FBT001 - a parameter of the test
):
    """A time before 1970, and two places to begin at, are refused by name."""
    with pytest.raises(ConfigError, match="since_ms"):
        Subscription(
            ["orders"], group="g", connector=connector, since_ms=since_ms, from_start=from_start
        )
