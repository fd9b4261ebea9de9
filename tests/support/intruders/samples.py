"""A valid record of each system topic, about a data partition and with numbers of one's choice."""

from collections.abc import Callable

from stilltide.schemas import settings
from stilltide.schemas.coordinator import markers, requests
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.coordinator.transactions import AddPartitions, Opened, Registered
from stilltide.schemas.native import aborted_index
from stilltide.schemas.native.aborted_index import Coverage
from stilltide.schemas.pending_ack import codec as acks
from stilltide.schemas.pending_ack.acknowledgements import AckQuestion, DescribeAcks
from stilltide.schemas.replication import positions, signals
from stilltide.schemas.replication import requests as group_requests
from stilltide.schemas.replication.positions import Bucket, BucketKey
from stilltide.schemas.replication.requests import AtOffset, GroupQuestion, ResetGroup
from stilltide.schemas.replication.signals import Applied, AppliedKey
from stilltide.schemas.service.envelopes import Request, Response
from stilltide.schemas.snapshots import requests as snapshot_requests
from stilltide.schemas.snapshots import snapshots
from stilltide.schemas.snapshots.snapshots import SnapshotEnd
from stilltide.schemas.topics import (
    ABORTED_INDEX,
    ACK_REQUESTS,
    GROUP_REQUESTS,
    OPERATOR_ACK_REQUESTS,
    OPERATOR_REQUESTS,
    PENDING_ACK_LOG,
    REPLICATION_MARKERS,
    REPLICATION_POSITIONS,
    SETTINGS,
    SNAPSHOT_REQUESTS,
    TXN_LOG,
    TXN_MARKERS,
    TXN_REQUESTS,
    TXN_RESPONSES,
    TXN_SNAPSHOTS,
)
from stilltide.schemas.values import (
    ClusterName,
    EndOffset,
    Offset,
    SubscriptionId,
    TopicPartition,
    TxnId,
)

Sample = tuple[bytes, bytes]
"""Key and value."""

CLIENT = b"a stranger's id."
"""The id of a client that nobody runs."""

_ID = bytes(16)
_INCARNATION = bytes(positions.INCARNATION_BYTES)


def _request(data: TopicPartition, number: int) -> Sample:
    body = AddPartitions(number, (Registered(data, EndOffset(number), _ID),))
    return CLIENT, requests.encode_request(Request(CLIENT, 1, 0, 0, body))


def _response(_data: TopicPartition, number: int) -> Sample:
    return CLIENT, requests.encode_response(Response(number, 0, Opened(number, 1)))


def _marker(data: TopicPartition, number: int) -> Sample:
    txn, end = TxnId(0, number), EndOffset(number)
    marker = Marker(data, txn, True, EndOffset(0), end, 1, _ID)
    return markers.encode_key(data, txn), markers.encode_value(marker)


def _snapshot(data: TopicPartition, number: int) -> Sample:
    end = SnapshotEnd(_ID, EndOffset(number), EndOffset(0), 1, (), {}, {}, EndOffset(0), ())
    return snapshots.end_key(data), snapshots.encode_end(end)


def _ack_request(data: TopicPartition, number: int) -> Sample:
    body = AckQuestion(SubscriptionId(data, "g"), DescribeAcks())
    return CLIENT, acks.encode_request(Request(CLIENT, min(number, 2**63) or 1, 0, 0, body))


def _snapshot_request(data: TopicPartition, number: int) -> Sample:
    request = Request(CLIENT, number, 0, 0, data)
    return CLIENT, snapshot_requests.encode_request(request)


def _group_request(data: TopicPartition, number: int) -> Sample:
    question = GroupQuestion(data, "g", ResetGroup(AtOffset(Offset(number)), 0, number))
    request = Request(CLIENT, number, 0, 0, question)
    return CLIENT, group_requests.encode_request(request)


def _signal(data: TopicPartition, number: int) -> Sample:
    value = Applied(number, _INCARNATION, Offset(number), None, None, {})
    key = AppliedKey(data, ClusterName("\x1b[2J"), "g")
    return signals.encode_key(key), signals.encode_value(value)


def _bucket(data: TopicPartition, number: int) -> Sample:
    at, end = Offset(number), EndOffset(number)
    bucket = Bucket(_INCARNATION, _INCARNATION, at, end, at, end, {})
    key = BucketKey(ClusterName("\x1b[2J"), ClusterName("nowhere"), data, number)
    return positions.encode_key(key), positions.encode_bucket(bucket)


def _coverage(data: TopicPartition, number: int) -> Sample:
    found = Coverage(_ID, Offset(0), EndOffset(number), EndOffset(number), 0, 0)
    return aborted_index.coverage_key(data), aborted_index.encode_coverage(found)


def _setting(data: TopicPartition, number: int) -> Sample:
    key, value = settings.encode(settings.subscription_setting(data.topic, "g"), True, at_ms=number)
    assert value is not None
    return key, value


SAMPLES: dict[str, Callable[[TopicPartition, int], Sample]] = {
    TXN_REQUESTS: _request,
    OPERATOR_REQUESTS: _request,
    TXN_LOG: _request,
    TXN_RESPONSES: _response,
    TXN_MARKERS: _marker,
    TXN_SNAPSHOTS: _snapshot,
    ACK_REQUESTS: _ack_request,
    OPERATOR_ACK_REQUESTS: _ack_request,
    PENDING_ACK_LOG: _ack_request,
    SNAPSHOT_REQUESTS: _snapshot_request,
    GROUP_REQUESTS: _group_request,
    REPLICATION_MARKERS: _signal,
    REPLICATION_POSITIONS: _bucket,
    ABORTED_INDEX: _coverage,
    SETTINGS: _setting,
}
"""Makes a record of each system topic."""
