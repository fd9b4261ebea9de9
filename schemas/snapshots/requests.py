"""Requests for a snapshot and their answers: values and codec.

*Source*: docs/protocols E7, A. Values of snapshot-requests and txn-responses are framed batches;
the key is the client id. A repeated request is served again, which is harmless: a request only
determines when a snapshot is written.
"""

from typing import NamedTuple

from stilltide.schemas.messages import Fields, from_bytes
from stilltide.schemas.service.envelopes import (
    UNKNOWN_ANSWER,
    Refused,
    Request,
    Response,
    Unreadable,
    arrived,
    check_asker,
    check_numbered,
)
from stilltide.schemas.topics import data_partition
from stilltide.schemas.v1 import snapshot_requests_pb2 as pb
from stilltide.schemas.values import EndOffset, TopicPartition

SnapshotRequest = Request[TopicPartition | Unreadable]
"""For a snapshot of a data partition by a probe that begins after the request arrived."""


class SnapshotSummary(NamedTuple):
    """Answer: a summary of the data partition's durable snapshot.

    Attributes:
        topic_id: Kafka topic id to which the offsets belong (E8).
        max_read_position: M, the offset below which every transaction has ended.
        aborted_count: number of aborted transactions in the snapshot's parts and end.
    """

    topic_id: bytes
    max_read_position: EndOffset
    aborted_count: int


_SUMMARY = Fields(SnapshotSummary, pb.SnapshotSummary)
SnapshotAnswer = SnapshotSummary | Refused


def encode_request(request: SnapshotRequest) -> bytes:
    """Bytes of one request, to be framed with others."""
    assert isinstance(request.body, TopicPartition), "an unreadable request is never sent"
    topic, partition = request.body
    return pb.SnapshotRequest(
        client_id=request.client_id,
        number=request.number,
        reply_partition=request.reply_partition,
        topic=topic,
        partition=partition,
    ).SerializeToString()


def decode_request(data: bytes) -> SnapshotRequest:
    """One request as it arrives.

    Raises:
        DecodeError: other bytes, or no client id or number, so that nobody can be answered.
    """
    message = from_bytes(pb.SnapshotRequest, data, "a request for a snapshot")
    check_asker(message, "a request for a snapshot")
    body = arrived(message, _body_of)
    return Request(message.client_id, message.number, 0, message.reply_partition, body)


def _body_of(message: pb.SnapshotRequest) -> TopicPartition:
    return data_partition(message.topic, message.partition)


def encode_response(response: Response[SnapshotAnswer]) -> bytes:
    """Bytes of one answer, to be framed with others for the same client."""
    message = pb.SnapshotResponse(number=response.number, partition=response.owner)
    match response.answer:
        case SnapshotSummary():
            message.summary.SetInParent()
            message.summary.CopyFrom(_SUMMARY.message(response.answer))
        case Refused(reason):
            message.refused.reason = reason
    return message.SerializeToString()


def decode_response(data: bytes) -> Response[SnapshotAnswer]:
    """One answer; raises `DecodeError` for other bytes."""
    message = from_bytes(pb.SnapshotResponse, data, "an answer of a snapshot writer")
    check_numbered(message)
    return Response(message.number, message.partition, _answer_of(message))


def _answer_of(message: pb.SnapshotResponse) -> SnapshotAnswer:
    match message.WhichOneof("body"):
        case "summary":
            return _SUMMARY.value(message.summary)
        case "refused":
            return Refused(message.refused.reason)
        case _:  # C10: one request fails, not its client
            return UNKNOWN_ANSWER
