"""Partitions that have no leader for a while, as after a broker was frozen or has died.

What a user saw: a broker was frozen again and again. A member of a group was given partitions in a
moment in which no broker led them; its subscription ended for good with "cannot resolve the
positions of group", `_NOENT`, although the brokers were back a second later.
"""

import asyncio

import pytest
from confluent_kafka import Consumer

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.kafka.admin.admin import LOG_END, LOG_START, log_bounds
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.schemas.values import TopicPartition
from tests.support.processes.wavering_broker import TOPIC, WaveringBroker


@pytest.mark.parametrize("spec", [LOG_START, LOG_END])
async def test_a_member_asks_again_for_the_bounds_of_its_partitions(spec: object):
    """The error passes by itself, so the member goes on trying, and names partition and cluster."""
    async with WaveringBroker(seed=1) as broker:
        broker.leads = False
        config = KafkaConfig(broker.bootstrap, request_timeout_s=1)
        with pytest.raises(RetriableError, match=f"names no leader of {TOPIC}/0") as raised:
            await asyncio.to_thread(log_bounds, config, [TopicPartition(TOPIC, 0)], spec)
    assert broker.bootstrap in str(raised.value)


async def test_partitions_that_a_broker_does_not_show_are_no_added_ones():
    """A broker that is behind shows fewer partitions: the member asks again, and does not guess.

    Its group would begin at the end; partitions that were taken for added ones would be read from
    their start.
    """
    async with WaveringBroker(seed=1) as broker:
        config = KafkaConfig(broker.bootstrap, request_timeout_s=10)
        reader = KafkaConnector(config).group_reader("behind", "group", from_start=False)
        await reader.subscribe([TOPIC], assigned=lambda _: None, revoked=lambda _: None)

        def ask(consumer: Consumer) -> None:
            with pytest.raises(RetriableError, match=f"does not show {TOPIC}/3 yet, which group"):
                reader._member._added(consumer, {TopicPartition(TOPIC, 3)})

        await reader._thread.submit(ask)
        await reader.close()
