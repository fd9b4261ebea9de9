from stilltide.schemas.v1 import requests_pb2 as _requests_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TransactionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRANSACTION_STATE_UNSPECIFIED: _ClassVar[TransactionState]
    TRANSACTION_STATE_OPEN: _ClassVar[TransactionState]
    TRANSACTION_STATE_COMMITTING: _ClassVar[TransactionState]
    TRANSACTION_STATE_ABORTING: _ClassVar[TransactionState]
    TRANSACTION_STATE_PREPARED: _ClassVar[TransactionState]
TRANSACTION_STATE_UNSPECIFIED: TransactionState
TRANSACTION_STATE_OPEN: TransactionState
TRANSACTION_STATE_COMMITTING: TransactionState
TRANSACTION_STATE_ABORTING: TransactionState
TRANSACTION_STATE_PREPARED: TransactionState

class Fence(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class Noop(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TimedOut(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class ForgetClients(_message.Message):
    __slots__ = ("client_keys",)
    CLIENT_KEYS_FIELD_NUMBER: _ClassVar[int]
    client_keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, client_keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class BaseTransaction(_message.Message):
    __slots__ = ("sequence", "state", "opened_at_ms", "timeout_ms", "partitions", "subscriptions", "written", "client_key", "client_name", "preparation")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    OPENED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    CLIENT_KEY_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
    PREPARATION_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    state: TransactionState
    opened_at_ms: int
    timeout_ms: int
    partitions: _containers.RepeatedCompositeFieldContainer[_requests_pb2.RegisteredPartition]
    subscriptions: _containers.RepeatedCompositeFieldContainer[_requests_pb2.RegisteredSubscription]
    written: _containers.RepeatedCompositeFieldContainer[_requests_pb2.WrittenPartition]
    client_key: bytes
    client_name: str
    preparation: _requests_pb2.Preparation
    def __init__(self, sequence: _Optional[int] = ..., state: _Optional[_Union[TransactionState, str]] = ..., opened_at_ms: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[_requests_pb2.RegisteredPartition, _Mapping]]] = ..., subscriptions: _Optional[_Iterable[_Union[_requests_pb2.RegisteredSubscription, _Mapping]]] = ..., written: _Optional[_Iterable[_Union[_requests_pb2.WrittenPartition, _Mapping]]] = ..., client_key: _Optional[bytes] = ..., client_name: _Optional[str] = ..., preparation: _Optional[_Union[_requests_pb2.Preparation, _Mapping]] = ...) -> None: ...

class BaseClient(_message.Message):
    __slots__ = ("last_seen_ms", "acked_through", "unknown_through", "answers", "client_key")
    LAST_SEEN_MS_FIELD_NUMBER: _ClassVar[int]
    ACKED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_THROUGH_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_KEY_FIELD_NUMBER: _ClassVar[int]
    last_seen_ms: int
    acked_through: int
    unknown_through: int
    answers: _containers.RepeatedCompositeFieldContainer[_requests_pb2.Response]
    client_key: bytes
    def __init__(self, last_seen_ms: _Optional[int] = ..., acked_through: _Optional[int] = ..., unknown_through: _Optional[int] = ..., answers: _Optional[_Iterable[_Union[_requests_pb2.Response, _Mapping]]] = ..., client_key: _Optional[bytes] = ...) -> None: ...

class BaseState(_message.Message):
    __slots__ = ("next_sequence", "transactions", "clients", "outcomes", "aborts", "decisions")
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    ABORTS_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    next_sequence: int
    transactions: _containers.RepeatedCompositeFieldContainer[BaseTransaction]
    clients: _containers.RepeatedCompositeFieldContainer[BaseClient]
    outcomes: BaseOutcomes
    aborts: _requests_pb2.RecentAborts
    decisions: _containers.RepeatedCompositeFieldContainer[_requests_pb2.OperatorDecision]
    def __init__(self, next_sequence: _Optional[int] = ..., transactions: _Optional[_Iterable[_Union[BaseTransaction, _Mapping]]] = ..., clients: _Optional[_Iterable[_Union[BaseClient, _Mapping]]] = ..., outcomes: _Optional[_Union[BaseOutcomes, _Mapping]] = ..., aborts: _Optional[_Union[_requests_pb2.RecentAborts, _Mapping]] = ..., decisions: _Optional[_Iterable[_Union[_requests_pb2.OperatorDecision, _Mapping]]] = ...) -> None: ...

class BaseOutcomes(_message.Message):
    __slots__ = ("known_from", "committed")
    KNOWN_FROM_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    known_from: int
    committed: bytes
    def __init__(self, known_from: _Optional[int] = ..., committed: _Optional[bytes] = ...) -> None: ...

class Base(_message.Message):
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

class TxnLogRecord(_message.Message):
    __slots__ = ("fence", "noop", "request", "timed_out", "ended", "forget_clients", "base", "at_ms")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    NOOP_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    FORGET_CLIENTS_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    fence: Fence
    noop: Noop
    request: _requests_pb2.Request
    timed_out: TimedOut
    ended: Ended
    forget_clients: ForgetClients
    base: Base
    at_ms: int
    def __init__(self, fence: _Optional[_Union[Fence, _Mapping]] = ..., noop: _Optional[_Union[Noop, _Mapping]] = ..., request: _Optional[_Union[_requests_pb2.Request, _Mapping]] = ..., timed_out: _Optional[_Union[TimedOut, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ..., forget_clients: _Optional[_Union[ForgetClients, _Mapping]] = ..., base: _Optional[_Union[Base, _Mapping]] = ..., at_ms: _Optional[int] = ...) -> None: ...
