from schemas.v1 import requests_pb2 as _requests_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
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
