from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_COMMIT: _ClassVar[Outcome]
    OUTCOME_ABORT: _ClassVar[Outcome]

class RefusalCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REFUSAL_CODE_UNSPECIFIED: _ClassVar[RefusalCode]
    REFUSAL_CODE_NOT_OWNER: _ClassVar[RefusalCode]
    REFUSAL_CODE_MALFORMED: _ClassVar[RefusalCode]
    REFUSAL_CODE_UNSUPPORTED: _ClassVar[RefusalCode]
    REFUSAL_CODE_LIMIT: _ClassVar[RefusalCode]
    REFUSAL_CODE_OPERATORS_ONLY: _ClassVar[RefusalCode]
    REFUSAL_CODE_COMPACTED: _ClassVar[RefusalCode]
    REFUSAL_CODE_PREPARED: _ClassVar[RefusalCode]
    REFUSAL_CODE_COMMITTED: _ClassVar[RefusalCode]
    REFUSAL_CODE_ABORTED: _ClassVar[RefusalCode]

class AbortCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ABORT_CAUSE_UNSPECIFIED: _ClassVar[AbortCause]
    ABORT_CAUSE_CLIENT: _ClassVar[AbortCause]
    ABORT_CAUSE_TIMED_OUT: _ClassVar[AbortCause]
    ABORT_CAUSE_OPERATOR: _ClassVar[AbortCause]
    ABORT_CAUSE_TOKEN: _ClassVar[AbortCause]
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_COMMIT: Outcome
OUTCOME_ABORT: Outcome
REFUSAL_CODE_UNSPECIFIED: RefusalCode
REFUSAL_CODE_NOT_OWNER: RefusalCode
REFUSAL_CODE_MALFORMED: RefusalCode
REFUSAL_CODE_UNSUPPORTED: RefusalCode
REFUSAL_CODE_LIMIT: RefusalCode
REFUSAL_CODE_OPERATORS_ONLY: RefusalCode
REFUSAL_CODE_COMPACTED: RefusalCode
REFUSAL_CODE_PREPARED: RefusalCode
REFUSAL_CODE_COMMITTED: RefusalCode
REFUSAL_CODE_ABORTED: RefusalCode
ABORT_CAUSE_UNSPECIFIED: AbortCause
ABORT_CAUSE_CLIENT: AbortCause
ABORT_CAUSE_TIMED_OUT: AbortCause
ABORT_CAUSE_OPERATOR: AbortCause
ABORT_CAUSE_TOKEN: AbortCause

class RegisteredPartition(_message.Message):
    __slots__ = ("topic", "partition", "start_offset", "topic_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    start_offset: int
    topic_id: bytes
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., start_offset: _Optional[int] = ..., topic_id: _Optional[bytes] = ...) -> None: ...

class RegisteredSubscription(_message.Message):
    __slots__ = ("topic", "partition", "group")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    group: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., group: _Optional[str] = ...) -> None: ...

class WrittenPartition(_message.Message):
    __slots__ = ("topic", "partition", "first_offset", "end_offset", "record_count")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    first_offset: int
    end_offset: int
    record_count: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., first_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., record_count: _Optional[int] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("timeout_ms", "count", "partitions", "subscriptions", "client_name", "allow_compacted")
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
    ALLOW_COMPACTED_FIELD_NUMBER: _ClassVar[int]
    timeout_ms: int
    count: int
    partitions: _containers.RepeatedCompositeFieldContainer[RegisteredPartition]
    subscriptions: _containers.RepeatedCompositeFieldContainer[RegisteredSubscription]
    client_name: str
    allow_compacted: bool
    def __init__(self, timeout_ms: _Optional[int] = ..., count: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[RegisteredPartition, _Mapping]]] = ..., subscriptions: _Optional[_Iterable[_Union[RegisteredSubscription, _Mapping]]] = ..., client_name: _Optional[str] = ..., allow_compacted: _Optional[bool] = ...) -> None: ...

class AddPartitions(_message.Message):
    __slots__ = ("sequence", "partitions", "allow_compacted")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ALLOW_COMPACTED_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    partitions: _containers.RepeatedCompositeFieldContainer[RegisteredPartition]
    allow_compacted: bool
    def __init__(self, sequence: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[RegisteredPartition, _Mapping]]] = ..., allow_compacted: _Optional[bool] = ...) -> None: ...

