"""Requests to the controllers of replicated groups and their answers: values and codec.

*Source*: docs/protocols I14, A. Values of group-requests and txn-responses are framed batches; the
key is the client's. A request is about one data partition.
*Invariants*: a reset names the generation that the group must have, so that a reset which arrives
a second time changes nothing.
"""

from enum import StrEnum
from typing import NamedTuple

from stilltide.schemas.errors import DecodeError
from stilltide.schemas.messages import Fields, from_bytes
from stilltide.schemas.service.envelopes import (
    UNKNOWN_ANSWER,
    RefusalCode,
    Refused,
    Request,
    Response,
    Unreadable,
    arrived,
    check_asker,
    check_numbered,
)
from stilltide.schemas.topics import data_partition
from stilltide.schemas.v1 import group_requests_pb2 as pb
from stilltide.schemas.values import Offset, TopicPartition

HAS_MEMBERS = "HAS_MEMBERS"
"""Code of a refusal, in addition to the names of `RefusalCode`."""

TIME_MS_MAX = 2**63 - 1
"""Latest time of a record in Kafka, milliseconds since 1970."""


class Edge(StrEnum):
    """An end of a log as the target of a reset."""

    EARLIEST = "earliest"
    LATEST = "latest"


class AtTime(NamedTuple):
    """The first record that is not older than this time, milliseconds since 1970."""

    at_ms: int


class AtOffset(NamedTuple):
    """An offset of the data partition on the cluster that is asked."""

    offset: Offset


ResetTarget = AtOffset | AtTime | Edge


class ResetGroup(NamedTuple):
    """Asks for a reset on all clusters (I10).

    Attributes:
        target: where the group is put on the cluster that is asked.
        generation: the generation that the group must have; None: nothing is changed, and the
            answer says what a reset would do.
        until_ms: the controller refuses to carry out the reset after this time, milliseconds since
            1970.
        stop: members of the group on the cluster that is asked are removed from it; without `stop`
            the reset is refused while there are members.
    """

    target: ResetTarget
    generation: int | None
    until_ms: int
    stop: bool = False


class SyncGroup(NamedTuple):
    """Asks for a look at the group after the request arrived, and for its update (I6)."""


class TakePositions(NamedTuple):
    """Asks for a position snapshot that begins after the request arrived (I1)."""


GroupAsk = ResetGroup | SyncGroup | TakePositions


class GroupQuestion(NamedTuple):
    """What is asked about a group, or about a data partition if `group` is empty."""

    data: TopicPartition
    group: str
    ask: GroupAsk | Unreadable


GroupRequest = Request[GroupQuestion]
"""To the controller of a data partition."""


class ResetAnswer(NamedTuple):
    """Answer: the group's offset before, the offset of the reset, the generation now.

    Attributes:
        from_offset: the group's offset before; None: none.
        to_offset: the offset of the reset.
        generation: the generation after the answer.
        moved: whether the group was moved on the cluster that was asked.
    """

    from_offset: Offset | None
    to_offset: Offset
    generation: int
    moved: bool = False


class SyncAnswer(NamedTuple):
    """Answer: the group after the look; `unpublished` offsets of it are in no update yet."""

    offset: Offset | None
    unpublished: int
    standing: str


class PositionsAnswer(NamedTuple):
    """Answer: a durable position snapshot; times are milliseconds since 1970."""

    local_end: int
    started_ms: int
    completed_ms: int


class HasMembers(NamedTuple):
    """Answer: the reset is refused and changed nothing: the group has members on the cluster.

    `members` are Kafka's ids of some of them.
    """

    members: tuple[str, ...] = ()


GroupAnswer = HasMembers | ResetAnswer | SyncAnswer | PositionsAnswer | Refused


def encode_request(request: GroupRequest) -> bytes:
    """Bytes of one request, to be framed with others."""
    data, group, ask = request.body
    message = pb.GroupRequest(
        client_id=request.client_id,
        number=request.number,
        reply_partition=request.reply_partition,
        topic=data.topic,
        partition=data.partition,
        group=group,
    )
    match ask:
        case ResetGroup():
            message.reset.CopyFrom(_encoded(ask))
        case SyncGroup():
            message.sync.SetInParent()
        case TakePositions():
            message.snapshot.SetInParent()
        case Unreadable():
            raise AssertionError("an unreadable request is never sent")
    return message.SerializeToString()


