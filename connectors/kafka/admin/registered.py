"""The brokers of a cluster with their racks, and the number of those that it knows.

*Source*: KIP-1073: `DescribeCluster` from version 2 on (Kafka 4.0) lists fenced brokers when asked.
confluent-kafka lists only the brokers that are up, and racks only in the call that may end the
process (see `connectors.kafka.admin.client`).
"""

import time

import kafka.errors as kafka_errors
from kafka.protocol.admin.cluster import DescribeClusterRequest

from stilltide.connectors.errors import FatalError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.raw.errors import translate_raw
from stilltide.connectors.kafka.raw.line import Line, RawClient
from stilltide.schemas.topics import Broker

_FENCED_VERSION_MIN = 2


async def brokers_up(config: KafkaConfig) -> list[Broker]:
    """The brokers that are up, ascending by id.

    Raises:
        RetriableError: the cluster is away.
        FatalError: an option of TLS or SASL is one that only confluent-kafka has.
    """
    client = RawClient(config, "stilltide-brokers", "a question about brokers")
    deadline_s = time.monotonic() + client.timeout_s
    try:
        found = await client.call(lambda line: line.persist(line.brokers, deadline_s))
    except kafka_errors.KafkaError as error:
        raise translate_raw(error, client.address, "cannot list the brokers") from error
    finally:
        await client.close()
    return sorted(found)


async def registered_brokers(config: KafkaConfig) -> int:
    """The number of registered brokers; 0 if the cluster cannot tell.

    Raises:
        RetriableError: the cluster is away.
    """
    try:
        client = RawClient(config, "stilltide-brokers", "a count of brokers")
    except FatalError:
        return 0  # an option of TLS or SASL that only confluent-kafka has
    deadline_s = time.monotonic() + client.timeout_s

    async def attempt(line: Line) -> int:
        request = DescribeClusterRequest(
            include_fenced_brokers=True, min_version=_FENCED_VERSION_MIN
        )
        response = await line.send(request)
        if response.error_code:
            raise kafka_errors.for_code(response.error_code)
        return len(response.brokers)

    try:
        return await client.call(lambda line: line.persist(lambda: attempt(line), deadline_s))
    except (kafka_errors.IncompatibleBrokerVersion, kafka_errors.ClusterAuthorizationFailedError):
        return 0
    except kafka_errors.KafkaError as error:
        raise translate_raw(error, client.address, "cannot count the brokers") from error
    finally:
        await client.close()