class AddSubscriptions(_message.Message):
    __slots__ = ("sequence", "subscriptions")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    subscriptions: _containers.RepeatedCompositeFieldContainer[RegisteredSubscription]
    def __init__(self, sequence: _Optional[int] = ..., subscriptions: _Optional[_Iterable[_Union[RegisteredSubscription, _Mapping]]] = ...) -> None: ...

class End(_message.Message):
    __slots__ = ("sequence", "outcome", "written", "wait_visible", "acknowledged_in")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    WAIT_VISIBLE_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_IN_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    outcome: Outcome
    written: _containers.RepeatedCompositeFieldContainer[WrittenPartition]
    wait_visible: bool
    acknowledged_in: AcknowledgedIn
    def __init__(self, sequence: _Optional[int] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., written: _Optional[_Iterable[_Union[WrittenPartition, _Mapping]]] = ..., wait_visible: _Optional[bool] = ..., acknowledged_in: _Optional[_Union[AcknowledgedIn, _Mapping]] = ...) -> None: ...

class AcknowledgedIn(_message.Message):
    __slots__ = ("subscriptions",)
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    subscriptions: _containers.RepeatedCompositeFieldContainer[RegisteredSubscription]
    def __init__(self, subscriptions: _Optional[_Iterable[_Union[RegisteredSubscription, _Mapping]]] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("sequences",)
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sequences: _Optional[_Iterable[int]] = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class Prepare(_message.Message):
    __slots__ = ("sequence", "written", "acknowledged_in", "secret_hash", "decider")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_IN_FIELD_NUMBER: _ClassVar[int]
    SECRET_HASH_FIELD_NUMBER: _ClassVar[int]
    DECIDER_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    written: _containers.RepeatedCompositeFieldContainer[WrittenPartition]
    acknowledged_in: AcknowledgedIn
    secret_hash: bytes
    decider: str
    def __init__(self, sequence: _Optional[int] = ..., written: _Optional[_Iterable[_Union[WrittenPartition, _Mapping]]] = ..., acknowledged_in: _Optional[_Union[AcknowledgedIn, _Mapping]] = ..., secret_hash: _Optional[bytes] = ..., decider: _Optional[str] = ...) -> None: ...

class EndPrepared(_message.Message):
    __slots__ = ("sequence", "outcome", "secret", "wait_visible")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    WAIT_VISIBLE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    outcome: Outcome
    secret: bytes
    wait_visible: bool
    def __init__(self, sequence: _Optional[int] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., secret: _Optional[bytes] = ..., wait_visible: _Optional[bool] = ...) -> None: ...

class Decide(_message.Message):
    __slots__ = ("sequence", "outcome", "reason", "secret_hash", "wait_visible", "decided_by")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SECRET_HASH_FIELD_NUMBER: _ClassVar[int]
    WAIT_VISIBLE_FIELD_NUMBER: _ClassVar[int]
    DECIDED_BY_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    outcome: Outcome
    reason: str
    secret_hash: bytes
    wait_visible: bool
    decided_by: str
    def __init__(self, sequence: _Optional[int] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., reason: _Optional[str] = ..., secret_hash: _Optional[bytes] = ..., wait_visible: _Optional[bool] = ..., decided_by: _Optional[str] = ...) -> None: ...

class Describe(_message.Message):
    __slots__ = ("sequence", "secret_hash")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SECRET_HASH_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    secret_hash: bytes
    def __init__(self, sequence: _Optional[int] = ..., secret_hash: _Optional[bytes] = ...) -> None: ...

class List(_message.Message):
    __slots__ = ("first_sequence",)
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    first_sequence: int
    def __init__(self, first_sequence: _Optional[int] = ...) -> None: ...

class DescribeCoordinator(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WriteBarrier(_message.Message):
    __slots__ = ("marker_partition", "nonce", "counter")
    MARKER_PARTITION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    marker_partition: int
    nonce: bytes
    counter: int
    def __init__(self, marker_partition: _Optional[int] = ..., nonce: _Optional[bytes] = ..., counter: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("client_id", "number", "acked_through", "reply_partition", "open", "add_partitions", "end", "describe", "list", "add_subscriptions", "release", "describe_coordinator", "write_barrier", "abort", "hello", "prepare", "end_prepared", "decide")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ACKED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    REPLY_PARTITION_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ADD_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    ADD_SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    WRITE_BARRIER_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    END_PREPARED_FIELD_NUMBER: _ClassVar[int]
    DECIDE_FIELD_NUMBER: _ClassVar[int]
    client_id: bytes
    number: int
    acked_through: int
    reply_partition: int
    open: Open
    add_partitions: AddPartitions
    end: End
    describe: Describe
    list: List
    add_subscriptions: AddSubscriptions
    release: Release
    describe_coordinator: DescribeCoordinator
    write_barrier: WriteBarrier
    abort: Abort
    hello: Hello
    prepare: Prepare
    end_prepared: EndPrepared
    decide: Decide
    def __init__(self, client_id: _Optional[bytes] = ..., number: _Optional[int] = ..., acked_through: _Optional[int] = ..., reply_partition: _Optional[int] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., add_partitions: _Optional[_Union[AddPartitions, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ..., describe: _Optional[_Union[Describe, _Mapping]] = ..., list: _Optional[_Union[List, _Mapping]] = ..., add_subscriptions: _Optional[_Union[AddSubscriptions, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., describe_coordinator: _Optional[_Union[DescribeCoordinator, _Mapping]] = ..., write_barrier: _Optional[_Union[WriteBarrier, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., prepare: _Optional[_Union[Prepare, _Mapping]] = ..., end_prepared: _Optional[_Union[EndPrepared, _Mapping]] = ..., decide: _Optional[_Union[Decide, _Mapping]] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("first_sequence", "count")
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    first_sequence: int
    count: int
    def __init__(self, first_sequence: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Refused(_message.Message):
    __slots__ = ("reason", "code")
    REASON_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    code: RefusalCode
    def __init__(self, reason: _Optional[str] = ..., code: _Optional[_Union[RefusalCode, str]] = ...) -> None: ...

class Unknown(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RecentAborts(_message.Message):
    __slots__ = ("sequences", "causes")
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    CAUSES_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedScalarFieldContainer[int]
    causes: _containers.RepeatedScalarFieldContainer[AbortCause]
    def __init__(self, sequences: _Optional[_Iterable[int]] = ..., causes: _Optional[_Iterable[_Union[AbortCause, str]]] = ...) -> None: ...

class Preparation(_message.Message):
    __slots__ = ("prepared_at_ms", "secret_hash", "decider")
    PREPARED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    SECRET_HASH_FIELD_NUMBER: _ClassVar[int]
    DECIDER_FIELD_NUMBER: _ClassVar[int]
    prepared_at_ms: int
    secret_hash: bytes
    decider: str
    def __init__(self, prepared_at_ms: _Optional[int] = ..., secret_hash: _Optional[bytes] = ..., decider: _Optional[str] = ...) -> None: ...

class OperatorDecision(_message.Message):
    __slots__ = ("sequence", "outcome", "decided_at_ms", "reason", "decided_by")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DECIDED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DECIDED_BY_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    outcome: Outcome
    decided_at_ms: int
    reason: str
    decided_by: str
    def __init__(self, sequence: _Optional[int] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., decided_at_ms: _Optional[int] = ..., reason: _Optional[str] = ..., decided_by: _Optional[str] = ...) -> None: ...

class TransactionDescription(_message.Message):
    __slots__ = ("sequence", "state", "opened_at_ms", "timeout_ms", "partitions", "subscriptions", "client_key", "client_name", "outcome", "abort_cause", "preparation")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    OPENED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_KEY_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ABORT_CAUSE_FIELD_NUMBER: _ClassVar[int]
    PREPARATION_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    state: str
    opened_at_ms: int
    timeout_ms: int
    partitions: _containers.RepeatedCompositeFieldContainer[RegisteredPartition]
    subscriptions: _containers.RepeatedCompositeFieldContainer[RegisteredSubscription]
    client_key: bytes
    client_name: str
    outcome: Outcome
    abort_cause: AbortCause
    preparation: Preparation
    def __init__(self, sequence: _Optional[int] = ..., state: _Optional[str] = ..., opened_at_ms: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[RegisteredPartition, _Mapping]]] = ..., subscriptions: _Optional[_Iterable[_Union[RegisteredSubscription, _Mapping]]] = ..., client_key: _Optional[bytes] = ..., client_name: _Optional[str] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., abort_cause: _Optional[_Union[AbortCause, str]] = ..., preparation: _Optional[_Union[Preparation, _Mapping]] = ...) -> None: ...

class Listed(_message.Message):
    __slots__ = ("transactions", "low_watermark", "next_sequence", "as_of", "aborts", "open_count", "committing_count", "aborting_count", "prepared_count", "decisions")
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    LOW_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    AS_OF_FIELD_NUMBER: _ClassVar[int]
    ABORTS_FIELD_NUMBER: _ClassVar[int]
    OPEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    COMMITTING_COUNT_FIELD_NUMBER: _ClassVar[int]
    ABORTING_COUNT_FIELD_NUMBER: _ClassVar[int]
    PREPARED_COUNT_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[TransactionDescription]
    low_watermark: int
    next_sequence: int
    as_of: int
    aborts: RecentAborts
    open_count: int
    committing_count: int
    aborting_count: int
    prepared_count: int
    decisions: _containers.RepeatedCompositeFieldContainer[OperatorDecision]
    def __init__(self, transactions: _Optional[_Iterable[_Union[TransactionDescription, _Mapping]]] = ..., low_watermark: _Optional[int] = ..., next_sequence: _Optional[int] = ..., as_of: _Optional[int] = ..., aborts: _Optional[_Union[RecentAborts, _Mapping]] = ..., open_count: _Optional[int] = ..., committing_count: _Optional[int] = ..., aborting_count: _Optional[int] = ..., prepared_count: _Optional[int] = ..., decisions: _Optional[_Iterable[_Union[OperatorDecision, _Mapping]]] = ...) -> None: ...

class LiveEntry(_message.Message):
    __slots__ = ("offset", "live")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    offset: int
    live: bytes
    def __init__(self, offset: _Optional[int] = ..., live: _Optional[bytes] = ...) -> None: ...

class LogLiveness(_message.Message):
    __slots__ = ("first_live_offset", "live_records", "dead_records", "entries")
    FIRST_LIVE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIVE_RECORDS_FIELD_NUMBER: _ClassVar[int]
    DEAD_RECORDS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    first_live_offset: int
    live_records: int
    dead_records: int
    entries: _containers.RepeatedCompositeFieldContainer[LiveEntry]
    def __init__(self, first_live_offset: _Optional[int] = ..., live_records: _Optional[int] = ..., dead_records: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[LiveEntry, _Mapping]]] = ...) -> None: ...

class CoordinatorStats(_message.Message):
    __slots__ = ("epoch", "next_sequence", "low_watermark", "open_count", "committing_count", "aborting_count", "has_served", "batching_enabled", "batch_records_max", "batch_bytes_max", "batch_delay_us_max", "flush_eager", "entries_written", "records_written", "appends_in_flight", "markers_pending", "recovery_ms", "client_count", "answer_count", "liveness", "ends", "flushes", "as_of", "changed_at", "compacted", "prepared_count", "oldest_prepared_ms", "commit_count", "abort_count")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LOW_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    OPEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    COMMITTING_COUNT_FIELD_NUMBER: _ClassVar[int]
    ABORTING_COUNT_FIELD_NUMBER: _ClassVar[int]
    HAS_SERVED_FIELD_NUMBER: _ClassVar[int]
    BATCHING_ENABLED_FIELD_NUMBER: _ClassVar[int]
    BATCH_RECORDS_MAX_FIELD_NUMBER: _ClassVar[int]
    BATCH_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    BATCH_DELAY_US_MAX_FIELD_NUMBER: _ClassVar[int]
    FLUSH_EAGER_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    RECORDS_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    APPENDS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    MARKERS_PENDING_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_MS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    ANSWER_COUNT_FIELD_NUMBER: _ClassVar[int]
    LIVENESS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    FLUSHES_FIELD_NUMBER: _ClassVar[int]
    AS_OF_FIELD_NUMBER: _ClassVar[int]
    CHANGED_AT_FIELD_NUMBER: _ClassVar[int]
    COMPACTED_FIELD_NUMBER: _ClassVar[int]
    PREPARED_COUNT_FIELD_NUMBER: _ClassVar[int]
    OLDEST_PREPARED_MS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_COUNT_FIELD_NUMBER: _ClassVar[int]
    ABORT_COUNT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    next_sequence: int
    low_watermark: int
    open_count: int
    committing_count: int
    aborting_count: int
    has_served: bool
    batching_enabled: bool
    batch_records_max: int
    batch_bytes_max: int
    batch_delay_us_max: int
    flush_eager: bool
    entries_written: int
    records_written: int
    appends_in_flight: int
    markers_pending: int
    recovery_ms: int
    client_count: int
    answer_count: int
    liveness: LogLiveness
    ends: _containers.RepeatedCompositeFieldContainer[ReportedEnd]
    flushes: _containers.RepeatedCompositeFieldContainer[FlushFigures]
    as_of: int
    changed_at: int
    compacted: _containers.RepeatedCompositeFieldContainer[CompactedTopic]
    prepared_count: int
    oldest_prepared_ms: int
    commit_count: int
    abort_count: int
    def __init__(self, epoch: _Optional[int] = ..., next_sequence: _Optional[int] = ..., low_watermark: _Optional[int] = ..., open_count: _Optional[int] = ..., committing_count: _Optional[int] = ..., aborting_count: _Optional[int] = ..., has_served: _Optional[bool] = ..., batching_enabled: _Optional[bool] = ..., batch_records_max: _Optional[int] = ..., batch_bytes_max: _Optional[int] = ..., batch_delay_us_max: _Optional[int] = ..., flush_eager: _Optional[bool] = ..., entries_written: _Optional[int] = ..., records_written: _Optional[int] = ..., appends_in_flight: _Optional[int] = ..., markers_pending: _Optional[int] = ..., recovery_ms: _Optional[int] = ..., client_count: _Optional[int] = ..., answer_count: _Optional[int] = ..., liveness: _Optional[_Union[LogLiveness, _Mapping]] = ..., ends: _Optional[_Iterable[_Union[ReportedEnd, _Mapping]]] = ..., flushes: _Optional[_Iterable[_Union[FlushFigures, _Mapping]]] = ..., as_of: _Optional[int] = ..., changed_at: _Optional[int] = ..., compacted: _Optional[_Iterable[_Union[CompactedTopic, _Mapping]]] = ..., prepared_count: _Optional[int] = ..., oldest_prepared_ms: _Optional[int] = ..., commit_count: _Optional[int] = ..., abort_count: _Optional[int] = ...) -> None: ...

class CompactedTopic(_message.Message):
    __slots__ = ("topic", "seen_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SEEN_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    seen_ms: int
    def __init__(self, topic: _Optional[str] = ..., seen_ms: _Optional[int] = ...) -> None: ...

class FlushFigures(_message.Message):
    __slots__ = ("trigger", "entries", "records", "bytes", "waited_us", "waited_us_max")
    TRIGGER_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    WAITED_US_FIELD_NUMBER: _ClassVar[int]
    WAITED_US_MAX_FIELD_NUMBER: _ClassVar[int]
    trigger: str
    entries: int
    records: int
    bytes: int
    waited_us: int
    waited_us_max: int
    def __init__(self, trigger: _Optional[str] = ..., entries: _Optional[int] = ..., records: _Optional[int] = ..., bytes: _Optional[int] = ..., waited_us: _Optional[int] = ..., waited_us_max: _Optional[int] = ...) -> None: ...

class ReportedEnd(_message.Message):
    __slots__ = ("kind", "name", "ended_ms", "why", "hint")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENDED_MS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    ended_ms: int
    why: str
    hint: str
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., ended_ms: _Optional[int] = ..., why: _Optional[str] = ..., hint: _Optional[str] = ...) -> None: ...

class Greeting(_message.Message):
    __slots__ = ("host", "port", "nonce")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    host: str
    port: int
    nonce: bytes
    def __init__(self, host: _Optional[str] = ..., port: _Optional[int] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("number", "coordinator", "opened", "done", "refused", "unknown", "described", "listed", "coordinator_stats", "greeting")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    DESCRIBED_FIELD_NUMBER: _ClassVar[int]
    LISTED_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_STATS_FIELD_NUMBER: _ClassVar[int]
    GREETING_FIELD_NUMBER: _ClassVar[int]
    number: int
    coordinator: int
    opened: Opened
    done: Done
    refused: Refused
    unknown: Unknown
    described: TransactionDescription
    listed: Listed
    coordinator_stats: CoordinatorStats
    greeting: Greeting
    def __init__(self, number: _Optional[int] = ..., coordinator: _Optional[int] = ..., opened: _Optional[_Union[Opened, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., unknown: _Optional[_Union[Unknown, _Mapping]] = ..., described: _Optional[_Union[TransactionDescription, _Mapping]] = ..., listed: _Optional[_Union[Listed, _Mapping]] = ..., coordinator_stats: _Optional[_Union[CoordinatorStats, _Mapping]] = ..., greeting: _Optional[_Union[Greeting, _Mapping]] = ...) -> None: ...

class OwnerEnded(_message.Message):
    __slots__ = ("owner", "why", "hint")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    owner: int
    why: str
    hint: str
    def __init__(self, owner: _Optional[int] = ..., why: _Optional[str] = ..., hint: _Optional[str] = ...) -> None: ...
