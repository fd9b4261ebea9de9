from stilltide.schemas.v1 import requests_pb2 as _requests_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OutcomeMarker(_message.Message):
    __slots__ = ("outcome", "start_offset", "end_offset", "record_count", "topic_id")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    outcome: _requests_pb2.Outcome
    start_offset: int
    end_offset: int
    record_count: int
    topic_id: bytes
    def __init__(self, outcome: _Optional[_Union[_requests_pb2.Outcome, str]] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., record_count: _Optional[int] = ..., topic_id: _Optional[bytes] = ...) -> None: ...

class OpenTransactions(_message.Message):
    __slots__ = ("topic", "partition", "topic_id", "start_offset", "sequence", "transaction_count")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_COUNT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    topic_id: bytes
    start_offset: int
    sequence: int
    transaction_count: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_id: _Optional[bytes] = ..., start_offset: _Optional[int] = ..., sequence: _Optional[int] = ..., transaction_count: _Optional[int] = ...) -> None: ...

class Barrier(_message.Message):
    __slots__ = ("nonce", "counter", "low_watermark", "open")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    LOW_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    counter: int
    low_watermark: int
    open: _containers.RepeatedCompositeFieldContainer[OpenTransactions]
    def __init__(self, nonce: _Optional[bytes] = ..., counter: _Optional[int] = ..., low_watermark: _Optional[int] = ..., open: _Optional[_Iterable[_Union[OpenTransactions, _Mapping]]] = ...) -> None: ...
