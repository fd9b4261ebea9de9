from stilltide.schemas.v1 import requests_pb2 as _requests_pb2
from stilltide.schemas.v1 import txn_log_pb2 as _txn_log_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AckRefusalCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACK_REFUSAL_CODE_UNSPECIFIED: _ClassVar[AckRefusalCode]
    ACK_REFUSAL_CODE_ALREADY_ACKNOWLEDGED: _ClassVar[AckRefusalCode]
    ACK_REFUSAL_CODE_PENDING_IN_ANOTHER_TRANSACTION: _ClassVar[AckRefusalCode]
    ACK_REFUSAL_CODE_TRANSACTION_ENDED: _ClassVar[AckRefusalCode]
    ACK_REFUSAL_CODE_NOT_ATTACHED: _ClassVar[AckRefusalCode]
    ACK_REFUSAL_CODE_TOO_MANY: _ClassVar[AckRefusalCode]
    ACK_REFUSAL_CODE_NOT_OWNER: _ClassVar[AckRefusalCode]
    ACK_REFUSAL_CODE_NOT_IN_GROUP: _ClassVar[AckRefusalCode]
    ACK_REFUSAL_CODE_MALFORMED: _ClassVar[AckRefusalCode]
    ACK_REFUSAL_CODE_UNSUPPORTED: _ClassVar[AckRefusalCode]
    ACK_REFUSAL_CODE_OPERATORS_ONLY: _ClassVar[AckRefusalCode]
ACK_REFUSAL_CODE_UNSPECIFIED: AckRefusalCode
ACK_REFUSAL_CODE_ALREADY_ACKNOWLEDGED: AckRefusalCode
ACK_REFUSAL_CODE_PENDING_IN_ANOTHER_TRANSACTION: AckRefusalCode
ACK_REFUSAL_CODE_TRANSACTION_ENDED: AckRefusalCode
ACK_REFUSAL_CODE_NOT_ATTACHED: AckRefusalCode
ACK_REFUSAL_CODE_TOO_MANY: AckRefusalCode
ACK_REFUSAL_CODE_NOT_OWNER: AckRefusalCode
ACK_REFUSAL_CODE_NOT_IN_GROUP: AckRefusalCode
ACK_REFUSAL_CODE_MALFORMED: AckRefusalCode
ACK_REFUSAL_CODE_UNSUPPORTED: AckRefusalCode
ACK_REFUSAL_CODE_OPERATORS_ONLY: AckRefusalCode

