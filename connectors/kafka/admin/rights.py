"""The rights of this user, over kafka-python's messages.

*Source*: KIP-430 (brokers name the authorized operations of topics and groups);
connectors.ports.admin. A broker without an authorizer names all operations.
"""

import time
from collections.abc import Collection, Iterable
from types import MappingProxyType

import kafka.errors as kafka_errors
from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest

from stilltide.connectors.errors import NotAuthorizedError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.errors import Access, Caller, not_allowed, on_group, on_topic
from stilltide.connectors.kafka.raw.line import Line, RawClient, check, translate_raw
from stilltide.schemas.rights import Operation

_NUMBERS = MappingProxyType(
    {Operation.READ: 3, Operation.WRITE: 4, Operation.DELETE: 6, Operation.ALTER: 7}
)
"""Number of each operation in a broker's set; kafka-python shows the set of the numbers."""

_METADATA_VERSION, _GROUPS_VERSION = 8, 3
"""The first versions with authorized operations; Kafka 2.3. Later metadata have them elsewhere."""


class KafkaRights:
    """A `RightsAsker`. Connects at its first call, and may be used on that loop only."""

    def __init__(self, config: KafkaConfig) -> None:
        self._client = RawClient(config, "stilltide-rights", "an asker for rights")
        self._caller = config.caller

    async def missing(
        self, topics: Collection[str], operations: Collection[Operation], group: str
    ) -> list[NotAuthorizedError]:
        """The rights that are not there; see `RightsAsker.missing`."""
        deadline_s = time.monotonic() + self._client.timeout_s

        async def attempt(line: Line) -> list[Access]:
            lacking = await _of_topics(line, topics, operations)
            return lacking + await _of_group(line, group)

        try:
            found = await self._client.call(
                lambda line: line.persist(lambda: attempt(line), deadline_s)
            )
        except kafka_errors.KafkaError as error:
            action = "cannot ask for the rights"
            raise translate_raw(error, self._client.address, action) from error
        return [_said(self._caller, one) for one in found]

    async def close(self) -> None:
        """Ends the connections; safe to call twice."""
        await self._client.close()


async def _of_topics(
    line: Line, topics: Collection[str], operations: Iterable[Operation]
) -> list[Access]:
    response = await line.send(
        MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(topics)],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=True,
            min_version=_METADATA_VERSION,
            max_version=_METADATA_VERSION,
        )
    )
    lacking: list[Access] = []
    for topic in response.topics:
        refused = topic.error_code == kafka_errors.TopicAuthorizationFailedError.errno
        if topic.error_code and not refused:
            continue  # it does not exist, or has no leader now
        held = set[int]() if refused else topic.authorized_operations
        lacking += [on_topic(one, topic.name) for one in operations if _NUMBERS[one] not in held]
    return lacking


async def _of_group(line: Line, group: str) -> list[Access]:
    lacking = [on_group(Operation.READ, group)]
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group], min_version=4)
    (found,) = (await line.send(request)).coordinators
    if found.error_code == kafka_errors.GroupAuthorizationFailedError.errno:
        return lacking
    check(found.error_code)
    asked = DescribeGroupsRequest(
        groups=[group], include_authorized_operations=True, min_version=_GROUPS_VERSION
    )
    (described,) = (await line.send(asked, found.node_id)).groups
    if described.error_code == kafka_errors.GroupAuthorizationFailedError.errno:
        return lacking
    if described.error_code == kafka_errors.GroupIdNotFoundError.errno:
        return []
    check(described.error_code)
    return [] if _NUMBERS[Operation.READ] in described.authorized_operations else lacking


def _said(caller: Caller, access: Access) -> NotAuthorizedError:
    return not_allowed(caller, f"a right is missing at {caller}", access, "")
