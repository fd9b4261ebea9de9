import math

import pytest

from stilltide.connectors.errors import FatalError
from stilltide.connectors.kafka.config import (
    KafkaConfig,
    admin_options,
    group_options,
    producer_options,
    reader_options,
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("request_timeout_s", 0),
        ("delivery_timeout_s", math.nan),
        ("session_timeout_s", math.inf),
        ("writer_records_max", 0),
        ("reader_records_max", -1),
    ],
)
def test_a_value_out_of_bounds_is_refused_with_its_bounds(name: str, value: float):
    """The error names the setting and the range."""
    with pytest.raises(FatalError, match=rf"{name} is .*\.\."):
        KafkaConfig("localhost:9092", **{name: value})


def test_an_empty_address_is_refused():
    """No client is made that would wait for nobody."""
    with pytest.raises(FatalError, match="address"):
        KafkaConfig(" ")


@pytest.mark.parametrize("name", ["acks", "isolation.level", "group.id", "enable.idempotence"])
def test_an_option_that_a_promise_rests_on_is_refused(name: str):
    """The error names it."""
    with pytest.raises(FatalError, match=name):
        KafkaConfig("localhost:9092", extra={name: "x"})


def test_extra_options_reach_every_client():
    """Those of TLS, for example."""
    config = KafkaConfig("localhost:9092", extra={"security.protocol": "SSL"})
    for options in (
        producer_options(config, "c", 0),
        reader_options(config, "c", committed=True),
        group_options(config, "c", "g", 2.0),
        admin_options(config),
    ):
        assert options["security.protocol"] == "SSL"
        assert options["bootstrap.servers"] == "localhost:9092"


def test_promises_are_spelled_out():
    """Options that the ports' promises rest on are passed whatever the library's defaults are."""
    config = KafkaConfig("localhost:9092", delivery_timeout_s=0.5)
    writes = producer_options(config, "c", 0.5)
    assert (writes["acks"], writes["enable.idempotence"], writes["linger.ms"]) == ("all", True, 0.5)
    assert writes["request.timeout.ms"] <= writes["delivery.timeout.ms"] == 500
    reads = reader_options(config, "c", committed=False)
    assert reads["isolation.level"] == "read_uncommitted"
    assert reads["auto.offset.reset"] == "error"
    assert reads["enable.auto.commit"] is False
    assert reads["fetch.message.max.bytes"] > 5 * 1024 * 1024
    assert group_options(config, "c", "g", 2.0)["isolation.level"] == "read_committed"


def test_a_group_member_looks_at_its_topics_at_the_age():
    """C13: librdkafka asks for metadata at the age, within its own bounds."""
    name = "topic.metadata.refresh.interval.ms"
    config = KafkaConfig("here:9092")
    ages = [group_options(config, "c", "g", age_s)[name] for age_s in (0.001, 2.0, 1e9)]
    assert ages == [10, 2000, 3_600_000]