class OffsetRange(_message.Message):
    __slots__ = ("first", "end")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    first: int
    end: int
    def __init__(self, first: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class TransactionId(_message.Message):
    __slots__ = ("coordinator", "sequence")
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    coordinator: int
    sequence: int
    def __init__(self, coordinator: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class Attach(_message.Message):
    __slots__ = ("member", "cursor", "acknowledged", "group_member", "client_name", "topic_id", "log_end", "reset")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    GROUP_MEMBER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    member: bytes
    cursor: int
    acknowledged: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    group_member: str
    client_name: str
    topic_id: bytes
    log_end: int
    reset: bool
    def __init__(self, member: _Optional[bytes] = ..., cursor: _Optional[int] = ..., acknowledged: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ..., group_member: _Optional[str] = ..., client_name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., log_end: _Optional[int] = ..., reset: _Optional[bool] = ...) -> None: ...

class Acknowledge(_message.Message):
    __slots__ = ("txn", "member", "offsets", "cumulative_offset", "txn_client_id")
    TXN_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TXN_CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    txn: TransactionId
    member: bytes
    offsets: _containers.RepeatedScalarFieldContainer[int]
    cumulative_offset: int
    txn_client_id: bytes
    def __init__(self, txn: _Optional[_Union[TransactionId, _Mapping]] = ..., member: _Optional[bytes] = ..., offsets: _Optional[_Iterable[int]] = ..., cumulative_offset: _Optional[int] = ..., txn_client_id: _Optional[bytes] = ...) -> None: ...

class CursorMoved(_message.Message):
    __slots__ = ("member", "cursor", "acknowledged")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    member: bytes
    cursor: int
    acknowledged: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    def __init__(self, member: _Optional[bytes] = ..., cursor: _Optional[int] = ..., acknowledged: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ...) -> None: ...

class Settle(_message.Message):
    __slots__ = ("txn", "outcome", "low_watermark", "client_key", "log_end")
    TXN_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    LOW_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    CLIENT_KEY_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    txn: TransactionId
    outcome: _requests_pb2.Outcome
    low_watermark: int
    client_key: bytes
    log_end: int
    def __init__(self, txn: _Optional[_Union[TransactionId, _Mapping]] = ..., outcome: _Optional[_Union[_requests_pb2.Outcome, str]] = ..., low_watermark: _Optional[int] = ..., client_key: _Optional[bytes] = ..., log_end: _Optional[int] = ...) -> None: ...

class DescribeAcks(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeStore(_message.Message):
    __slots__ = ("topic", "group")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class AckRequest(_message.Message):
    __slots__ = ("client_id", "number", "reply_partition", "subscription", "attach", "acknowledge", "cursor_moved", "settle", "describe", "describe_store")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REPLY_PARTITION_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_MOVED_FIELD_NUMBER: _ClassVar[int]
    SETTLE_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_STORE_FIELD_NUMBER: _ClassVar[int]
    client_id: bytes
    number: int
    reply_partition: int
    subscription: _requests_pb2.RegisteredSubscription
    attach: Attach
    acknowledge: Acknowledge
    cursor_moved: CursorMoved
    settle: Settle
    describe: DescribeAcks
    describe_store: DescribeStore
    def __init__(self, client_id: _Optional[bytes] = ..., number: _Optional[int] = ..., reply_partition: _Optional[int] = ..., subscription: _Optional[_Union[_requests_pb2.RegisteredSubscription, _Mapping]] = ..., attach: _Optional[_Union[Attach, _Mapping]] = ..., acknowledge: _Optional[_Union[Acknowledge, _Mapping]] = ..., cursor_moved: _Optional[_Union[CursorMoved, _Mapping]] = ..., settle: _Optional[_Union[Settle, _Mapping]] = ..., describe: _Optional[_Union[DescribeAcks, _Mapping]] = ..., describe_store: _Optional[_Union[DescribeStore, _Mapping]] = ...) -> None: ...

class AckRefused(_message.Message):
    __slots__ = ("code", "reason")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    code: AckRefusalCode
    reason: str
    def __init__(self, code: _Optional[_Union[AckRefusalCode, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class PendingAcks(_message.Message):
    __slots__ = ("txn", "ranges", "cumulative_offset", "client_key")
    TXN_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CLIENT_KEY_FIELD_NUMBER: _ClassVar[int]
    txn: TransactionId
    ranges: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    cumulative_offset: int
    client_key: bytes
    def __init__(self, txn: _Optional[_Union[TransactionId, _Mapping]] = ..., ranges: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ..., cumulative_offset: _Optional[int] = ..., client_key: _Optional[bytes] = ...) -> None: ...

class Acks(_message.Message):
    __slots__ = ("cursor", "acknowledged", "pending", "member")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    cursor: int
    acknowledged: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    pending: _containers.RepeatedCompositeFieldContainer[PendingAcks]
    member: bytes
    def __init__(self, cursor: _Optional[int] = ..., acknowledged: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ..., pending: _Optional[_Iterable[_Union[PendingAcks, _Mapping]]] = ..., member: _Optional[bytes] = ...) -> None: ...

class SubscriptionStats(_message.Message):
    __slots__ = ("subscription", "attached", "cursor", "committed", "acknowledged_ranges", "pending_transactions", "pending_individual", "pending_cumulative_offset", "locked_offsets", "has_served", "client_key", "client_name")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_RANGES_FIELD_NUMBER: _ClassVar[int]
    PENDING_TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    PENDING_INDIVIDUAL_FIELD_NUMBER: _ClassVar[int]
    PENDING_CUMULATIVE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOCKED_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    HAS_SERVED_FIELD_NUMBER: _ClassVar[int]
    CLIENT_KEY_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
    subscription: _requests_pb2.RegisteredSubscription
    attached: bool
    cursor: int
    committed: int
    acknowledged_ranges: int
    pending_transactions: int
    pending_individual: int
    pending_cumulative_offset: int
    locked_offsets: int
    has_served: bool
    client_key: bytes
    client_name: str
    def __init__(self, subscription: _Optional[_Union[_requests_pb2.RegisteredSubscription, _Mapping]] = ..., attached: _Optional[bool] = ..., cursor: _Optional[int] = ..., committed: _Optional[int] = ..., acknowledged_ranges: _Optional[int] = ..., pending_transactions: _Optional[int] = ..., pending_individual: _Optional[int] = ..., pending_cumulative_offset: _Optional[int] = ..., locked_offsets: _Optional[int] = ..., has_served: _Optional[bool] = ..., client_key: _Optional[bytes] = ..., client_name: _Optional[str] = ...) -> None: ...

class StoreStats(_message.Message):
    __slots__ = ("epoch", "subscription_count", "transaction_count", "pending_individual", "pending_cumulative", "batching_enabled", "batch_records_max", "batch_bytes_max", "batch_delay_us_max", "flush_eager", "entries_written", "records_written", "appends_in_flight", "buffered_records", "buffered_bytes", "recovery_ms", "base_as_of", "log_records", "subscriptions", "subscriptions_omitted", "flushes")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_COUNT_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_COUNT_FIELD_NUMBER: _ClassVar[int]
    PENDING_INDIVIDUAL_FIELD_NUMBER: _ClassVar[int]
    PENDING_CUMULATIVE_FIELD_NUMBER: _ClassVar[int]
    BATCHING_ENABLED_FIELD_NUMBER: _ClassVar[int]
    BATCH_RECORDS_MAX_FIELD_NUMBER: _ClassVar[int]
    BATCH_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    BATCH_DELAY_US_MAX_FIELD_NUMBER: _ClassVar[int]
    FLUSH_EAGER_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    RECORDS_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    APPENDS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    BUFFERED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    BUFFERED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_MS_FIELD_NUMBER: _ClassVar[int]
    BASE_AS_OF_FIELD_NUMBER: _ClassVar[int]
    LOG_RECORDS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_OMITTED_FIELD_NUMBER: _ClassVar[int]
    FLUSHES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    subscription_count: int
    transaction_count: int
    pending_individual: int
    pending_cumulative: int
    batching_enabled: bool
    batch_records_max: int
    batch_bytes_max: int
    batch_delay_us_max: int
    flush_eager: bool
    entries_written: int
    records_written: int
    appends_in_flight: int
    buffered_records: int
    buffered_bytes: int
    recovery_ms: int
    base_as_of: int
    log_records: int
    subscriptions: _containers.RepeatedCompositeFieldContainer[SubscriptionStats]
    subscriptions_omitted: int
    flushes: _containers.RepeatedCompositeFieldContainer[_requests_pb2.FlushFigures]
    def __init__(self, epoch: _Optional[int] = ..., subscription_count: _Optional[int] = ..., transaction_count: _Optional[int] = ..., pending_individual: _Optional[int] = ..., pending_cumulative: _Optional[int] = ..., batching_enabled: _Optional[bool] = ..., batch_records_max: _Optional[int] = ..., batch_bytes_max: _Optional[int] = ..., batch_delay_us_max: _Optional[int] = ..., flush_eager: _Optional[bool] = ..., entries_written: _Optional[int] = ..., records_written: _Optional[int] = ..., appends_in_flight: _Optional[int] = ..., buffered_records: _Optional[int] = ..., buffered_bytes: _Optional[int] = ..., recovery_ms: _Optional[int] = ..., base_as_of: _Optional[int] = ..., log_records: _Optional[int] = ..., subscriptions: _Optional[_Iterable[_Union[SubscriptionStats, _Mapping]]] = ..., subscriptions_omitted: _Optional[int] = ..., flushes: _Optional[_Iterable[_Union[_requests_pb2.FlushFigures, _Mapping]]] = ...) -> None: ...

class AckResponse(_message.Message):
    __slots__ = ("number", "partition", "done", "refused", "acks", "store_stats")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    STORE_STATS_FIELD_NUMBER: _ClassVar[int]
    number: int
    partition: int
    done: _requests_pb2.Done
    refused: AckRefused
    acks: Acks
    store_stats: StoreStats
    def __init__(self, number: _Optional[int] = ..., partition: _Optional[int] = ..., done: _Optional[_Union[_requests_pb2.Done, _Mapping]] = ..., refused: _Optional[_Union[AckRefused, _Mapping]] = ..., acks: _Optional[_Union[Acks, _Mapping]] = ..., store_stats: _Optional[_Union[StoreStats, _Mapping]] = ...) -> None: ...

class ReplacedMember(_message.Message):
    __slots__ = ("member", "at_ms")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    member: bytes
    at_ms: int
    def __init__(self, member: _Optional[bytes] = ..., at_ms: _Optional[int] = ...) -> None: ...

class SubscriptionState(_message.Message):
    __slots__ = ("subscription", "acks", "committed", "replaced", "last_seen_ms", "client_key", "client_name", "topic_id")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_MS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_KEY_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    subscription: _requests_pb2.RegisteredSubscription
    acks: Acks
    committed: int
    replaced: _containers.RepeatedCompositeFieldContainer[ReplacedMember]
    last_seen_ms: int
    client_key: bytes
    client_name: str
    topic_id: bytes
    def __init__(self, subscription: _Optional[_Union[_requests_pb2.RegisteredSubscription, _Mapping]] = ..., acks: _Optional[_Union[Acks, _Mapping]] = ..., committed: _Optional[int] = ..., replaced: _Optional[_Iterable[_Union[ReplacedMember, _Mapping]]] = ..., last_seen_ms: _Optional[int] = ..., client_key: _Optional[bytes] = ..., client_name: _Optional[str] = ..., topic_id: _Optional[bytes] = ...) -> None: ...

class SequenceRange(_message.Message):
    __slots__ = ("first", "end")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    first: int
    end: int
    def __init__(self, first: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class CoordinatorState(_message.Message):
    __slots__ = ("coordinator", "low_watermark", "settled")
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    LOW_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    coordinator: int
    low_watermark: int
    settled: _containers.RepeatedCompositeFieldContainer[SequenceRange]
    def __init__(self, coordinator: _Optional[int] = ..., low_watermark: _Optional[int] = ..., settled: _Optional[_Iterable[_Union[SequenceRange, _Mapping]]] = ...) -> None: ...

class PendingAckState(_message.Message):
    __slots__ = ("now_ms", "subscriptions", "coordinators")
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    COORDINATORS_FIELD_NUMBER: _ClassVar[int]
    now_ms: int
    subscriptions: _containers.RepeatedCompositeFieldContainer[SubscriptionState]
    coordinators: _containers.RepeatedCompositeFieldContainer[CoordinatorState]
    def __init__(self, now_ms: _Optional[int] = ..., subscriptions: _Optional[_Iterable[_Union[SubscriptionState, _Mapping]]] = ..., coordinators: _Optional[_Iterable[_Union[CoordinatorState, _Mapping]]] = ...) -> None: ...

class PendingAckBase(_message.Message):
    __slots__ = ("as_of", "piece_index", "piece_count", "state")
    AS_OF_FIELD_NUMBER: _ClassVar[int]
    PIECE_INDEX_FIELD_NUMBER: _ClassVar[int]
    PIECE_COUNT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    as_of: int
    piece_index: int
    piece_count: int
    state: bytes
    def __init__(self, as_of: _Optional[int] = ..., piece_index: _Optional[int] = ..., piece_count: _Optional[int] = ..., state: _Optional[bytes] = ...) -> None: ...

class PendingAckLogRecord(_message.Message):
    __slots__ = ("fence", "noop", "request", "base", "at_ms")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    NOOP_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    fence: _txn_log_pb2.Fence
    noop: _txn_log_pb2.Noop
    request: AckRequest
    base: PendingAckBase
    at_ms: int
    def __init__(self, fence: _Optional[_Union[_txn_log_pb2.Fence, _Mapping]] = ..., noop: _Optional[_Union[_txn_log_pb2.Noop, _Mapping]] = ..., request: _Optional[_Union[AckRequest, _Mapping]] = ..., base: _Optional[_Union[PendingAckBase, _Mapping]] = ..., at_ms: _Optional[int] = ...) -> None: ...
