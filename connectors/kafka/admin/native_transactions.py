"""The brokers' own view of native transactions, over kafka-python's messages.

*Source*: KIP-664; connectors.ports.admin.

*Invariants*: a listing is complete: every partition of Kafka's transaction topic had the same
leader and leader epoch before and after the requests to all brokers.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, TypeVar

import kafka.errors as kafka_errors
from kafka.protocol.admin.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.errors import ALTER_CLUSTER, on_id, on_topic
from stilltide.connectors.kafka.raw.line import Line, RawClient, SharedLine, check, metadata_request
from stilltide.schemas.native.transactions import (
    ActiveProducer,
    DescribedTransaction,
    ListedTransaction,
)
from stilltide.schemas.rights import Operation
from stilltide.schemas.values import Offset, TopicPartition

T = TypeVar("T")

_COORDINATORS_TOPIC = "__transaction_state"
_METADATA_VERSION_MIN = 7
"""The first version of metadata with leader epochs; Kafka 2.1."""

_BY_AGE_VERSION_MIN = 1
"""The first version of listings that can filter by age; Kafka 3.8."""


class KafkaNativeTransactions:
    """A `NativeTransactions`. Connects at its first call, and may be used on that loop only."""

    def __init__(self, config: KafkaConfig, client_id: str) -> None:
        """Makes a view that is not connected.

        Raises:
            FatalError: the settings hold a TLS or SASL option that kafka-python lacks.
        """
        self._client = RawClient(SharedLine(config, client_id), f"view of transactions {client_id}")

    async def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        older_than_ms: int | None = None,
    ) -> list[ListedTransaction]:
        """Transactional ids of all coordinators; see `NativeTransactions.list_transactions`."""
        filters: dict[str, Any] = {
            # Plain strings: kafka-python writes the name of an enum's member, not its value.
            "state_filters": [str(state) for state in states],
            "producer_id_filters": list(producer_ids),
        }
        if older_than_ms is not None:
            filters |= {"duration_filter": older_than_ms, "min_version": _BY_AGE_VERSION_MIN}
        listed = await self._client.ask(
            lambda line: _list(line, filters), "cannot list transactions"
        )
        return sorted(listed)

    async def describe_transaction(self, transactional_id: str) -> DescribedTransaction | None:
        """The state of one transactional id; see `NativeTransactions.describe_transaction`."""
        action = f"cannot describe transactional id {transactional_id}"
        return await self._client.ask(lambda line: _describe(line, transactional_id), action)

    async def producers(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, list[ActiveProducer]]:
        """The producers that leaders remember; see `NativeTransactions.producers`."""
        named = ", ".join(map(str, partitions[:3])) + (", ..." if len(partitions) > 3 else "")  # noqa: PLR2004 - enough to recognise
        action = f"cannot see the producers of {named}"
        return await self._client.ask(lambda line: _producers(line, partitions), action)

    async def write_marker(
        self, data: TopicPartition, producer: ActiveProducer, *, committed: bool
    ) -> None:
        """Ends a transaction on one partition; see `NativeTransactions.write_marker`."""
        action = f"cannot end the transaction of producer {producer.producer_id} on {data}"
        await self._client.ask(
            lambda line: _mark(line, data, producer, committed=committed), action
        )

    async def close(self) -> None:
        """Ends the connections; safe to call twice."""
        await self._client.close()


async def _list(line: Line, filters: dict[str, Any]) -> list[ListedTransaction]:
    before = await _coordinators(line)
    listed: list[ListedTransaction] = []
    for node in sorted({leader for leader, _ in before.values()}):
        response = await line.send(ListTransactionsRequest(**filters), node)
        check(response.error_code)
        listed += [
            ListedTransaction(state.transactional_id, state.producer_id, state.transaction_state)
            for state in response.transaction_states
        ]
    if await _coordinators(line) != before:
        raise kafka_errors.NotCoordinatorError("coordinators moved while they were asked")
    return listed


async def _coordinators(line: Line) -> dict[int, tuple[int, int]]:
    """Leader and epoch of each partition of Kafka's transaction topic; empty without the topic."""
    request = metadata_request([_COORDINATORS_TOPIC], min_version=_METADATA_VERSION_MIN)
    (topic,) = (await line.send(request)).topics
    if topic.error_code == kafka_errors.UnknownTopicOrPartitionError.errno:
        return {}
    asked = on_topic(Operation.DESCRIBE, _COORDINATORS_TOPIC)
    check(topic.error_code, asked)
    for partition in topic.partitions:
        check(partition.error_code, asked)
    return {it.partition_index: (it.leader_id, it.leader_epoch) for it in topic.partitions}


async def _describe(line: Line, transactional_id: str) -> DescribedTransaction | None:
    asked = on_id(Operation.DESCRIBE, transactional_id)
    node = await line.transaction_coordinator(transactional_id, asked)
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    (state,) = (await line.send(request, node)).transaction_states
    if state.error_code == kafka_errors.TransactionalIdNotFoundError.errno:
        return None
    check(state.error_code, asked)
    return DescribedTransaction(
        state.transactional_id,
        node,
        state.transaction_state,
        state.producer_id,
        state.producer_epoch,
        state.transaction_timeout_ms,
        state.transaction_start_time_ms if state.transaction_start_time_ms >= 0 else None,
        tuple(
            sorted(
                TopicPartition(topic.topic, partition)
                for topic in state.topics
                for partition in topic.partitions
            )
        ),
    )


async def _producers(
    line: Line, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, list[ActiveProducer]]:
    by_leader: defaultdict[int, defaultdict[str, list[int]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for data in partitions:
        leader, _ = await line.leader(data)
        by_leader[leader][data.topic].append(data.partition)
    producers: dict[TopicPartition, list[ActiveProducer]] = {}
    for leader, by_topic in by_leader.items():
        topics = [
            DescribeProducersRequest.TopicRequest(name=name, partition_indexes=numbers)
            for name, numbers in by_topic.items()
        ]
        response = await line.send(DescribeProducersRequest(topics=topics), leader)
        for topic in response.topics:
            for partition in topic.partitions:
                check(partition.error_code, on_topic(Operation.READ, topic.name))
                data = TopicPartition(topic.name, partition.partition_index)
                producers[data] = sorted(map(_producer, partition.active_producers))
    return producers


def _producer(state: Any) -> ActiveProducer:
    start = state.current_txn_start_offset
    return ActiveProducer(
        state.producer_id,
        state.producer_epoch,
        state.last_sequence,
        state.last_timestamp,
        state.coordinator_epoch,
        Offset(start) if start >= 0 else None,
    )


async def _mark(
    line: Line, data: TopicPartition, producer: ActiveProducer, *, committed: bool
) -> None:
    leader, _ = await line.leader(data)
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    request = WriteTxnMarkersRequest(
        markers=[
            marker(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                transaction_result=committed,
                topics=[
                    marker.WritableTxnMarkerTopic(
                        name=data.topic, partition_indexes=[data.partition]
                    )
                ],
                # As Kafka's own tool: the epoch of the last marker, or 0 without one, so that the
                # broker refuses this marker if a newer coordinator has written since.
                coordinator_epoch=max(producer.coordinator_epoch, 0),
                # The rules before version 2 accept a marker with the producer epoch of the data.
                transaction_version=0,
            )
        ]
    )
    response = await line.send(request, leader)
    for result in response.markers:
        for topic in result.topics:
            for partition in topic.partitions:
                check(partition.error_code, ALTER_CLUSTER, on_topic(Operation.READ, topic.name))
