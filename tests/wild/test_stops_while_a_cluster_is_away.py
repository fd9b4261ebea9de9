"""`stilltide replicate` took ten seconds to end by Ctrl-C while a cluster was away.

A longer time-out of requests made that longer, and a worker took as long. With a time-out of more
than ten seconds, links and publishes did not begin at all: the client library refused the options.
"""

import asyncio
import signal
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from stilltide.connectors.kafka.config import (
    KafkaConfig,
    admin_options,
    copy_options,
    group_options,
    producer_options,
    reader_options,
    transactional_options,
)
from tests.support.links.link_process import Clusters
from tests.support.looks import between_looks
from tests.support.processes.child import START_S, Child

END_S = 6.0
"""Two seconds, on a machine that is three times as slow."""

LEAST_S, MOST_S = 0.1, 300.0
"""Bounds of the time-out of requests."""


async def end_s(child: Child) -> float:
    """How long a program takes to end by Ctrl-C, which is no failure."""
    now_s = asyncio.get_running_loop().time
    began_s = now_s()
    child.send(signal.SIGINT)
    assert await child.ended() == 0, child.said
    return now_s() - began_s


async def cluster_away(child: Child) -> None:
    """Returns once a program has said that a cluster is away."""
    async with asyncio.timeout(START_S):
        while "cluster_away" not in child.said:
            await between_looks()


async def test_ctrl_c_ends_programs_whose_cluster_is_frozen(
    clusters: Clusters, topic_name: str, tmp_path: Path
):
    """Link, publish and worker end within two seconds, whatever the time-out of requests is."""
    for name in clusters.addresses:
        await clusters.create(name, topic_name)
    to = ("--bootstrap-servers", clusters.addresses["b"])
    programs = (
        ("worker", "--cluster", "b", *to, "--coordinators", "1", "--web-port", "0"),
        ("publish", topic_name, "--to", f"{topic_name}.committed", *to),
        ("replicate", "--from", "a", "--to", "b", "--topics", topic_name),
    )
    named = " ".join(f"{name}={address}" for name, address in clusters.addresses.items())
    variables = {"STILLTIDE_REQUEST_TIMEOUT_S": "60"}
    children = [
        Child([sys.executable, "-m", "stilltide", *words], tmp_path / words[0], variables | more)
        for words, more in zip(programs, ({}, {}, {"STILLTIDE_CLUSTERS": named}), strict=True)
    ]
    try:
        await asyncio.gather(*(child.spawn() for child in children))
        await asyncio.gather(*(child.announced() for child in children))
        clusters.brokers["b"].pause()
        await asyncio.gather(*map(cluster_away, children))
        took = await asyncio.gather(*map(end_s, children))
    finally:
        clusters.brokers["b"].resume()
        await asyncio.gather(*(child.kill() for child in children))
    assert max(took) < END_S, took


@pytest.mark.parametrize("timeout_s", [LEAST_S, MOST_S])
def test_the_client_library_takes_every_time_out_of_requests(timeout_s: float):
    """A time-out that the settings allow is one with which every client can be made."""
    config = KafkaConfig("127.0.0.1:1", request_timeout_s=timeout_s)
    quiet = {"log_level": 0}
    for options in (
        producer_options(config, "test", 0),
        transactional_options(config, "test"),
        copy_options(config, "test"),
    ):
        Producer(options | quiet)
    for options in (
        reader_options(config, "test", committed=True),
        group_options(config, "test", "group", 1.0),
    ):
        Consumer(options | quiet).close()
    AdminClient(admin_options(config) | quiet)
