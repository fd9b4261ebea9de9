"""A cluster of three brokers that restart, fail and move under a load of everything at once.

`make chaos ARGS="-k three_brokers"` runs every scenario, and compares gaps with librdkafka's.
"""

import time
from collections.abc import Iterator

import pytest

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.schemas.topics import MIN_INSYNC_REPLICAS, TopicSpec, system_topics
from tests.support.brokers.asking import PATIENCE_S
from tests.support.brokers.scenarios import one_killed
from tests.support.brokers.site import REPLICAS, Site, running_site
from tests.support.processes.worker_process import COORDINATORS, PARTITIONS

NEW_TOPICS = 20

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),  # a loaded machine takes minutes for four brokers to start
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Three brokers with two workers, for all tests of the module."""
    with running_site(tmp_path_factory.mktemp("brokers")) as made:
        yield made


async def test_system_topics_outlive_a_broker(site: Site):
    """A worker creates its topics with three replicas, of which two must have each record."""
    names = [it.name for it in system_topics(coordinators=COORDINATORS, partitions=4)]
    admin = KafkaConnector(KafkaConfig(site.cluster.bootstrap)).admin()
    described, configs = await admin.describe_topics(names), await admin.topic_configs(names)
    await admin.close()
    for name in names:
        assert described[name].replica_count == REPLICAS.factor
        assert configs[name][MIN_INSYNC_REPLICAS] == str(REPLICAS.min_insync)


async def test_new_topics_are_found_whichever_broker_answers(site: Site, topic_name: str):
    """A broker that does not show a new topic yet is asked again; no topic is reported missing."""
    connector = KafkaConnector(KafkaConfig(site.cluster.bootstrap))
    for number in range(NEW_TOPICS):
        admin = connector.admin()
        name = f"{topic_name}-{number}"
        await admin.ensure_topics([TopicSpec(name, PARTITIONS, replicas=REPLICAS)])
        await admin.close()


async def test_nothing_is_lost_when_a_broker_is_killed(site: Site):
    """B, C, D, G, H: SIGKILL to one broker; nothing is lost or doubled.

    Commits, positions of groups, acknowledgements, the copy of a link, index and snapshots agree.
    """
    async with site.world() as world:
        began_s = time.monotonic()
        await one_killed(site.brokers, world)
        # An admin does not wait for a broker that has died until the end of its patience.
        assert world.asking.progress.gap_s(began_s, time.monotonic()) < PATIENCE_S / 2
