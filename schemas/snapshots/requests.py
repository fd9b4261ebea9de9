"""Requests for a snapshot and their answers: values and codec.

*Source*: docs/protocols E7, A. Values of snapshot-requests and txn-responses are framed batches;
the key is the client id. A repeated request is served again, which is harmless: a request only
determines when a snapshot is written.
"""

from typing import NamedTuple

from stilltide.schemas.coordinator.requests import refused_client
from stilltide.schemas.coordinator.transactions import RefusalCode, Refused
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.messages import NO_NUMBER, Fields, from_bytes
from stilltide.schemas.topics import is_topic_name
from stilltide.schemas.v1 import snapshot_requests_pb2 as pb
from stilltide.schemas.values import PARTITION_MAX, EndOffset, TopicPartition


class SnapshotRequest(NamedTuple):
    """Request for a snapshot of `data` by a probe that begins after the request arrived.

    `refusal` is why the request is refused whatever else it says (C10); None: it is not.
    """

    client_id: bytes
    number: int
    reply_partition: int
    data: TopicPartition
    refusal: Refused | None = None


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


class SnapshotResponse(NamedTuple):
    """One answer to one request; `partition` is the request's partition of snapshot-requests."""

    number: int
    partition: int
    answer: SnapshotAnswer


def snapshot_request(
    client_id: bytes, number: int, _acked_through: int, reply_partition: int, data: TopicPartition
) -> SnapshotRequest:
    """A client's request; writers remember no answers, so `_acked_through` is not used."""
    return SnapshotRequest(client_id, number, reply_partition, data)


def encode_request(request: SnapshotRequest) -> bytes:
    """Bytes of one request, to be framed with others."""
    return pb.SnapshotRequest(
        client_id=request.client_id,
        number=request.number,
        reply_partition=request.reply_partition,
        topic=request.data.topic,
        partition=request.data.partition,
    ).SerializeToString()


def decode_request(data: bytes) -> SnapshotRequest:
    """One request as it arrives.

    Raises:
        DecodeError: other bytes, or no client id or number, so that nobody can be answered.
    """
    body = from_bytes(pb.SnapshotRequest, data, "a request for a snapshot")
    if not body.client_id or not body.number:
        raise DecodeError("a request for a snapshot without client id or number")
    about = TopicPartition(body.topic, body.partition)
    refusal = refused_client(body.client_id)
    if refusal is None and not (is_topic_name(about.topic) and about.partition <= PARTITION_MAX):
        wrong = f"no topic can have the partition {about.topic[:50]!r}/{about.partition}"
        refusal = Refused(wrong, RefusalCode.MALFORMED)
    return SnapshotRequest(body.client_id, body.number, body.reply_partition, about, refusal)


def encode_response(response: SnapshotResponse) -> bytes:
    """Bytes of one answer, to be framed with others for the same client."""
    message = pb.SnapshotResponse(number=response.number, partition=response.partition)
    match response.answer:
        case SnapshotSummary():
            message.summary.SetInParent()
            message.summary.CopyFrom(_SUMMARY.message(response.answer))
        case Refused(reason):
            message.refused.reason = reason
    return message.SerializeToString()


def decode_response(data: bytes) -> SnapshotResponse:
    """One answer; raises `DecodeError` for other bytes."""
    message = from_bytes(pb.SnapshotResponse, data, "an answer of a snapshot writer")
    if not message.number:
        raise DecodeError(NO_NUMBER)
    return SnapshotResponse(message.number, message.partition, _answer_of(message))


def _answer_of(message: pb.SnapshotResponse) -> SnapshotAnswer:
    match message.WhichOneof("body"):
        case "summary":
            return _SUMMARY.value(message.summary)
        case "refused":
            return Refused(message.refused.reason)
        case _:  # C10: one request fails, not its client
            reason = "the answer is of a kind that this program does not know: upgrade the client"
            return Refused(reason, RefusalCode.UNSUPPORTED)
