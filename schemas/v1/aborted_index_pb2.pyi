from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class AbortedRanges(_message.Message):
    __slots__ = ("version", "topic_id", "gaps", "lengths")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    version: int
    topic_id: bytes
    gaps: _containers.RepeatedScalarFieldContainer[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, version: _Optional[int] = ..., topic_id: _Optional[bytes] = ..., gaps: _Optional[_Iterable[int]] = ..., lengths: _Optional[_Iterable[int]] = ...) -> None: ...

class Coverage(_message.Message):
    __slots__ = ("version", "topic_id", "covered_from", "covered_to", "last_stable_offset", "run_count", "range_count")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    COVERED_FROM_FIELD_NUMBER: _ClassVar[int]
    COVERED_TO_FIELD_NUMBER: _ClassVar[int]
    LAST_STABLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RUN_COUNT_FIELD_NUMBER: _ClassVar[int]
    RANGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    version: int
    topic_id: bytes
    covered_from: int
    covered_to: int
    last_stable_offset: int
    run_count: int
    range_count: int
    def __init__(self, version: _Optional[int] = ..., topic_id: _Optional[bytes] = ..., covered_from: _Optional[int] = ..., covered_to: _Optional[int] = ..., last_stable_offset: _Optional[int] = ..., run_count: _Optional[int] = ..., range_count: _Optional[int] = ...) -> None: ...
