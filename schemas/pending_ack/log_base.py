"""Codec of a pending-ack store's whole state, which a base holds.

*Source*: docs/protocols C8. A state may be large, so it is encoded item by item, and the caller can
yield to the event loop in between: the joined bytes of messages join their repeated fields.
"""

from collections.abc import Iterator

from google.protobuf.message import DecodeError as ProtobufDecodeError

from stilltide.schemas.errors import DecodeError
from stilltide.schemas.pending_ack.acknowledgements import (
    AckState,
    BaseCoordinator,
    BaseSubscription,
)
from stilltide.schemas.pending_ack.codec import acks_of, acks_pb
from stilltide.schemas.v1 import pending_ack_pb2 as pb
from stilltide.schemas.v1.requests_pb2 import RegisteredSubscription
from stilltide.schemas.values import EndOffset, SubscriptionId, TopicPartition


def encode_state(state: AckState) -> Iterator[bytes]:
    """The bytes of a state in parts, which the caller joins; one part for each item."""
    yield pb.PendingAckState(now_ms=state.now_ms).SerializeToString()
    for one in state.subscriptions:
        yield pb.PendingAckState(subscriptions=(_subscription_pb(one),)).SerializeToString()
    for one in state.coordinators:
        yield pb.PendingAckState(coordinators=(_coordinator_pb(one),)).SerializeToString()


def decode_state(data: bytes) -> AckState:
    """The state in the joined bytes of the parts; raises `DecodeError` for other bytes."""
    try:
        message = pb.PendingAckState.FromString(data)
    except ProtobufDecodeError as error:
        raise DecodeError("not a pending-ack log's state", detail=str(error)) from error
    return AckState(
        message.now_ms,
        tuple(map(_subscription, message.subscriptions)),
        tuple(map(_coordinator, message.coordinators)),
    )


def _subscription_pb(one: BaseSubscription) -> pb.SubscriptionState:
    (topic, partition), group = one.subscription
    return pb.SubscriptionState(
        subscription=RegisteredSubscription(topic=topic, partition=partition, group=group),
        acks=acks_pb(one.acks),
        committed=one.committed,
        replaced=[pb.ReplacedMember(member=member, at_ms=at_ms) for member, at_ms in one.replaced],
        last_seen_ms=one.last_seen_ms,
        client_key=one.client_key,
        client_name=one.client_name,
        topic_id=one.topic_id,
    )


def _subscription(one: pb.SubscriptionState) -> BaseSubscription:
    named = one.subscription
    return BaseSubscription(
        SubscriptionId(TopicPartition(named.topic, named.partition), named.group),
        acks_of(one.acks),
        EndOffset(one.committed),
        tuple((replaced.member, replaced.at_ms) for replaced in one.replaced),
        one.last_seen_ms,
        one.client_key,
        one.client_name,
        one.topic_id,
    )


def _coordinator_pb(one: BaseCoordinator) -> pb.CoordinatorState:
    return pb.CoordinatorState(
        coordinator=one.coordinator,
        low_watermark=one.low_watermark,
        settled=[pb.SequenceRange(first=first, end=end) for first, end in one.settled],
    )


def _coordinator(one: pb.CoordinatorState) -> BaseCoordinator:
    settled = tuple((run.first, run.end) for run in one.settled)
    return BaseCoordinator(one.coordinator, one.low_watermark, settled)
