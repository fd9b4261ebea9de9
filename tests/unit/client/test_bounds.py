"""What applications may not ask of the client library: refused before anything is sent."""

import math
from dataclasses import fields
from typing import Any

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.pipeline.client.bounds import (
    TIMEOUT_MS_MAX,
    TransactionKeywords,
    TransactionOptions,
    transaction_timeout_ms,
)
from stilltide.pipeline.core.coordinator.pool import POOLED_MS_MAX
from stilltide.pipeline.errors import ConfigError, RefusedError, SystemTopicError
from stilltide.schemas.coordinator.requests import decode_request, encode_request
from stilltide.schemas.coordinator.transactions import Open
from stilltide.schemas.service.envelopes import Request
from stilltide.schemas.topics import PREFIX, TXN_LOG, TXN_MARKERS, TXN_REQUESTS
from stilltide.schemas.values import TopicPartition
from tests.support.coordinator.worker_client import visible


def records(broker: MemoryBroker, topic: str) -> int:
    """How many a topic of the coordinators holds."""
    return sum(len(broker.records(TopicPartition(topic, number))) for number in (0, 1))


@pytest.mark.parametrize("partition", [None, 0])
@pytest.mark.parametrize("name", [TXN_LOG, TXN_MARKERS, PREFIX, f"{PREFIX}of-a-later-version"])
async def test_no_record_is_sent_to_a_system_topic(
    broker: MemoryBroker,
    connector: MemoryConnector,
    client: TransactionClient,
    name: str,
    partition: int | None,
):
    """A foreign record there would end workers: nothing is sent, and the transaction goes on."""
    logged = records(broker, TXN_LOG)
    async with client.transaction() as txn:
        with pytest.raises(SystemTopicError, match="belongs to Stilltide") as caught:
            await txn.send(name, b"x", partition=partition)
        assert (caught.value.topic, bool(caught.value.hint)) == (name, True)
        assert (records(broker, TXN_REQUESTS), records(broker, TXN_LOG)) == (0, logged)
        await txn.send("orders", b"o", partition=0)
    assert txn.state == "committed"
    assert await visible(connector) == {("orders", b"o"): 1}


def test_no_subscription_is_to_a_system_topic(connector: MemoryConnector):
    """Nor is any message of one acknowledged: the subscription is refused before it opens."""
    for acknowledgements in (False, True):
        with pytest.raises(SystemTopicError, match="belongs to Stilltide") as caught:
            Subscription(
                ["orders", TXN_LOG],
                group="billing",
                connector=connector,
                acknowledgements=acknowledgements,
            )
        assert caught.value.topic == TXN_LOG


@pytest.mark.parametrize(
    "timeout_s", [-1.0, 0.0, 0.0009, math.nan, math.inf, -math.inf, 2.0**64, 1e308]
)
async def test_time_outs_out_of_range_are_refused(
    broker: MemoryBroker,
    client: TransactionClient,
    connector: MemoryConnector,
    timeout_s: float,
):
    """By name, before the coordinator is asked; the client works on."""
    with pytest.raises(ConfigError, match="`timeout_s` is"):
        client.transaction(timeout_s=timeout_s)
    with pytest.raises(ConfigError, match="`transaction_timeout_s` is"):
        TransactionClient(connector=connector, transaction_timeout_s=timeout_s)
    assert records(broker, TXN_REQUESTS) == 0
    async with client.transaction() as txn:
        await txn.send("orders", b"o")
    assert txn.state == "committed"


async def test_a_time_out_that_the_cluster_does_not_allow_is_its_coordinators_to_refuse(
    client: TransactionClient,
):
    """The client does not know the cluster's limit: what a request holds is asked."""
    with pytest.raises(RefusedError, match="time-out of 1000000000000 ms"):
        async with client.transaction(timeout_s=1e9) as txn:
            await txn.send("orders", b"o")
    async with client.transaction(timeout_s=1) as txn:
        await txn.send("orders", b"o")
    assert txn.state == "committed"


def test_the_longest_time_out_fits_into_a_request():
    """With what is added for transactions opened ahead (C9)."""
    assert transaction_timeout_ms("t", 0.001) == 1
    body = Open(TIMEOUT_MS_MAX + POOLED_MS_MAX, 1, ())
    request = Request(bytes(17), 1, 0, 0, body)
    assert decode_request(encode_request(request)).body == body


@pytest.mark.parametrize("option", ["request_timeout_s", "resend_s", "open_transactions_max"])
@pytest.mark.parametrize("value", [0, -1, math.nan])
def test_what_calls_would_wait_for_without_end_is_refused(
    connector: MemoryConnector, option: str, value: float
):
    """A limit that is not above 0 is refused by name."""
    options: dict[str, Any] = {option: value}
    with pytest.raises(ConfigError, match=option):
        TransactionClient(connector=connector, **options)
    with pytest.raises(ConfigError, match="undecided_timeout_s"):
        Subscription(["orders"], group="g", connector=connector, undecided_timeout_s=value)


def test_every_option_of_a_client_can_be_given_by_name():
    """The names that a type checker accepts are the options that are documented."""
    names = {it.name for it in fields(TransactionOptions)}
    assert set(TransactionKeywords.__annotations__) == names


def test_an_unknown_option_of_a_client_is_refused_as_by_any_function():
    """A misspelt name is a TypeError that repeats the name."""
    options: Any = {"lingers_ms": 1}
    with pytest.raises(TypeError, match="unexpected keyword argument 'lingers_ms'"):
        TransactionClient("127.0.0.1:1", **options)
