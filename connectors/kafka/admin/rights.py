"""The rights of this user, over kafka-python's messages.

*Source*: KIP-430 (brokers name the authorized operations of topics and groups);
connectors.ports.admin; docs/protocols C17. A broker without an authorizer names all operations.
"""

from collections.abc import Collection, Iterable
from types import MappingProxyType

import kafka.errors as kafka_errors
from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest

from stilltide.connectors.errors import NotAuthorizedError
from stilltide.connectors.kafka.errors import Access, not_allowed, on_group, on_topic
from stilltide.connectors.kafka.raw.line import Line, RawClient, SharedLine, check, metadata_request
from stilltide.schemas.rights import Operation

_NUMBERS = MappingProxyType(
    {Operation.READ: 3, Operation.WRITE: 4, Operation.DELETE: 6, Operation.ALTER: 7}
)
"""Number of each operation in a broker's set; kafka-python shows the set of the numbers."""

_METADATA_VERSION, _GROUPS_VERSION = 8, 3
"""The first versions with authorized operations; Kafka 2.3. Later metadata have them elsewhere."""


class KafkaRights:
    """A `RightsAsker`. Connects at its first call, and may be used on that loop only."""

    def __init__(self, shared: SharedLine) -> None:
        self._client = RawClient(shared, "an asker for rights")
        self._caller = shared.config.caller

    async def missing(
        self, topics: Collection[str], operations: Collection[Operation], group: str
    ) -> list[NotAuthorizedError]:
        """The rights that are not there; see `RightsAsker.missing`."""

        async def attempt(line: Line) -> list[Access]:
            lacking = await _of_topics(line, topics, operations)
            return lacking + await _of_group(line, group)

        lacking = await self._client.ask(attempt, "cannot ask for the rights")
        where = f"a right is missing at {self._caller}"
        return [not_allowed(self._caller, where, access, "") for access in lacking]

    async def close(self) -> None:
        """Ends the connections; safe to call twice."""
        await self._client.close()


async def _of_topics(
    line: Line, topics: Collection[str], operations: Iterable[Operation]
) -> list[Access]:
    request = metadata_request(
        sorted(topics),
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=True,
        min_version=_METADATA_VERSION,
        max_version=_METADATA_VERSION,
    )
    response = await line.send(request)
    lacking: list[Access] = []
    for topic in response.topics:
        refused = topic.error_code == kafka_errors.TopicAuthorizationFailedError.errno
        if topic.error_code and not refused:
            continue  # it does not exist, or has no leader now
        granted = set[int]() if refused else topic.authorized_operations
        lacking += [on_topic(one, topic.name) for one in operations if _NUMBERS[one] not in granted]
    return lacking


async def _of_group(line: Line, group: str) -> list[Access]:
    lacking = [on_group(Operation.READ, group)]
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group], min_version=4)
    (coordinator,) = (await line.send(request)).coordinators
    if coordinator.error_code == kafka_errors.GroupAuthorizationFailedError.errno:
        return lacking
    check(coordinator.error_code)
    asked = DescribeGroupsRequest(
        groups=[group], include_authorized_operations=True, min_version=_GROUPS_VERSION
    )
    (described,) = (await line.send(asked, coordinator.node_id)).groups
    if described.error_code == kafka_errors.GroupAuthorizationFailedError.errno:
        return lacking
    if described.error_code == kafka_errors.GroupIdNotFoundError.errno:
        return []
    check(described.error_code)
    return [] if _NUMBERS[Operation.READ] in described.authorized_operations else lacking