def _encoded(ask: ResetGroup) -> pb.GroupReset:
    message = pb.GroupReset(until_ms=ask.until_ms, generation=ask.generation, stop=ask.stop)
    match ask.target:
        case AtOffset(offset):
            message.offset = offset
        case AtTime(at_ms):
            message.at_ms = at_ms
        case Edge.EARLIEST:
            message.earliest = True
        case Edge.LATEST:
            message.latest = True
    return message


def decode_request(data: bytes) -> GroupRequest:
    """One request as it arrives; a question that cannot be read is `Unreadable` (C10).

    Raises:
        DecodeError: other bytes, or no client id or number, so that nobody can be answered.
    """
    message = from_bytes(pb.GroupRequest, data, "a request about a group")
    check_asker(message, "a request about a group")
    about = TopicPartition(message.topic, message.partition)
    question = GroupQuestion(about, message.group, arrived(message, _ask_of, "controller"))
    return Request(message.client_id, message.number, 0, message.reply_partition, question)


def _ask_of(body: pb.GroupRequest) -> GroupAsk:
    data_partition(body.topic, body.partition)
    kind = body.WhichOneof("body")
    if kind == "snapshot":
        return TakePositions()
    if not body.group:
        raise DecodeError("a request about a group without its name")
    if kind == "sync":
        return SyncGroup()
    reset = body.reset
    generation = reset.generation if reset.HasField("generation") else None
    return ResetGroup(_target_of(reset), generation, reset.until_ms, reset.stop)


def _target_of(reset: pb.GroupReset) -> ResetTarget:
    match reset.WhichOneof("target"):
        case "offset":
            return AtOffset(Offset(reset.offset))
        case "at_ms" if reset.at_ms <= TIME_MS_MAX:
            return AtTime(reset.at_ms)
        case "earliest":
            return Edge.EARLIEST
        case "latest":
            return Edge.LATEST
        case _:
            raise DecodeError("a reset without a target, or to a time that Kafka cannot write")


_RESET = Fields(ResetAnswer, pb.GroupResetAnswer)
_SYNC = Fields(SyncAnswer, pb.GroupSyncAnswer)
_POSITIONS = Fields(PositionsAnswer, pb.GroupSnapshotAnswer)
_CODES = {code.value: code for code in RefusalCode}


def encode_response(response: Response[GroupAnswer]) -> bytes:
    """Bytes of one answer, to be framed with others for the same client."""
    message = pb.GroupResponse(number=response.number, partition=response.owner)
    match response.answer:
        case ResetAnswer():
            message.reset.CopyFrom(_RESET.message(response.answer))
        case SyncAnswer():
            message.sync.CopyFrom(_SYNC.message(response.answer))
        case PositionsAnswer():
            message.snapshot.CopyFrom(_POSITIONS.message(response.answer))
        case HasMembers(members):
            message.refused.reason = "the group has members on this cluster"
            message.refused.code = HAS_MEMBERS
            message.refused.members.extend(members)
        case Refused(reason, code):
            message.refused.reason = reason
            message.refused.code = code.value
    return message.SerializeToString()


def decode_response(data: bytes) -> Response[GroupAnswer]:
    """One answer; raises `DecodeError` for other bytes."""
    message = from_bytes(pb.GroupResponse, data, "an answer of a controller")
    check_numbered(message)
    return Response(message.number, message.partition, _answer_of(message))


def _answer_of(message: pb.GroupResponse) -> GroupAnswer:
    match message.WhichOneof("body"):
        case "reset":
            return _RESET.value(message.reset)
        case "sync":
            return _SYNC.value(message.sync)
        case "snapshot":
            return _POSITIONS.value(message.snapshot)
        case "refused" if message.refused.code == HAS_MEMBERS:
            return HasMembers(tuple(message.refused.members))
        case "refused":
            code = _CODES.get(message.refused.code, RefusalCode.ILLEGAL)
            return Refused(message.refused.reason, code)
        case _:  # C10: one request fails, not its client
            return UNKNOWN_ANSWER
