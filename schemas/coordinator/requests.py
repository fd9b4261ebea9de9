"""Codec of txn-requests and txn-responses, with the figures of a coordinator.

*Source*: docs/protocols B1, C10, L8; PIP-160: batch index of live records. Values are framed
batches (A); the key is the client id.
"""

from collections.abc import Callable

from stilltide.schemas.coordinator.markers import Probe
from stilltide.schemas.coordinator.prepared_tokens import SECRET_BYTES
from stilltide.schemas.coordinator.transactions import (
    Abort,
    AbortCause,
    AddPartitions,
    AddSubscriptions,
    Answer,
    CompactedTopic,
    CoordinatorStats,
    Decide,
    Describe,
    DescribeCoordinator,
    Description,
    End,
    EndPrepared,
    Greeting,
    Hello,
    Listed,
    ListTransactions,
    LiveEntry,
    LogLiveness,
    Open,
    Opened,
    OperatorDecision,
    Preparation,
    Prepare,
    RecentAborts,
    Registered,
    Release,
    ReportedEnd,
    RequestBody,
    TxnRequest,
    Unknown,
    WriteBarrier,
    Written,
)
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.log_frames import figures_in
from stilltide.schemas.messages import FieldRule, Fields, checked, each, from_bytes
from stilltide.schemas.service.direct_lines import NONCE_BYTES
from stilltide.schemas.service.envelopes import (
    CLIENT_NAME_CHARS_MAX,
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
from stilltide.schemas.v1 import requests_pb2 as pb
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition


def encode_request(  # noqa: C901, PLR0912 - a case for each kind
    request: TxnRequest,
) -> bytes:
    """Bytes of one request, to be framed with others."""
    message = pb.Request(
        client_id=request.client_id,
        number=request.number,
        acked_through=request.acked_through,
        reply_partition=request.reply_partition,
    )
    match request.body:
        case Open():
            message.open.CopyFrom(_open_pb(request.body))
        case AddPartitions():
            message.add_partitions.CopyFrom(_add_partitions_pb(request.body))
        case AddSubscriptions(sequence, subscriptions):
            message.add_subscriptions.sequence = sequence
            message.add_subscriptions.subscriptions.extend(map(subscription_pb, subscriptions))
        case End():
            message.end.CopyFrom(_end_pb(request.body))
        case Release(sequences):
            message.release.sequences.extend(sequences)
        case Abort(sequence):
            message.abort.sequence = sequence
        case Prepare():
            message.prepare.CopyFrom(_prepare_pb(request.body))
        case EndPrepared():
            message.end_prepared.CopyFrom(_END_PREPARED.message(request.body))
        case Decide():
            message.decide.CopyFrom(_DECIDE.message(request.body))
        case Describe(sequence, secret_hash):
            message.describe.sequence = sequence
            message.describe.secret_hash = secret_hash
        case ListTransactions(first_sequence):
            message.list.SetInParent()
            message.list.first_sequence = first_sequence
        case DescribeCoordinator():
            message.describe_coordinator.SetInParent()
        case WriteBarrier(marker_partition, probe):
            message.write_barrier.marker_partition = marker_partition
            message.write_barrier.nonce, message.write_barrier.counter = probe
        case Hello(nonce):
            message.hello.nonce = nonce
        case Unreadable():
            raise AssertionError("an unreadable request is never sent")
    return message.SerializeToString()


def decode_request(data: bytes) -> TxnRequest:
    """One request; raises `DecodeError` for other bytes."""
    return request_of(from_bytes(pb.Request, data, "a request to a coordinator"))


def request_of(message: pb.Request) -> TxnRequest:
    """The request in a parsed message; raises `DecodeError` if the message is incomplete."""
    return _request(message, _body_of)


def arrived_request_of(message: pb.Request) -> TxnRequest:
    """The request of a client; a body that cannot be read is `Unreadable` (C10, L8).

    Raises:
        DecodeError: the message has no client id or number, so that nobody can be answered.
    """
    return _request(message, _arrived)


def _request(
    message: pb.Request, body_of: Callable[[pb.Request], RequestBody | Unreadable]
) -> TxnRequest:
    check_asker(message, "a request")
    return Request(
        message.client_id,
        message.number,
        message.acked_through,
        message.reply_partition,
        body_of(message),
    )


def _arrived(message: pb.Request) -> RequestBody | Unreadable:
    return arrived(message, _body_of, "coordinator")


def _body_of(message: pb.Request) -> RequestBody:
    reader = _BODIES.get(message.WhichOneof("body") or "")
    if reader is None:
        raise DecodeError("a request that this program does not know")
    return reader(message)


def _open_pb(body: Open) -> pb.Open:
    return pb.Open(
        timeout_ms=body.timeout_ms,
        count=body.transaction_count,
        partitions=map(registered_pb, body.partitions),
        subscriptions=map(subscription_pb, body.subscriptions),
        client_name=body.client_name[:CLIENT_NAME_CHARS_MAX],
        allow_compacted=body.allow_compacted,
    )


def _open(body: pb.Open) -> Open:
    return Open(
        body.timeout_ms,
        body.count or 1,
        tuple(map(registered_of, body.partitions)),
        tuple(map(subscription_of, body.subscriptions)),
        body.client_name,
        body.allow_compacted,
    )


def subscription_pb(subscription: SubscriptionId) -> pb.RegisteredSubscription:
    """The message for a registered group partition."""
    (topic, partition), group = subscription
    return pb.RegisteredSubscription(topic=topic, partition=partition, group=group)


def subscription_of(message: pb.RegisteredSubscription) -> SubscriptionId:
    """The group partition in such a message."""
    return SubscriptionId(TopicPartition(message.topic, message.partition), message.group)


def registered_pb(registered: Registered) -> pb.RegisteredPartition:
    """The message for a registered partition."""
    (topic, partition), start_offset, topic_id = registered
    return pb.RegisteredPartition(
        topic=topic, partition=partition, start_offset=start_offset, topic_id=topic_id
    )


def registered_of(message: pb.RegisteredPartition) -> Registered:
    """The registered partition in such a message."""
    return Registered(
        TopicPartition(message.topic, message.partition),
        EndOffset(message.start_offset),
        message.topic_id,
    )


def _end_pb(end: End) -> pb.End:
    message = pb.End(
        sequence=end.sequence,
        outcome=pb.OUTCOME_COMMIT if end.committed else pb.OUTCOME_ABORT,
        wait_visible=end.wait_visible,
        written=map(written_pb, end.written),
    )
    if end.acknowledged_in is not None:
        _put_acknowledged_in(message, end.acknowledged_in)
    return message


def _end(end: pb.End) -> End:
    committed = _decided(end.outcome)
    written = tuple(map(written_of, end.written))
    return End(end.sequence, committed, written, end.wait_visible, _acknowledged_in(end))


def _decided(outcome: pb.Outcome) -> bool:
    if outcome not in (pb.OUTCOME_COMMIT, pb.OUTCOME_ABORT):
        raise DecodeError(f"outcome {outcome} is neither commit nor abort")
    return outcome == pb.OUTCOME_COMMIT


def _put_acknowledged_in(
    message: pb.End | pb.Prepare, acknowledged_in: tuple[SubscriptionId, ...]
) -> None:
    message.acknowledged_in.SetInParent()
    message.acknowledged_in.subscriptions.extend(map(subscription_pb, acknowledged_in))


def _acknowledged_in(message: pb.End | pb.Prepare) -> tuple[SubscriptionId, ...] | None:
    if not message.HasField("acknowledged_in"):
        return None
    return tuple(map(subscription_of, message.acknowledged_in.subscriptions))


def _prepare_pb(body: Prepare) -> pb.Prepare:
    message = pb.Prepare(
        sequence=body.sequence,
        written=map(written_pb, body.written),
        secret_hash=body.secret_hash,
        decider=body.decider,
    )
    if body.acknowledged_in is not None:
        _put_acknowledged_in(message, body.acknowledged_in)
    return message


def _prepare(body: pb.Prepare) -> Prepare:
    written = tuple(map(written_of, body.written))
    secret_hash = _hash_of_secret(body.secret_hash)
    return Prepare(body.sequence, written, _acknowledged_in(body), secret_hash, body.decider)


def _hash_of_secret(secret_hash: bytes) -> bytes:
    if len(secret_hash) != SECRET_BYTES:
        size = len(secret_hash)
        raise DecodeError(f"the hash of a secret has {SECRET_BYTES} bytes, not {size}")
    return secret_hash


def _secret(secret: bytes) -> bytes:
    if len(secret) != SECRET_BYTES:
        raise DecodeError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    return secret


def _add_partitions_pb(body: AddPartitions) -> pb.AddPartitions:
    return pb.AddPartitions(
        sequence=body.sequence,
        partitions=map(registered_pb, body.partitions),
        allow_compacted=body.allow_compacted,
    )


def _add_partitions(added: pb.AddPartitions) -> AddPartitions:
    partitions = tuple(map(registered_of, added.partitions))
    return AddPartitions(added.sequence, partitions, added.allow_compacted)


def _add_subscriptions(added: pb.AddSubscriptions) -> AddSubscriptions:
    return AddSubscriptions(added.sequence, tuple(map(subscription_of, added.subscriptions)))


def _write_barrier(asked: pb.WriteBarrier) -> WriteBarrier:
    if not asked.nonce or not asked.counter:
        raise DecodeError("a request for a barrier without probe")
    return WriteBarrier(asked.marker_partition, Probe(asked.nonce, asked.counter))


def _hello(asked: pb.Hello) -> Hello:
    if len(asked.nonce) != NONCE_BYTES:
        raise DecodeError(f"a nonce of {len(asked.nonce)} bytes instead of {NONCE_BYTES}")
    return Hello(asked.nonce)


_BODIES: dict[str, Callable[[pb.Request], RequestBody]] = {
    "open": lambda message: _open(message.open),
    "add_partitions": lambda message: _add_partitions(message.add_partitions),
    "end": lambda message: _end(message.end),
    "describe": lambda message: Describe(message.describe.sequence, message.describe.secret_hash),
    "list": lambda message: ListTransactions(message.list.first_sequence),
    "add_subscriptions": lambda message: _add_subscriptions(message.add_subscriptions),
    "release": lambda message: Release(tuple(message.release.sequences)),
    "abort": lambda message: Abort(message.abort.sequence),
    "prepare": lambda message: _prepare(message.prepare),
    "end_prepared": lambda message: _END_PREPARED.value(message.end_prepared),
    "decide": lambda message: _DECIDE.value(message.decide),
    "describe_coordinator": lambda _: DescribeCoordinator(),
    "write_barrier": lambda message: _write_barrier(message.write_barrier),
    "hello": lambda message: _hello(message.hello),
}


def written_pb(written: Written) -> pb.WrittenPartition:
    """The message for the records written to a partition."""
    (topic, partition), first_offset, end_offset, record_count = written
    return pb.WrittenPartition(
        topic=topic,
        partition=partition,
        first_offset=first_offset,
        end_offset=end_offset,
        record_count=record_count,
    )


def written_of(message: pb.WrittenPartition) -> Written:
    """The offsets and count in such a message."""
    return Written(
        TopicPartition(message.topic, message.partition),
        Offset(message.first_offset),
        EndOffset(message.end_offset),
        message.record_count,
    )


def encode_response(response: Response[Answer]) -> bytes:
    """Bytes of one answer, to be framed with others for the same client."""
    return response_pb(response).SerializeToString()


def response_pb(response: Response[Answer]) -> pb.Response:
    """The message for one answer."""
    message = pb.Response(number=response.number, coordinator=response.owner)
    match response.answer:
        case Opened(first_sequence, count):
            message.opened.first_sequence = first_sequence
            message.opened.count = count
        case Done():
            message.done.SetInParent()
        case Refused():
            message.refused.CopyFrom(_refused_pb(response.answer))
        case Unknown():
            message.unknown.SetInParent()
        case Description():
            message.described.CopyFrom(_DESCRIPTION.message(response.answer))
        case Listed():
            message.listed.SetInParent()
            message.listed.CopyFrom(_LISTED.message(response.answer))
        case CoordinatorStats():
            message.coordinator_stats.CopyFrom(_STATS.message(response.answer))
        case Greeting(host, port, nonce):
            message.greeting.host, message.greeting.port = host, port
            message.greeting.nonce = nonce
    return message


def decode_response(data: bytes) -> Response[Answer]:
    """One answer; raises `DecodeError` for other bytes.

    An answer of a kind that this program does not know is `Unknown`: whether the request took
    effect cannot be told from it (C10).
    """
    message = from_bytes(pb.Response, data, "an answer of a coordinator")
    check_numbered(message)
    known = message.WhichOneof("body") is not None
    return Response(message.number, message.coordinator, answer_of(message) if known else Unknown())


def answer_of(message: pb.Response) -> Answer:  # noqa: PLR0911 - one for each kind
    """The answer in a parsed message; raises `DecodeError` for an unknown kind of answer."""
    match message.WhichOneof("body"):
        case "opened":
            return Opened(message.opened.first_sequence, message.opened.count)
        case "done":
            return Done()
        case "refused":
            return Refused(
                message.refused.reason, _CODES.get(message.refused.code, RefusalCode.ILLEGAL)
            )
        case "unknown":
            return Unknown()
        case "described":
            return _DESCRIPTION.value(message.described)
        case "listed":
            return _LISTED.value(message.listed)
        case "coordinator_stats":
            return _STATS.value(message.coordinator_stats)
        case "greeting":
            greeting = message.greeting
            return Greeting(greeting.host, greeting.port, greeting.nonce)
        case _:
            raise DecodeError("an answer that this program does not know")


_OUTCOMES = {True: pb.OUTCOME_COMMIT, False: pb.OUTCOME_ABORT, None: pb.OUTCOME_UNSPECIFIED}
_COMMITTED = {number: committed for committed, number in _OUTCOMES.items()}
_CAUSES = {
    pb.ABORT_CAUSE_CLIENT: AbortCause.CLIENT,
    pb.ABORT_CAUSE_TIMED_OUT: AbortCause.TIMED_OUT,
    pb.ABORT_CAUSE_OPERATOR: AbortCause.OPERATOR,
    pb.ABORT_CAUSE_TOKEN: AbortCause.TOKEN,
}
_CAUSE_NUMBERS = {cause: number for number, cause in _CAUSES.items()}
_CODES = codes_of(pb.RefusalCode.items())
_CODE_NAMES = {code: pb.RefusalCode.Name(number) for number, code in _CODES.items()}


def _refused_pb(refused: Refused) -> pb.Refused:
    return pb.Refused(reason=refused.reason, code=_CODE_NAMES[refused.code])


def aborts_pb(aborts: RecentAborts) -> pb.RecentAborts:
    """The message that says why transactions were aborted."""
    return pb.RecentAborts(
        sequences=[sequence for sequence, _ in aborts],
        causes=[_CAUSE_NUMBERS[cause] for _, cause in aborts],
    )


def aborts_of(message: pb.RecentAborts) -> RecentAborts:
    """What such a message says, without causes that this program does not know."""
    pairs = zip(message.sequences, message.causes, strict=False)
    return tuple((sequence, _CAUSES[cause]) for sequence, cause in pairs if cause in _CAUSES)


def _some_aborts_pb(aborts: RecentAborts) -> pb.RecentAborts | None:
    return aborts_pb(aborts) if aborts else None


def _live_bytes(live: int) -> bytes:
    return live.to_bytes((live.bit_length() + 7) // 8, "little")


def _live_of(data: bytes) -> int:
    return int.from_bytes(data, "little")


ABORTS = FieldRule(_some_aborts_pb, aborts_of, absent=())
"""The field that says why transactions were aborted."""
REGISTERED = each(registered_pb, registered_of)
SUBSCRIPTIONS = each(subscription_pb, subscription_of)
_DECIDED = FieldRule(_OUTCOMES.__getitem__, _decided, name="outcome")
_END_PREPARED = Fields(EndPrepared, pb.EndPrepared, committed=_DECIDED, secret=checked(_secret))
_DECIDE = Fields(Decide, pb.Decide, committed=_DECIDED)
PREPARATION = Fields(Preparation, pb.Preparation)
DECISIONS = Fields(OperatorDecision, pb.OperatorDecision, committed=_DECIDED)
_DESCRIPTION = Fields(
    Description,
    pb.TransactionDescription,
    partitions=REGISTERED,
    subscriptions=SUBSCRIPTIONS,
    committed=FieldRule(_OUTCOMES.__getitem__, _COMMITTED.get, name="outcome"),
    cause=FieldRule(_CAUSE_NUMBERS.get, _CAUSES.get, name="abort_cause"),
    preparation=PREPARATION,
)
_LISTED = Fields(Listed, pb.Listed, transactions=_DESCRIPTION, aborts=ABORTS, decisions=DECISIONS)
_STATS = Fields(
    CoordinatorStats,
    pb.CoordinatorStats,
    log=figures_in(pb.CoordinatorStats),
    liveness=Fields(
        LogLiveness,
        pb.LogLiveness,
        entries=Fields(LiveEntry, pb.LiveEntry, live=FieldRule(_live_bytes, _live_of)),
    ),
    ends=Fields(ReportedEnd, pb.ReportedEnd),
    compacted=Fields(CompactedTopic, pb.CompactedTopic),
)
