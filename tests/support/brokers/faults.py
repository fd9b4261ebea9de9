"""What befalls the brokers of a cluster of three, and how the cluster is in order again."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartition as ClientPartition

from stilltide.connectors.kafka.logs import ClientLog, LineLimit
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.schemas.values import TopicPartition

CALL_S = 10.0
LOOK_S = 0.2
WRONG_LEADER = "a leader that is not the first replica"
PREFERRED = 0
"""The election of each partition's first replica, as Kafka's protocol numbers it."""

ORDER_S = 300.0
"""Time within which a cluster is in order again, on a busy machine."""


class Brokers:
    """Strikes the brokers of a cluster; each method returns when the fault has happened.

    Args:
        cluster: three brokers that run.

    Attributes:
        ids: node ids of all brokers, ascending.
    """

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.ids = sorted(cluster.brokers)

    async def stop(self, node: int) -> None:
        """SIGTERM: the broker hands its leaders over before it ends."""
        await asyncio.to_thread(self._cluster.broker(node).stop)

    async def kill(self, *nodes: int) -> None:
        """SIGKILL."""
        brokers = [self._cluster.broker(node) for node in nodes]
        await asyncio.gather(*(asyncio.to_thread(it.kill) for it in brokers))

    async def start(self) -> None:
        """Starts what is down; returns when the cluster is in order again."""
        await asyncio.to_thread(self._cluster.start)
        await self.in_order()

    async def controller(self) -> int:
        """The broker that is the active controller."""
        return await asyncio.to_thread(self._cluster.controller)

    async def in_order(self) -> None:
        """Waits until all replicas are in sync and every partition's first replica leads."""
        await asyncio.to_thread(_await_order, self._cluster.bootstrap, self.ids)

    async def turn_leaders(self) -> None:
        """Makes the next broker the leader of each partition of three replicas."""
        await asyncio.to_thread(_turn_leaders, self._cluster.bootstrap)
        await self.in_order()

    async def reassign(self, *partitions: TopicPartition) -> None:
        """Moves partitions from broker to broker, and back; two replicas remain all the time."""
        one, two, three = self.ids
        for replicas in ([two, three], [three, one], [one, two, three]):
            wanted = dict.fromkeys(partitions, replicas)
            await asyncio.to_thread(_reassign, self._cluster.bootstrap, wanted)
            await self.in_order()


def _client(bootstrap: str) -> AdminClient:
    return AdminClient(
        {"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 500},
        logger=ClientLog("test-brokers", LineLimit()),
    )


def _admin(bootstrap: str) -> Any:
    """A client whose calls the type checker does not see: its class is put together at run time."""
    return KafkaAdminClient(bootstrap_servers=bootstrap.split(","))


def _await_order(bootstrap: str, nodes: Sequence[int]) -> None:
    client, pause = _client(bootstrap), threading.Event()
    wrong: list[str] = []
    for _ in range(round(ORDER_S / LOOK_S)):
        wrong = _disorder(client, nodes)
        if not wrong:
            return
        if wrong[0] == WRONG_LEADER:
            _elect(bootstrap)
        pause.wait(LOOK_S)
    raise AssertionError(f"not in order after {ORDER_S:g} s: {', '.join(wrong)}")


def _disorder(client: AdminClient, nodes: Sequence[int]) -> list[str]:
    """Brokers and partitions that are not in order."""
    try:
        found = client.list_topics(timeout=CALL_S)
    except KafkaException as error:
        return [str(error)]
    wrong = [f"broker {node}" for node in nodes if node not in found.brokers]
    partitions = [one for topic in found.topics.values() for one in topic.partitions.values()]
    behind = sum(len(one.isrs) < len(one.replicas) for one in partitions)
    if behind:
        wrong.append(f"{behind} partitions out of sync")
    if not wrong and any(one.leader != one.replicas[0] for one in partitions):
        wrong.append(WRONG_LEADER)
    return wrong


def _elect(bootstrap: str) -> None:
    """Makes the first replica of each partition its leader."""
    # confluent-kafka 2.16 cannot ask for all partitions: its argument None is a SystemError.
    admin = _admin(bootstrap)
    try:
        admin.elect_leaders(PREFERRED, raise_errors=False)
    finally:
        admin.close()


def _turn_leaders(bootstrap: str) -> None:
    found = _client(bootstrap).list_topics(timeout=CALL_S)
    _reassign(
        bootstrap,
        {
            TopicPartition(str(topic.topic), one.id): [*one.replicas[1:], one.replicas[0]]
            for topic in found.topics.values()
            for one in topic.partitions.values()
            if len(one.replicas) > 1
        },
    )


def _reassign(bootstrap: str, wanted: Mapping[TopicPartition, list[int]]) -> None:
    """Returns when no partition moves any more."""
    admin, pause = _admin(bootstrap), threading.Event()
    try:
        answers = admin.alter_partition_reassignments(
            {ClientPartition(*data): replicas for data, replicas in wanted.items()}
        )
        assert not any(answers.values()), answers
        for _ in range(round(ORDER_S / LOOK_S)):
            if not admin.list_partition_reassignments():
                return
            pause.wait(LOOK_S)
        raise AssertionError(f"partitions still move after {ORDER_S:g} s")
    finally:
        admin.close()
