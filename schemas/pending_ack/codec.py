"""Codec of ack-requests, the answers to them in txn-responses, and pending-ack-log.

*Source*: docs/protocols G, A, B1, C8; PIP-160: figures of pending-ack stores for operators. Values
are framed batches (A); the key of a request is its client's id. The bytes of a request become part
of the log record as they arrived: the owner validates the request in log order (C0) and never
encodes it again. A base's state may be large, so it is encoded item by item, and the caller can
yield to the event loop in between.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

from google.protobuf.message import DecodeError as ProtobufDecodeError

from stilltide.schemas.coordinator.requests import subscription_of, subscription_pb
from stilltide.schemas.errors import DecodeError, no_bytes
from stilltide.schemas.framing import check_request, request_field, shape_of
from stilltide.schemas.log_frames import LogFrame, figures_in, frame_of, put_frame
from stilltide.schemas.messages import FieldRule, Fields, each, from_bytes
from stilltide.schemas.pending_ack.acknowledgements import (
    MEMBER_BYTES,
    AckAnswer,
    AckBody,
    Acknowledge,
    AckQuestion,
    AckRequest,
    Acks,
    AckState,
    Attach,
    BaseCoordinator,
    BaseSubscription,
    CursorMoved,
    DescribeAcks,
    DescribeStore,
    PendingAckRecord,
    PendingAcks,
    Settle,
    StoreStats,
    SubscriptionStats,
)
from stilltide.schemas.service.envelopes import (
    CLIENT_NAME_CHARS_MAX,
    UNKNOWN_ANSWER,
    Done,
    RefusalCode,
    Refused,
    Request,
    Response,
    Unreadable,
    arrived,
    check_asker,
    check_numbered,
    codes_of,
)
from stilltide.schemas.v1 import pending_ack_pb2 as pb
from stilltide.schemas.v1.requests_pb2 import OUTCOME_ABORT, OUTCOME_COMMIT
from stilltide.schemas.values import (
    EndOffset,
    Offset,
    Range,
    Ranges,
    SubscriptionId,
    TopicPartition,
    TxnId,
)

_NEWER = "a newer Stilltide wrote it: upgrade this one"

_SHAPE = shape_of([(5,), (7,)])
"""Where a request holds elements: in `Attach` and `CursorMoved`; offsets are packed."""

_CODES = codes_of(pb.AckRefusalCode.items())
_CODE_NAMES = {code: pb.AckRefusalCode.Name(number) for number, code in _CODES.items()}


def encode_request(request: AckRequest) -> bytes:
    """Bytes of one request, to be framed with others."""
    about, ask = request.body
    message = pb.AckRequest(
        client_id=request.client_id,
        number=request.number,
        reply_partition=request.reply_partition,
        subscription=None if about is None else subscription_pb(about),
    )
    match ask:
        case Attach() as attach:
            _put_attach(message.attach, attach)
        case Acknowledge(txn, member, offsets, cumulative_offset, txn_client_id):
            message.acknowledge.txn.CopyFrom(_txn_pb(txn))
            message.acknowledge.member = member
            message.acknowledge.offsets.extend(offsets)
            if cumulative_offset is not None:
                message.acknowledge.cumulative_offset = cumulative_offset
            message.acknowledge.txn_client_id = txn_client_id
        case CursorMoved(member, cursor, acknowledged):
            message.cursor_moved.member = member
            message.cursor_moved.cursor = cursor
            message.cursor_moved.acknowledged.extend(_ranges_pb(acknowledged))
        case Settle(txn, committed, low_watermark, client_key, log_end):
            message.settle.txn.CopyFrom(_txn_pb(txn))
            message.settle.outcome = OUTCOME_COMMIT if committed else OUTCOME_ABORT
            message.settle.low_watermark = low_watermark
            message.settle.client_key = client_key
            if log_end is not None:
                message.settle.log_end = log_end
        case DescribeAcks():
            message.describe.SetInParent()
        case DescribeStore(topic, group):
            message.describe_store.CopyFrom(pb.DescribeStore(topic=topic, group=group))
        case Unreadable():
            raise AssertionError("an unreadable request is never sent")
    return message.SerializeToString()


def _put_attach(message: pb.Attach, attach: Attach) -> None:
    message.member = attach.member
    message.cursor = attach.cursor
    message.acknowledged.extend(_ranges_pb(attach.acknowledged))
    message.group_member = attach.group_member
    message.client_name = attach.client_name[:CLIENT_NAME_CHARS_MAX]
    message.topic_id = attach.topic_id
    if attach.log_end is not None:
        message.log_end = attach.log_end
    message.reset = attach.reset


def decode_request(data: bytes) -> AckRequest:
    """One request as it arrives, decoded as in a log record; unknown kinds are `Unreadable`.

    Raises:
        DecodeError: other bytes, too many bytes or elements (C16), or a request that names no
            client or number.
    """
    check_request(data, _SHAPE)
    try:
        return _request(pb.PendingAckLogRecord.FromString(request_field(data)).request, _arrived)
    except ProtobufDecodeError as error:
        raise DecodeError("not a request about acknowledgements", detail=str(error)) from error


def _request(
    message: pb.AckRequest, question_of: Callable[[pb.AckRequest], AckQuestion]
) -> AckRequest:
    check_asker(message, "a request")
    question = question_of(message)
    return Request(message.client_id, message.number, 0, message.reply_partition, question)


def _arrived(message: pb.AckRequest) -> AckQuestion:
    question = arrived(message, _question_of, "store")
    return AckQuestion(None, question) if isinstance(question, Unreadable) else question


def _question_of(message: pb.AckRequest) -> AckQuestion:
    body, about = _body_of(message), None
    if not isinstance(body, DescribeStore):
        named = message.subscription
        if not named.topic:
            raise DecodeError("a request about acknowledgements without subscription")
        about = _subscription(named.topic, named.partition, named.group)
    return AckQuestion(about, body)


@lru_cache(maxsize=1024)
def _subscription(topic: str, partition: int, group: str) -> SubscriptionId:
    """A cached value: few group partitions come again and again, at a fifth of the cost."""
    return SubscriptionId(TopicPartition(topic, partition), group)


def _body_of(message: pb.AckRequest) -> AckBody:
    match message.WhichOneof("body"):
        case "acknowledge":
            return _acknowledge(message.acknowledge)
        case "settle":
            return _settle(message.settle)
        case "attach":
            attach = message.attach
            return Attach(
                _member(attach.member),
                EndOffset(attach.cursor),
                _ranges_of(attach.acknowledged),
                attach.group_member,
                attach.client_name,
                attach.topic_id,
                EndOffset(attach.log_end) if attach.HasField("log_end") else None,
                attach.reset,
            )
        case "cursor_moved":
            moved = message.cursor_moved
            acknowledged = _ranges_of(moved.acknowledged)
            return CursorMoved(_member(moved.member), EndOffset(moved.cursor), acknowledged)
        case "describe":
            return DescribeAcks()
        case "describe_store":
            return DescribeStore(message.describe_store.topic, message.describe_store.group)
        case _:
            raise DecodeError("a request that this program does not know", hint=_NEWER)


def _acknowledge(message: pb.Acknowledge) -> Acknowledge:
    cumulative = (
        Offset(message.cumulative_offset) if message.HasField("cumulative_offset") else None
    )
    txn = message.txn
    offsets: list[Any] = message.offsets[:]  # a copy by slice costs a third of a walk
    return Acknowledge(
        TxnId(txn.coordinator, txn.sequence),
        _member(message.member),
        tuple(offsets),
        cumulative,
        message.txn_client_id,
    )


def _settle(message: pb.Settle) -> Settle:
    if message.outcome not in (OUTCOME_COMMIT, OUTCOME_ABORT):
        raise DecodeError(f"outcome {message.outcome} is neither commit nor abort")
    committed = message.outcome == OUTCOME_COMMIT
    log_end = EndOffset(message.log_end) if message.HasField("log_end") else None
    return Settle(
        _txn_of(message.txn), committed, message.low_watermark, message.client_key, log_end
    )


def _member(member: bytes) -> bytes:
    if len(member) != MEMBER_BYTES:
        raise DecodeError(f"a member has {MEMBER_BYTES} bytes, not {len(member)}")
    return member


def _txn_pb(txn: TxnId) -> pb.TransactionId:
    return pb.TransactionId(coordinator=txn.coordinator, sequence=txn.sequence)


def _txn_of(message: pb.TransactionId) -> TxnId:
    return TxnId(message.coordinator, message.sequence)


def _ranges_pb(ranges: Ranges) -> Iterable[pb.OffsetRange]:
    return (pb.OffsetRange(first=first, end=end) for first, end in ranges)


def _ranges_of(messages: Iterable[pb.OffsetRange]) -> Ranges:
    ranges = tuple(Range(Offset(one.first), EndOffset(one.end)) for one in messages)
    last = 0
    for first, end in ranges:
        if first < last or end <= first:
            raise DecodeError(f"offsets [{first}, {end}) behind {last}: not ascending and disjoint")
        last = end
    return ranges


def encode_response(response: Response[AckAnswer]) -> bytes:
    """Bytes of one answer, to be framed with others for the same client."""
    message = pb.AckResponse(number=response.number, partition=response.owner)
    match response.answer:
        case Done():
            message.done.SetInParent()
        case Refused(reason, code):
            message.refused.CopyFrom(pb.AckRefused(reason=reason, code=_CODE_NAMES[code]))
        case Acks():
            message.acks.CopyFrom(acks_pb(response.answer))
        case StoreStats():
            message.store_stats.CopyFrom(_STATS.message(response.answer))
    return message.SerializeToString()


def decode_response(data: bytes) -> Response[AckAnswer]:
    """One answer; raises `DecodeError` for other bytes."""
    message = from_bytes(pb.AckResponse, data, "an answer about acknowledgements")
    check_numbered(message)
    return Response(message.number, message.partition, _answer_of(message))


def _answer_of(message: pb.AckResponse) -> AckAnswer:
    match message.WhichOneof("body"):
        case "done":
            return Done()
        case "refused":
            code = _CODES.get(message.refused.code, RefusalCode.ILLEGAL)
            return Refused(message.refused.reason, code)
        case "acks":
            return acks_of(message.acks)
        case "store_stats":
            return _STATS.value(message.store_stats)
        case _:  # C10: one request fails, not its client
            return UNKNOWN_ANSWER


def acks_pb(acks: Acks) -> pb.Acks:
    """The message for the acknowledgements of a group partition."""
    return pb.Acks(
        cursor=acks.cursor,
        acknowledged=_ranges_pb(acks.acknowledged),
        pending=map(_pending_pb, acks.pending),
        member=acks.member,
    )


def acks_of(acks: pb.Acks) -> Acks:
    """The acknowledgements in such a message."""
    pending = tuple(map(_pending_of, acks.pending))
    return Acks(EndOffset(acks.cursor), _ranges_of(acks.acknowledged), pending, acks.member)


def _pending_pb(pending: PendingAcks) -> pb.PendingAcks:
    return pb.PendingAcks(
        txn=_txn_pb(pending.txn),
        ranges=_ranges_pb(pending.ranges),
        cumulative_offset=pending.cumulative_offset,
        client_key=pending.client_key,
    )


def _pending_of(message: pb.PendingAcks) -> PendingAcks:
    cumulative = (
        Offset(message.cumulative_offset) if message.HasField("cumulative_offset") else None
    )
    return PendingAcks(
        _txn_of(message.txn), _ranges_of(message.ranges), cumulative, message.client_key
    )


def encode_own(frame: LogFrame, at_ms: int) -> bytes:
    """Bytes of a log record that the owner makes itself."""
    message = pb.PendingAckLogRecord(at_ms=at_ms)
    put_frame(message, frame)
    return message.SerializeToString()


def decode(data: bytes) -> PendingAckRecord:
    """One log record; raises `DecodeError` for other bytes, and for an unknown kind of record."""
    if not data:
        raise no_bytes("a record of pending-ack-log")
    try:
        message = pb.PendingAckLogRecord.FromString(data)
    except ProtobufDecodeError as error:
        raise DecodeError("not a record of pending-ack-log", detail=str(error)) from error
    at_ms = message.at_ms
    match message.WhichOneof("body"):
        case "request":
            return PendingAckRecord(_request(message.request, _question_of), at_ms)
        case "fence" | "noop" | "base" as kind:
            return PendingAckRecord(frame_of(message, kind), at_ms)
        case _:
            raise DecodeError(
                "a pending-ack-log record that this program does not know", hint=_NEWER
            )


_NOBODY = SubscriptionId(TopicPartition("", 0), "")
_SUBSCRIPTION = FieldRule(subscription_pb, subscription_of, absent=_NOBODY)
_STATS = Fields(
    StoreStats,
    pb.StoreStats,
    log=figures_in(pb.StoreStats),
    subscriptions=Fields(SubscriptionStats, pb.SubscriptionStats, subscription=_SUBSCRIPTION),
)
_BASE_SUBSCRIPTION = Fields(
    BaseSubscription,
    pb.SubscriptionState,
    subscription=_SUBSCRIPTION,
    acks=FieldRule(acks_pb, acks_of, absent=Acks(EndOffset(0), (), (), b"")),
    replaced=each(
        lambda replaced: pb.ReplacedMember(member=replaced[0], at_ms=replaced[1]),
        lambda replaced: (replaced.member, replaced.at_ms),
    ),
)
_BASE_COORDINATOR = Fields(
    BaseCoordinator,
    pb.CoordinatorState,
    settled=each(
        lambda run: pb.SequenceRange(first=run[0], end=run[1]), lambda run: (run.first, run.end)
    ),
)
_STATE = Fields(
    AckState,
    pb.PendingAckState,
    "a pending-ack log's state",
    subscriptions=_BASE_SUBSCRIPTION,
    coordinators=_BASE_COORDINATOR,
)
decode_state = _STATE.decode
"""The state in the joined bytes of the parts; raises `DecodeError` for other bytes."""


def encode_state(state: AckState) -> Iterator[bytes]:
    """The bytes of a state in parts, which the caller joins; one part for each item."""
    yield pb.PendingAckState(now_ms=state.now_ms).SerializeToString()
    for subscription in state.subscriptions:
        message = _BASE_SUBSCRIPTION.message(subscription)
        yield pb.PendingAckState(subscriptions=(message,)).SerializeToString()
    for coordinator in state.coordinators:
        message = _BASE_COORDINATOR.message(coordinator)
        yield pb.PendingAckState(coordinators=(message,)).SerializeToString()
