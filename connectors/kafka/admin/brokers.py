"""The brokers of a cluster with their racks, and the number of those that it knows.

*Source*: KIP-1073: `DescribeCluster` from version 2 on (Kafka 4.0) lists fenced brokers when asked.
confluent-kafka lists only the brokers that are up, and racks only in the call that may end the
process (see `connectors.kafka.admin.client`).

Waits until the brokers know what was created: topics, and partitions that a topic has gained.

*Source*: KRaft: the controller answers before the brokers have read its log, each broker at its own
pace. A client that then asks a broker which is behind gets "unknown topic or partition".

*Invariants*: the wait is bounded. A broker that cannot be asked does not count, since its clients
wait for it anyway.
"""

import time
from collections.abc import Mapping

import kafka.errors as kafka_errors
from kafka.protocol.admin.cluster import DescribeClusterRequest

from stilltide.connectors.errors import FatalError, RetriableError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.raw.line import Line, RawClient, SharedLine, check, metadata_request
from stilltide.connectors.ports.connector import closing
from stilltide.schemas.retry import SHOWN
from stilltide.schemas.topics import Broker

_FENCED_VERSION_MIN = 2


async def brokers_up(config: KafkaConfig) -> list[Broker]:
    """The brokers that are up, ascending by id.

    Raises:
        RetriableError: the cluster is away.
        FatalError: an option of TLS or SASL is one that only confluent-kafka has.
    """
    client = RawClient(SharedLine(config, "stilltide-brokers"), "a question about brokers")
    async with closing(client):
        return sorted(await client.ask(lambda line: line.brokers(), "cannot list the brokers"))


async def broker_version(config: KafkaConfig) -> str:
    """The version of Kafka, such as `4.3`, as a broker's protocol shows it; at most 4.4.

    Raises:
        RetriableError: the cluster is away.
        FatalError: an option of TLS or SASL is one that only confluent-kafka has.
    """

    async def attempt(line: Line) -> str:
        await line.nodes()
        return line.version

    async with closing(
        RawClient(SharedLine(config, "stilltide-brokers"), "a question for a version")
    ) as client:
        return await client.ask(attempt, "cannot ask for the version")


async def registered_brokers(config: KafkaConfig) -> int:
    """The number of registered brokers; 0 if the cluster cannot tell.

    Raises:
        RetriableError: the cluster is away.
    """
    try:
        client = RawClient(SharedLine(config, "stilltide-brokers"), "a count of brokers")
    except FatalError:
        return 0  # an option of TLS or SASL that only confluent-kafka has
    request = DescribeClusterRequest(include_fenced_brokers=True, min_version=_FENCED_VERSION_MIN)

    async def attempt(line: Line) -> int:
        try:
            response = await line.send(request)
        except kafka_errors.IncompatibleBrokerVersion:
            return 0
        if response.error_code == kafka_errors.ClusterAuthorizationFailedError.errno:
            return 0
        check(response.error_code)
        return len(response.brokers)

    async with closing(client):
        return await client.ask(attempt, "cannot count the brokers")


async def await_shown(config: KafkaConfig, counts: Mapping[str, int]) -> None:
    """Returns once each broker that can be asked names these partitions with their leaders.

    Args:
        config: the cluster.
        counts: by the name of a topic, the number of partitions that it has at least.

    Raises:
        RetriableError: a broker does not name one of them within the request time-out.
    """
    try:
        client = RawClient(SharedLine(config, "stilltide-created"), "a look for new topics")
    except FatalError:
        return  # an option of TLS or SASL that only confluent-kafka has
    deadline_s = time.monotonic() + client.timeout_s

    async def attempt(line: Line) -> tuple[int, str] | None:
        for node in await line.nodes():
            behind = await _behind(line, node, counts, deadline_s)
            if behind is not None:
                return node, behind
        return None

    async with closing(client):
        behind = await client.ask(attempt, "cannot look for new topics")
    if behind is not None:
        raise RetriableError(
            f"broker {behind[0]} of {client.address} does not know {behind[1]} yet",
            hint="look at the broker's log; then try again",
        )


async def _behind(
    line: Line, node: int, counts: Mapping[str, int], deadline_s: float
) -> str | None:
    """A topic that a broker does not know at the deadline; None: it knows all, or is away."""
    request = metadata_request(counts, max_version=8)
    while True:
        try:
            answer = await line.send(request, node)
        except kafka_errors.KafkaError:
            return None
        known = {
            topic.name: sum(one.error_code == 0 and one.leader_id >= 0 for one in topic.partitions)
            for topic in answer.topics
            if not topic.error_code
        }
        missing = next((name for name in counts if known.get(name, 0) < counts[name]), None)
        if missing is None or time.monotonic() > deadline_s:
            return missing
        await line.rest(SHOWN.wait_s())
