"""What a subscription is made with; wrong options are refused before anything is opened."""

from typing import Any

import pytest

from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import Subscription
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


def test_needs_one_cluster_and_a_list_of_topics(connector: MemoryConnector):
    """Wrong calls are told apart from wrong clusters."""
    with pytest.raises(TypeError):
        Subscription(["orders"], group="g")
    with pytest.raises(TypeError):
        Subscription(["orders"], group="g", connector=connector, bootstrap_servers="b:1")
    with pytest.raises(TypeError):
        Subscription("orders", group="g", connector=connector)
